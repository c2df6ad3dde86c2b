"""The ledgers, ranks and dimensions of two sides. All tables of leaves add up to the change exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from perfdoc.compare.diff.pairing import Pair
from perfdoc.compare.diff.result import Basis, Dimension, Duration, KernelsOnly, Leaf, Rank, duration
from perfdoc.compare.side import Loaded
from perfdoc.reports.leaves import LEAVES, add_up, leaf_values
from perfdoc.results import DIMENSIONS, Communication
from perfdoc.results import Rank as DiagnosedRank
from perfdoc.results.figures import apportion


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
                bytes_before=None if one.bytes is None else _rounded(one.bytes),
                bytes_after=None if two.bytes is None else _rounded(two.bytes),
            )
        )
    return rows


@dataclass(frozen=True, kw_only=True)
class _Sum:
    calls: Fraction = Fraction(0)
    hidden_ns: Fraction = Fraction(0)
    bytes: Fraction | None = Fraction(0)

    def plus(self, row: Communication, per: int) -> _Sum:
        known = self.bytes is not None and row.bytes is not None
        return _Sum(
            calls=self.calls + Fraction(row.count, per),
            hidden_ns=self.hidden_ns + Fraction(row.hidden_ns, per),
            bytes=(self.bytes or 0) + Fraction(row.bytes or 0, per) if known else None,
        )


def _communication(side: Loaded, ranks: Sequence[int], basis: Basis) -> dict[str, _Sum]:
    sums = {d: _Sum() for d in DIMENSIONS}
    for i in ranks:
        rank = side.diagnosis.ranks[i]
        per = rank.window.steps if basis == "step" else 1
        for row in rank.communication:
            sums[row.dimension] = sums[row.dimension].plus(row, per)
    return sums


def kernels_only(before: Loaded, after: Loaded, pairs: Sequence[Pair]) -> KernelsOnly | None:
    """Whole captures through kernels alone, summed over ranks; None where no rank ran any."""
    one = [before.diagnosis.ranks[p.before].kernels_only_capture for p in pairs]
    two = [after.diagnosis.ranks[p.after].kernels_only_capture for p in pairs]
    if not sum(k.kernels for k in (*one, *two)):
        return None

    def both(name: str) -> Duration:
        return duration(sum(getattr(k, name) for k in one), sum(getattr(k, name) for k in two))

    return KernelsOnly(
        kernels_before=sum(k.kernels for k in one),
        kernels_after=sum(k.kernels for k in two),
        busy=both("busy_ns"),
        compute=both("compute_ns"),
        communication=both("comm_ns"),
        exposed=both("exposed_ns"),
        idle=both("idle_ns"),
    )
