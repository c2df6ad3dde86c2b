"""What a window holds, or has beside it, that is no habit of the job, in words: start-up, a single pause,
what passes before and after the only step."""

from __future__ import annotations

from collections.abc import Sequence

from perfdoc.results import Rank, Window
from perfdoc.results.capture_parts import Pause, StartUp
from perfdoc.results.figures import brief, plural, share
from perfdoc.results.names import opening

_NEARLY_ALL = 0.995
"""Of the window, in start-up."""


def once_words(ranks: Sequence[Rank]) -> str:
    """With the space behind it: what runs once, where it is much of the window; nothing where it is not."""
    found = start_up_inside(ranks)
    if found is not None:
        start_up, window = found
        part = start_up.duration_ns / window.duration_ns
        what = "All of it" if part > _NEARLY_ALL else f"{share(part)} of the window"
        made, rest = made_of(start_up), rest_after(start_up, window)
        return f"{what} is start-up{made}, which runs once; {rest}: capture later steps. "
    if (paused := pause_in(ranks)) is None:
        return ""
    pause, window = paused
    of = share(pause.duration_ns / window.duration_ns)
    return (
        f"{of} of the window is one pause of {brief(pause.duration_ns)} ({around(pause)}), which nothing "
        "shows to come back: capture several steps. "
    )


def start_up_inside(ranks: Sequence[Rank]) -> tuple[StartUp, Window] | None:
    """The start-up that is most of its window, where it is so much of it that nothing is promised."""
    found = [(r.window.start_up, r.window) for r in ranks if r.window.start_up is not None]
    inside = [(s, w) for s, w in found if not s.left_out and w.runs_once]
    return max(inside, key=lambda f: f[0].duration_ns / f[1].duration_ns, default=None)


def beside_steps(window: Window, gpus_wait: str) -> tuple[str, str]:
    """Of a single step beside which the device idles: the verdict, and what shows it."""
    loads = 2 * window.outside_data_ns > window.outside_ns
    data = f"{brief(window.outside_data_ns)} of it in ranges that load data. " if loads else ""
    return (
        f"Beside the {brief(window.duration_ns)} step {gpus_wait} {brief(window.outside_ns)} for "
        f"{'the next batch' if loads else 'the host'}: before the first kernel or after the last.",
        f"{data}All else here is of the {brief(window.duration_ns)} between.",
    )


def rest_after(start_up: StartUp, window: Window) -> str:
    """How much of the window follows it."""
    follows = window.end_ns - start_up.end_ns
    return f"{brief(follows)} of the window come after it" if follows > 0 else "nothing comes after it"


def pause_in(ranks: Sequence[Rank]) -> tuple[Pause, Window] | None:
    """The longest pause that is much of its window; None without any."""
    found = [(r.window.pause, r.window) for r in ranks if r.window.pause is not None]
    return max(found, key=lambda f: f[0].duration_ns, default=None)


def around(pause: Pause) -> str:
    """How much lies before and after it."""
    return f"{plural(pause.before, 'activity', 'activities')} before it, {pause.after:,} after it"


def made_of(start_up: StartUp) -> str:
    """With the space before it; empty where no calls tell."""
    parts = {
        "making communicators": start_up.communicator_ns,
        "loading": start_up.loading_ns,
        "allocations": start_up.allocation_ns,
    }
    rest_ns = start_up.duration_ns - sum(parts.values())
    rest = f", at least {brief(rest_ns)} in none of these calls" if 2 * rest_ns > start_up.duration_ns else ""
    named = ", ".join(f"{what} {brief(ns)}" for what, ns in parts.items() if ns)
    return f" ({named}{rest})" if named else ""


def verdict_once(ranks: Sequence[Rank]) -> tuple[str, str] | None:
    """Of a window of which nothing can be promised: it is start-up, or one pause."""
    if (found := start_up_inside(ranks)) is not None:
        start_up, window = found
        part = share(start_up.duration_ns / window.duration_ns)
        made = made_of(start_up).strip(" ()")
        return (
            f"{part} of the {brief(window.duration_ns)} window is start-up, which runs once: it tells "
            "nothing of a step.",
            f"{opening(made)}{'; ' if made else ''}{rest_after(start_up, window)}.",
        )
    if (paused := pause_in(ranks)) is None:
        return None
    pause, window = paused
    part, long = share(pause.duration_ns / window.duration_ns), brief(pause.duration_ns)
    return (
        f"{part} of the {brief(window.duration_ns)} window is one pause of {long}: nothing shows that it "
        "comes back.",
        f"{opening(around(pause))}.",
    )
