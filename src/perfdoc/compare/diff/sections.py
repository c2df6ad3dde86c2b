"""A comparison for people: its sections, made once, in full for a terminal and in short as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from perfdoc.compare.diff.result import Basis, Diff, Duration, Kernel, Leaf, Logged, Noise, Outcome
from perfdoc.reports.leaves import LABELS
from perfdoc.reports.markdown import escape
from perfdoc.reports.sections.rendering import add_sections, markdown_lines
from perfdoc.reports.sections.section import Cell, Grid, Section, name, word
from perfdoc.reports.terminal import Lines
from perfdoc.results.figures import (
    UNKNOWN,
    duration,
    per_cent,
    plural,
    share,
    signed,
    signed_share,
    significant,
)
from perfdoc.results.names import prose, shorten
from perfdoc.traces.kineto.names import short_name

_NAMED = 3
"""Leaves that the verdict names at most."""
_NAMED_FRAC = 0.1
"""Of the largest change among leaves: smaller ones are not named."""


def calls(number: float | None) -> str:
    """Calls of a mean step, which need not be whole: 1,346, 12.5, 0.17."""
    if number is None:
        return UNKNOWN
    if number >= 100 or number == round(number):
        return f"{number:,.0f}"
    return f"{number:.1f}" if number >= 1 else significant(number, 2)


def verdict(
    outcome: Outcome, basis: Basis, mean: Duration, noise: Noise, leaves: Sequence[Leaf], ranks: int
) -> str:
    """One to three sentences: by how much, where, and whether it may be noise."""
    said = opening(basis, mean, ranks)
    if outcome == "no_change":
        return f"{said}{' Changes of its parts cancel out.' if any(x.change_ns for x in leaves) else ''}"
    return f"{said} {scatter(noise)}{where(leaves, ranks)}"


def opening(basis: Basis, mean: Duration, ranks: int) -> str:
    """How long it takes, and how that changed."""
    what = "A step" if basis == "step" else "The window"
    over = f"mean over {plural(ranks, 'rank')}" if ranks > 1 else "one rank"
    if not mean.change_ns:
        return f"No change: {what.lower()} takes {duration(mean.after_ns)} on both sides ({over})."
    frac = f" ({signed_share(mean.change_frac)})" if mean.change_frac is not None else ""
    return (
        f"{what} takes {duration(mean.after_ns)}, {signed(mean.change_ns)}{frac} against "
        f"{duration(mean.before_ns)} before ({over})."
    )


def scatter(noise: Noise) -> str:
    """Whether the change may be noise."""
    if noise.state == "not_measured":
        return f"Noise is unknown: {noise.reason}."
    assert noise.low_ns is not None
    steps = f"{noise.before_steps:,} and {plural(noise.after_steps, 'step')}"
    sure = per_cent(noise.confidence_frac, 0)
    between = f"{signed(noise.low_ns)} to {signed(noise.high_ns)} ({sure} interval)"
    if noise.within_noise:
        return f"Within noise by the scatter of {steps}: {between}."
    return f"Beyond the noise of {steps}: {between}."


def logged_sentence(found: Logged) -> str:
    """What the logs say of steps without the profiler."""
    m = found.median
    said = (
        f"logged steps without the profiler: median {duration(m.before_ns)} before, {duration(m.after_ns)} "
        f"after ({signed(m.change_ns)}, {signed_share(m.change_frac)})"
    )
    if found.low_ns is None:
        steps = f"{found.before_steps:,} and {plural(found.after_steps, 'step')}"
        return f"{said}; {steps} are too few to estimate noise"
    verdict = "within noise" if found.within_noise else "beyond noise"
    return f"{said}, {verdict} ({signed(found.low_ns)} to {signed(found.high_ns)})"


def logged_first(noise: Noise, logged: Logged | None) -> str:
    """What is said before steps with the profiler, where those without it changed and these may be noise."""
    if logged is None or logged.low_ns is None or logged.within_noise or not noise.within_noise:
        return ""
    return f"L{logged_sentence(logged)[1:]}."


def where(leaves: Sequence[Leaf], ranks: int) -> str:
    """The leaves that changed most; begins with a space, empty where none did."""
    ordered = sorted((x for x in leaves if x.change_ns), key=lambda x: (-abs(x.change_ns), x.leaf))
    if not ordered:
        return ""
    least = _NAMED_FRAC * abs(ordered[0].change_ns)
    named = [x for x in ordered[:_NAMED] if abs(x.change_ns) >= least]
    each = f", summed over {plural(ranks, 'rank')}" if ranks > 1 else ""
    parts = ", ".join(f"{LABELS[x.leaf]} {signed(x.change_ns)}" for x in named)
    return f" Most of it{each}: {parts}."


_MOST_FLAGS = 6
_FLAG = 400
_NAME = 64
_MOST = {"leaves": 15, "kernels": 12, "ranks": 16, "settings": 1000}
_MOST_IN_SHORT = {"leaves": 9, "kernels": 8, "ranks": 4, "settings": 8}
_NOISE = {True: "~", False: "", None: ""}
SIGN = "~ within noise"


def render_text(diff: Diff, *, width: int = 100) -> str:
    """All sections that hold something; durations keep three decimals, the exact figures are in diff.json."""
    page = Lines(max(40, width), False)
    page.say(prose(diff.verdict), "")
    add_sections(page, sections_of(diff))
    page.lines += [""] if diff.flags else []
    for flag in diff.flags:
        page.say(f"note: {prose(flag.message)}", "")
    return "\n".join(page.lines) + "\n"


def render_markdown(diff: Diff) -> str:
    """For a pull request, about 60 lines: the verdict, what speaks against it, and the sections in short."""
    lines = ["### perfdoc diff", "", escape(prose(diff.verdict)), ""]
    lines += [f"> - {escape(prose(flag.message, _FLAG))}" for flag in diff.flags[:_MOST_FLAGS]]
    if len(diff.flags) > _MOST_FLAGS:
        lines.append(f"> - {len(diff.flags) - _MOST_FLAGS} more: see diff.json.")
    return "\n".join([*lines, *markdown_lines(sections_of(diff, short=True))]) + "\n"


def sections_of(diff: Diff, *, short: bool = False) -> list[Section]:
    """What changed, the sides first. short: the largest changes alone, and paths without their folders."""
    most = _MOST_IN_SHORT if short else _MOST
    ranks = plural(diff.ranks_compared, "rank")
    over = f"{'a step' if diff.basis == 'step' else 'the window'}, summed over {ranks}"
    went = f"Where the time went ({over}; {SIGN})"
    sections = [
        _sides(diff, short=short),
        Section(key="leaves", title=went, grids=[leaf_grid(diff, most["leaves"])]),
        _kernels(diff, most["kernels"]),
        Section(key="ranks", title="Ranks", grids=[_ranks(diff, most["ranks"])]),
        _settings(diff, most["settings"]),
    ]
    if not short:
        sections[2:2] = [
            Section(key="communication", title=f"Communication ({over})", grids=[_dimensions(diff)]),
            Section(
                key="classes",
                title="Kernels by class (sums of durations: overlapping kernels count twice)",
                grids=[_classes(diff)],
            ),
        ]
        sections.append(Section(key="rules", title="Rules", sentences=_rules(diff)))
    return sections


def _sides(diff: Diff, *, short: bool) -> Section:
    sides = ("before", diff.before), ("after", diff.after)
    said = []
    for which, side in sides:
        facts = [plural(side.ranks, "rank"), plural(side.steps, "step") if side.steps else "no steps"]
        facts += [" and ".join(map(shorten, side.gpus))] if side.gpus else []
        facts += [f"MFU {share(side.mfu_frac)}"] if side.mfu_frac is not None else []
        path = _without_folders(side.path) if short else side.path
        said.append(f"{which}: {shorten(path)}: {', '.join(facts)}")
    if diff.logged is not None:
        said.append(logged_sentence(diff.logged))
    if (token := diff.per_token) is not None:
        change = signed_share(token.change_frac)
        said.append(f"a token {token.before_ns:,.3f} ns before, {token.after_ns:,.3f} ns after ({change})")
    return Section(key="sides", title="Compared", sentences=said)


def _without_folders(paths: str) -> str:
    """Absolute paths by their last two parts: what is pasted elsewhere names nobody's home."""
    return " ".join("/".join(PurePath(p).parts[-2:]) if p.startswith("/") else p for p in paths.split())


def _words(*texts: str) -> list[Cell]:
    return [word(text) for text in texts]


def _duration_cells(d: Any) -> list[Cell]:
    """Of whatever has a time before and after, and its change."""
    return _words(duration(d.before_ns), duration(d.after_ns), signed(d.change_ns))


def leaf_grid(diff: Diff, most: int) -> Grid:
    """The leaves that changed most, in the ledger's order, and the rest in one row: they sum to the total."""
    largest = sorted(diff.leaves, key=lambda x: -abs(x.change_ns))[:most]
    rows = [_leaf_row(x) for x in diff.leaves if x in largest]
    if rest := [x for x in diff.leaves if x not in largest]:
        before, after = sum(x.before_ns for x in rest), sum(x.after_ns for x in rest)
        words = plural(len(rest), "other leaf", "other leaves")
        rows.append(_words(words, duration(before), duration(after), signed(after - before), "", ""))
    noise = _NOISE[diff.noise.within_noise] if diff.total.change_ns else ""
    of_total = signed_share(diff.total.change_frac)
    rows.append([word("total"), *_duration_cells(diff.total), *_words(of_total, noise)])
    return Grid(head=("leaf", "before", "after", "change", "of total", ""), align="lrrrrl", rows=rows)


def _leaf_row(x: Leaf) -> list[Cell]:
    noise = _NOISE[x.within_noise] if x.change_ns else ""
    return [word(LABELS[x.leaf]), *_duration_cells(x), *_words(signed_share(x.change_of_total_frac), noise)]


def _dimensions(diff: Diff) -> Grid:
    rows = [
        [
            word(d.dimension),
            *_duration_cells(d.exposed),
            *_words(
                f"{duration(d.hidden.before_ns)} → {duration(d.hidden.after_ns)}",
                f"{calls(d.calls_before)} → {calls(d.calls_after)}",
            ),
        ]
        for d in diff.dimensions
    ]
    head = ("dimension", "exposed before", "after", "change", "hidden", "calls")
    return Grid(head=head, align="lrrrrr", rows=rows)


def _classes(diff: Diff) -> Grid:
    rows = [
        [name(k.name), word(f"{calls(k.calls_before)} → {calls(k.calls_after)}"), *_duration_cells(k)]
        for k in diff.kernels.classes
        if k.change_ns or k.calls_before != k.calls_after
    ]
    return Grid(head=("class", "calls", "before", "after", "change"), align="lrrrr", rows=rows)


def _kernels(diff: Diff, most: int) -> Section:
    """Kernels by their functions' names; those that differ in template arguments alone are one row."""
    kernels = diff.kernels
    if kernels.state == "not_measured":
        return Section(key="kernels", title="Kernels", sentences=[f"Not compared: {kernels.reason}."])
    by_name: dict[str, list[Kernel]] = {}
    for kernel in kernels.kernels:
        by_name.setdefault(short_name(kernel.name), []).append(kernel)
    ordered = sorted(by_name.items(), key=lambda row: -abs(_sum(row[1], "change_ns") or 0))
    rows = [_kernel_row(of, variants) for of, variants in ordered[:most]]
    head = ("kernel", "calls", "change", "by calls", "by time")
    left_out = kernels.left_out + len(ordered) - len(rows)
    grid = Grid(head=head, align="nrrrr", rows=rows, left_out=left_out)
    return Section(key="kernels", title="Kernels that changed most", grids=[grid])


def _kernel_row(of: str, kernels: Sequence[Kernel]) -> list[Cell]:
    variants = f", {len(kernels)} variants" if len(kernels) > 1 else ""
    before, after = (calls(_sum(kernels, f"calls_{side}")) for side in ("before", "after"))
    effects = ("change_ns", "count_effect_ns", "time_effect_ns")
    times = [None if (ns := _sum(kernels, effect)) is None else round(ns) for effect in effects]
    return [Cell(text=shorten(of, _NAME) + variants), *_words(f"{before} → {after}", *map(signed, times))]


def _sum(kernels: Sequence[Kernel], field: str) -> float | None:
    """None where one of them is not known."""
    values = [getattr(k, field) for k in kernels]
    return None if None in values else sum(values)


def _ranks(diff: Diff, most: int) -> Grid:
    ordered = sorted(diff.ranks, key=lambda r: -abs(r.change_ns))[:most] if len(diff.ranks) > 1 else []
    rows = []
    for r in ordered:
        largest = max(r.leaves_change_ns.items(), key=lambda x: (abs(x[1]), x[0]), default=None)
        most_of_it = f"{LABELS[largest[0]]} {signed(largest[1])}" if largest else ""
        rows.append([name(r.label), *_duration_cells(r), word(most_of_it)])
    left_out = len(diff.ranks) - len(rows) if rows else 0
    return Grid(
        head=("rank", "before", "after", "change", "most of it"), align="nrrrl", rows=rows, left_out=left_out
    )


def _settings(diff: Diff, most: int) -> Section:
    c = diff.configuration
    if c.state == "not_measured":
        return Section(key="settings", title="Settings", sentences=[f"Not compared: {c.reason}."])
    rows = [
        [name(s.knob), *_words(setting_words(s.before, s.before_set), setting_words(s.after, s.after_set))]
        for s in c.settings[:most]
    ]
    grid = Grid(
        head=("setting", "before", "after"), align="nnn", rows=rows, left_out=len(c.settings) - len(rows)
    )
    said = [c.reason] if c.reason else []
    said += [] if rows else [f"No differences; {c.same:,} are alike."]
    title = f"Settings that differ ({c.same:,} are alike)" if rows else "Settings"
    return Section(key="settings", title=title, sentences=said, grids=[grid])


def setting_words(value: object, is_set: bool) -> str:
    """A value of a setting, and whether anybody set it."""
    said = shorten(str(value), _NAME)
    return said if is_set else "not set" if value is None else f"{said} (default)"


def _rules(diff: Diff) -> list[str]:
    return [f"{r.code} {r.title}: {r.before} → {r.after}" for r in diff.rules]
