"""Kernel time of two sides by class and by name, and whether a kernel ran more often or took longer."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from perfdoc.compare.diff.pairing import Pair
from perfdoc.compare.diff.result import Basis, Kernel, KernelClass, Kernels, KernelStatus, duration
from perfdoc.compare.side import KernelTotal, Loaded
from perfdoc.results.figures import apportion

MOST_KERNELS = 50


def kernel_rows(before: Loaded, after: Loaded, pairs: Sequence[Pair], basis: Basis) -> Kernels:
    """Sums over ranks: of a mean step, or of the windows. Not measured where ranks were left out, whose
    kernels a diagnosis does not tell apart."""
    for side in (before, after):
        analysis = side.diagnosis.analyses.kernels
        if analysis.state != "measured":
            return _none(analysis.reason)
        if len(pairs) < len(side.diagnosis.ranks):
            return _none("kernel times sum over all ranks, and not all ranks are on both sides")
    sides = [_Scaled(before, basis), _Scaled(after, basis)]
    one, two = (s.classes() for s in sides)
    names = {*one, *two}
    one, two = ({name: f.get(name, _Figure()) for name in names} for f in (one, two))
    classes = [
        KernelClass(
            name=name,
            calls_before=one[name].calls,
            calls_after=two[name].calls,
            before_ns=one[name].ns,
            after_ns=two[name].ns,
            change_ns=two[name].ns - one[name].ns,
        )
        for name in sorted(names)
    ]
    kernels = [
        row
        for name in sorted({*before.kernels, *after.kernels})
        if (row := _kernel(name, *sides)).change_ns != 0
    ]
    kernels.sort(key=lambda k: (-_size(k), k.name))
    return Kernels(
        state="measured",
        reason="",
        total=duration(sum(f.ns for f in one.values()), sum(f.ns for f in two.values())),
        classes=sorted(classes, key=lambda c: (-abs(c.change_ns), c.name)),
        kernels=kernels[:MOST_KERNELS],
        left_out=max(0, len(kernels) - MOST_KERNELS),
    )


class _Figure:
    """Calls and time of a class."""

    def __init__(self, calls: float = 0.0, ns: int = 0) -> None:
        self.calls, self.ns = calls, ns


class _Scaled:
    """One side's kernels as they are in a mean step of all ranks, or in the windows."""

    def __init__(self, side: Loaded, basis: Basis) -> None:
        self.side = side
        ranks = side.diagnosis.ranks
        steps = sum(r.window.steps for r in ranks)
        self.scale = Fraction(len(ranks), steps) if basis == "step" else Fraction(1)

    def ns(self, total_ns: int) -> int:
        return round(total_ns * self.scale)

    def classes(self) -> dict[str, _Figure]:
        rows = self.side.diagnosis.analyses.kernels.classes
        whole = self.ns(sum(c.total_ns for c in rows))
        parts = apportion([c.total_ns for c in rows], whole)
        return {c.name: _Figure(float(c.count * self.scale), ns) for c, ns in zip(rows, parts, strict=True)}


def _kernel(name: str, one: _Scaled, two: _Scaled) -> Kernel:
    a, b = one.side.kernels.get(name), two.side.kernels.get(name)
    known = a or b
    assert known is not None
    if (a is None and not one.side.kernels_complete) or (b is None and not two.side.kernels_complete):
        status: KernelStatus = "not_listed"
        return _row(name, known.kernel_class, status, (a, one) if a else None, (b, two) if b else None)
    before, after = one.ns(a.total_ns if a else 0), two.ns(b.total_ns if b else 0)
    if a is None or b is None:
        empty = KernelTotal(kernel_class=known.kernel_class, count=0, total_ns=0)
        status = "gone" if b is None else "appeared"
        return _row(name, known.kernel_class, status, (a or empty, one), (b or empty, two), after - before)
    calls = a.count * one.scale, b.count * two.scale
    by_count = round((calls[1] - calls[0]) * (before / calls[0] + after / calls[1]) / 2)
    by_time = after - before - by_count
    status = _status(after - before, by_count, by_time)
    return _row(name, known.kernel_class, status, (a, one), (b, two), by_count, by_time)


def _status(change: int, by_count: int, by_time: int) -> KernelStatus:
    if change == 0:
        return "same"
    if abs(by_time) >= abs(by_count):
        return "slower" if by_time > 0 else "faster"
    return "more_calls" if by_count > 0 else "fewer_calls"


def _row(
    name: str,
    kernel_class: str,
    status: KernelStatus,
    one: tuple[KernelTotal, _Scaled] | None,
    two: tuple[KernelTotal, _Scaled] | None,
    by_count: int | None = None,
    by_time: int | None = None,
) -> Kernel:
    before = one[1].ns(one[0].total_ns) if one else None
    after = two[1].ns(two[0].total_ns) if two else None
    both = before is not None and after is not None
    return Kernel(
        name=name,
        kernel_class=kernel_class,
        status=status,
        calls_before=float(one[0].count * one[1].scale) if one else None,
        calls_after=float(two[0].count * two[1].scale) if two else None,
        before_ns=before,
        after_ns=after,
        change_ns=(after or 0) - (before or 0) if both else None,
        count_effect_ns=by_count,
        time_effect_ns=0 if by_count is not None and by_time is None else by_time,
    )


def _size(kernel: Kernel) -> int:
    """By how much it may have changed."""
    if kernel.change_ns is not None:
        return abs(kernel.change_ns)
    return max(kernel.before_ns or 0, kernel.after_ns or 0)


def _none(reason: str) -> Kernels:
    return Kernels(state="not_measured", reason=reason, total=None, classes=[], kernels=[], left_out=0)
