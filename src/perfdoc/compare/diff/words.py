"""The sentences of a comparison, and what a reader must know before them: other work, other kernels."""

from __future__ import annotations

from collections.abc import Sequence

from perfdoc.compare.diff.result import Basis, Diff, Duration, Kernel, Leaf, Logged, Noise, Outcome
from perfdoc.reports.leaves import LABELS
from perfdoc.results.figures import UNKNOWN, duration, per_cent, plural, signed, signed_share, significant
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
    what = "A step" if basis == "step" else "The window"
    over = f"mean over {plural(ranks, 'rank')}" if ranks > 1 else "one rank"
    if outcome == "no_change":
        moved = " Changes of its parts cancel out." if any(x.change_ns for x in leaves) else ""
        return f"No change: {what.lower()} takes {duration(mean.after_ns)} on both sides ({over}).{moved}"
    frac = f" ({signed_share(mean.change_frac)})" if mean.change_frac is not None else ""
    said = (
        f"{what} takes {duration(mean.after_ns)}, {signed(mean.change_ns)}{frac} against "
        f"{duration(mean.before_ns)} before ({over})."
    )
    return f"{said} {_scatter(noise)}{_where(leaves, ranks)}"


def _scatter(noise: Noise) -> str:
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


def _where(leaves: Sequence[Leaf], ranks: int) -> str:
    ordered = sorted((x for x in leaves if x.change_ns), key=lambda x: (-abs(x.change_ns), x.leaf))
    if not ordered:
        return ""
    least = _NAMED_FRAC * abs(ordered[0].change_ns)
    named = [x for x in ordered[:_NAMED] if abs(x.change_ns) >= least]
    each = f", summed over {plural(ranks, 'rank')}" if ranks > 1 else ""
    parts = ", ".join(f"{LABELS[x.leaf]} {signed(x.change_ns)}" for x in named)
    return f" Most of it{each}: {parts}."


MIN_CALLS_FRAC = 0.005
"""Steps of one job launch kernels in numbers that differ by less than this."""
MIN_TIME_FRAC = 0.01
"""Kernels of one side alone that take less of all kernels' time are no other program."""
_NAMED_KERNELS = 3


def caveats(diff: Diff) -> list[str]:
    """Sentences, the weightiest first: other work, other kernels, then every flag of the comparison."""
    return [*_other_work(diff), *_other_kernels(diff), *(flag.message for flag in diff.flags)]


def _other_work(diff: Diff) -> list[str]:
    before = sum(c.calls_before for c in diff.kernels.classes)
    after = sum(c.calls_after for c in diff.kernels.classes)
    if not before or not after or abs(after / before - 1) < MIN_CALLS_FRAC:
        return []
    of = "a step" if diff.basis == "step" else "the window"
    return [
        f"Not the same work: {of} launches {calls(after)} kernels, {signed_share(after / before - 1)} "
        f"against {calls(before)} before. The change in time is of both."
    ]


def _other_kernels(diff: Diff) -> list[str]:
    total = diff.kernels.total
    if total is None:
        return []
    new = [k for k in diff.kernels.kernels if k.status == "appeared"]
    gone = [k for k in diff.kernels.kernels if k.status == "gone"]
    parts = [
        f"{plural(len(kernels), 'kernel')} only {when} ({per_cent(frac)} of kernel time: {_named(kernels)})"
        for kernels, when, frac in (
            (gone, "before", _share(sum(k.before_ns or 0 for k in gone), total.before_ns)),
            (new, "after", _share(sum(k.after_ns or 0 for k in new), total.after_ns)),
        )
        if frac >= MIN_TIME_FRAC
    ]
    return [f"Other kernels: {', '.join(parts)}."] if parts else []


def _share(part_ns: int, of_ns: int) -> float:
    return part_ns / of_ns if of_ns else 0.0


def _named(kernels: list[Kernel]) -> str:
    names = list(dict.fromkeys(short_name(k.name)[:64] for k in kernels))
    more = f" and {len(names) - _NAMED_KERNELS} more" if len(names) > _NAMED_KERNELS else ""
    return ", ".join(names[:_NAMED_KERNELS]) + more
