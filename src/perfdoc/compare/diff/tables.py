"""Ledgers, ranks, dimensions and kernels of two sides.

Tables of leaves add up to the change exactly; a kernel's change is of its count or of its duration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from perfdoc.compare.diff.pairing import Pair
from perfdoc.compare.diff.result import (
    Basis,
    Dimension,
    Duration,
    Kernel,
    KernelClass,
    Kernels,
    KernelStatus,
    Leaf,
    Rank,
    duration,
)
from perfdoc.compare.side import Loaded
from perfdoc.records import dataclass
from perfdoc.reports.leaves import LEAVES, add_up, leaf_values
from perfdoc.results import DIMENSIONS, Communication
from perfdoc.results import Rank as DiagnosedRank
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
    nothing = 0.0, 0
    rows = [(name, one.get(name, nothing), two.get(name, nothing)) for name in sorted({*one, *two})]
    classes = [
        KernelClass(
            name=name,
            calls_before=a[0],
            calls_after=b[0],
            before_ns=a[1],
            after_ns=b[1],
            change_ns=b[1] - a[1],
        )
        for name, a, b in rows
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
        total=duration(sum(ns for _, ns in one.values()), sum(ns for _, ns in two.values())),
        classes=sorted(classes, key=lambda c: (-abs(c.change_ns), c.name)),
        kernels=kernels[:MOST_KERNELS],
        left_out=max(0, len(kernels) - MOST_KERNELS),
    )


class _Scaled:
    """One side's kernels as they are in a mean step of all ranks, or in the windows."""

    def __init__(self, side: Loaded, basis: Basis) -> None:
        self.side = side
        ranks = side.diagnosis.ranks
        steps = sum(r.window.steps for r in ranks)
        self.scale = Fraction(len(ranks), steps) if basis == "step" else Fraction(1)

    def ns(self, total_ns: int) -> int:
        return round(total_ns * self.scale)

    def classes(self) -> dict[str, tuple[float, int]]:
        """Calls and time by class; the times sum to that of all kernels."""
        rows = self.side.diagnosis.analyses.kernels.classes
        whole = self.ns(sum(c.total_ns for c in rows))
        parts = apportion([c.total_ns for c in rows], whole)
        return {c.name: (float(c.count * self.scale), ns) for c, ns in zip(rows, parts, strict=True)}

    def kernel(self, name: str) -> tuple[Fraction, int] | None:
        """Calls and time of one kernel; None where it is not listed, and may be there all the same."""
        if (total := self.side.kernels.get(name)) is not None:
            return total.count * self.scale, self.ns(total.total_ns)
        return (Fraction(0), 0) if self.side.kernels_complete else None


def _kernel(name: str, one: _Scaled, two: _Scaled) -> Kernel:
    known = one.side.kernels.get(name) or two.side.kernels[name]
    before, after = one.kernel(name), two.kernel(name)
    status: KernelStatus = "not_listed"
    change = by_count = by_time = None
    if before is not None and after is not None:
        change = after[1] - before[1]
        if before[0] and after[0]:
            each = before[1] / before[0] + after[1] / after[0]
            by_count = round((after[0] - before[0]) * each / 2)
            status = _status(change, by_count, change - by_count)
        else:
            by_count, status = change, "appeared" if after[0] else "gone"
        by_time = change - by_count
    return Kernel(
        name=name,
        kernel_class=known.kernel_class,
        status=status,
        calls_before=float(before[0]) if before else None,
        calls_after=float(after[0]) if after else None,
        before_ns=before[1] if before else None,
        after_ns=after[1] if after else None,
        change_ns=change,
        count_effect_ns=by_count,
        time_effect_ns=by_time,
    )


def _status(change: int, by_count: int, by_time: int) -> KernelStatus:
    if change == 0:
        return "same"
    if abs(by_time) >= abs(by_count):
        return "slower" if by_time > 0 else "faster"
    return "more_calls" if by_count > 0 else "fewer_calls"


def _size(kernel: Kernel) -> int:
    """By how much it may have changed."""
    if kernel.change_ns is not None:
        return abs(kernel.change_ns)
    return max(kernel.before_ns or 0, kernel.after_ns or 0)


def _none(reason: str) -> Kernels:
    return Kernels(state="not_measured", reason=reason, total=None, classes=[], kernels=[], left_out=0)


@dataclass(frozen=True, kw_only=True)
class Ledgers:
    """Leaf values of the compared ranks in the order of LEAVES, one row a rank: of a mean step or of the
    window. A row sums to the rank's duration."""

    before: list[list[int]]
    after: list[list[int]]


def ledgers(before: Loaded, after: Loaded, pairs: Sequence[Pair], basis: Basis) -> Ledgers:
    """The ledgers of all compared ranks."""
    return Ledgers(
        before=[_mean_step(before.diagnosis.ranks[p.before], basis) for p in pairs],
        after=[_mean_step(after.diagnosis.ranks[p.after], basis) for p in pairs],
    )


def _mean_step(rank: DiagnosedRank, basis: Basis) -> list[int]:
    """A rank's leaves divided by its steps: whole nanoseconds that sum to the rounded mean step."""
    values = leaf_values(rank.ledger_ns)
    if basis == "window" or rank.window.steps == 1:
        return values
    return apportion(values, _rounded(Fraction(sum(values), rank.window.steps)))


def _rounded(value: Fraction) -> int:
    """Half up."""
    return (2 * value.numerator + value.denominator) // (2 * value.denominator)


def leaf_rows(found: Ledgers, total: Duration, noise: Mapping[str, bool]) -> list[Leaf]:
    """Leaf by leaf over the ranks; leaves that are 0 on both sides are left out."""
    one, two = add_up(found.before), add_up(found.after)
    return [
        Leaf(
            leaf=leaf.path,
            before_ns=a,
            after_ns=b,
            change_ns=b - a,
            change_of_total_frac=(b - a) / total.before_ns if total.before_ns else None,
            within_noise=noise.get(leaf.path),
        )
        for leaf, a, b in zip(LEAVES, one, two, strict=True)
        if a or b
    ]


def rank_rows(found: Ledgers, pairs: Sequence[Pair]) -> list[Rank]:
    """Rank by rank."""
    rows = []
    for pair, one, two in zip(pairs, found.before, found.after, strict=True):
        a, b = sum(one), sum(two)
        changes = {leaf.path: y - x for leaf, x, y in zip(LEAVES, one, two, strict=True) if x != y}
        rows.append(
            Rank(label=pair.label, before_ns=a, after_ns=b, change_ns=b - a, leaves_change_ns=changes)
        )
    return rows


def dimension_rows(
    before: Loaded, after: Loaded, pairs: Sequence[Pair], found: Ledgers, basis: Basis
) -> list[Dimension]:
    """Communication by dimension; dimensions without any are left out."""
    exposed = [
        {leaf.path: ns for leaf, ns in zip(LEAVES, add_up(rows), strict=True)}
        for rows in (found.before, found.after)
    ]
    sums = [
        _communication(side, [getattr(p, name) for p in pairs], basis)
        for side, name in ((before, "before"), (after, "after"))
    ]
    rows = []
    for dimension in DIMENSIONS:
        leaf = f"exposed_comm.{dimension}"
        one, two = sums[0][dimension], sums[1][dimension]
        if not (one.calls or two.calls or exposed[0][leaf] or exposed[1][leaf]):
            continue
        rows.append(
            Dimension(
                dimension=dimension,
                exposed=duration(exposed[0][leaf], exposed[1][leaf]),
                hidden=duration(_rounded(one.hidden_ns), _rounded(two.hidden_ns)),
                calls_before=float(one.calls),
                calls_after=float(two.calls),
            )
        )
    return rows


@dataclass(frozen=True, kw_only=True)
class _Sum:
    calls: Fraction = Fraction(0)
    hidden_ns: Fraction = Fraction(0)

    def plus(self, row: Communication, per: int) -> _Sum:
        return _Sum(
            calls=self.calls + Fraction(row.count, per),
            hidden_ns=self.hidden_ns + Fraction(row.hidden_ns, per),
        )


def _communication(side: Loaded, ranks: Sequence[int], basis: Basis) -> dict[str, _Sum]:
    sums = {d: _Sum() for d in DIMENSIONS}
    for i in ranks:
        rank = side.diagnosis.ranks[i]
        per = rank.window.steps if basis == "step" else 1
        for row in rank.communication:
            sums[row.dimension] = sums[row.dimension].plus(row, per)
    return sums
