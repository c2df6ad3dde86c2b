"""What a reader must know before the figures: whether both sides did the same work with the same kernels."""

from __future__ import annotations

from perfdoc.compare.diff.result import Diff, Kernel
from perfdoc.compare.diff.words import calls
from perfdoc.results.figures import per_cent, plural, signed_share
from perfdoc.traces.kineto.names import short_name

MIN_CALLS_FRAC = 0.005
"""Steps of one job launch kernels in numbers that differ by less than this."""
MIN_TIME_FRAC = 0.01
"""Kernels of one side alone that take less of all kernels' time are no other program."""
_NAMED = 3


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
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
