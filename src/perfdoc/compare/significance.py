"""What chance explains of a difference between runs: by their scatter, and by their order alone.

The figures of n baseline runs scatter with standard deviation s; where nothing changed, the mean of k new
ones lies with 99 % probability less than

    t(0.99, n - 1) * s * sqrt(1/k + 1/n)

above theirs (one-sided prediction interval of a normal distribution). A few baseline runs may agree by
chance, all of them from a quick stretch of a machine that others use. New runs that scatter more tell of
that, so the same is computed with the scatter of both sides together, of n + k - 2 degrees of freedom, and
the larger counts: new runs can widen the limit, never narrow it.

Where nothing changed and runs are exchangeable, every choice of k places among the n + k ordered runs is as
likely for the new ones, whatever the distribution: normal, with tails, or of two modes. So an order as clear
as the one seen comes by chance with a probability that is counted exactly (the test of Mann and Whitney).

Of the steps of two runs the means are compared by Welch's interval: with means m, variances v and n steps on
either side, the change of the mean step lies in

    (m2 - m1) +- t(0.995, f) * sqrt(v1/n1 + v2/n2)

where steps are independent and scatter normally; f as Welch and Satterthwaite have it. Medians are compared
by a bootstrap: each side's steps are drawn again with replacement, and the medians' differences of all draws
have their 0.5 % and 99.5 % bounds. What draws a side is its own content, so that the way back is exactly the
negative.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from perfdoc.analyzers.base.intervals import I64
from perfdoc.compare.student import student_t
from perfdoc.results.figures import per_cent

F64: TypeAlias = npt.NDArray[np.float64]
CONFIDENCE = 0.99
MIN_SPREAD_FRAC = 0.002
"""Few runs may agree by chance: no less spread than this is believed."""


def spread_of(values: Sequence[float], of: float) -> float:
    """Standard deviation as a fraction of `of`; 0 of a single value, which shows none."""
    if len(values) < 2:
        return 0.0
    mean = statistics.fmean(values)  # statistics.stdev works with fractions: 30 times as long
    return math.sqrt(math.fsum((x - mean) ** 2 for x in values) / (len(values) - 1)) / of


def noise_frac(
    spread_frac: float,
    freedom: int,
    baseline_runs: int,
    new_runs: int,
    *,
    new_spread_frac: float = 0.0,
    confidence: float = CONFIDENCE,
) -> float:
    """What may be noise. freedom: of the runs that spread_frac is from, not always all baseline runs.

    Worked: five baseline runs of s = 1 % against three that scatter by 3 %: alone 3.747 * 1 % * 0.730 =
    2.74 %; together s = sqrt((4 * 1 + 2 * 9) / 6) = 1.915 %, and 3.143 * 1.915 % * 0.730 = 4.40 %, which
    counts.
    """
    reach = math.sqrt(1 / new_runs + 1 / baseline_runs)
    both = freedom + new_runs - 1
    pooled = math.sqrt((freedom * spread_frac**2 + (new_runs - 1) * new_spread_frac**2) / both)
    return reach * max(
        student_t(f, confidence) * max(s, MIN_SPREAD_FRAC)
        for s, f in ((spread_frac, freedom), (pooled, both))
    )


def two_sided_t(freedom: float, confidence: float) -> float:
    """Student's t: what one of so many degrees of freedom stays within, on either side of 0."""
    return student_t(freedom, (1 + confidence) / 2)


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Where a change lies; ns."""

    low_ns: float
    high_ns: float

    @property
    def holds_zero(self) -> bool:
        """Whether no change at all is inside."""
        return self.low_ns <= 0 <= self.high_ns


def welch(before: F64, after: F64) -> Interval:
    """The interval of the change of the mean; both sides have two values or more.

    >>> welch(np.array([10.0, 10.0]), np.array([12.0, 12.0]))
    Interval(low_ns=2.0, high_ns=2.0)
    """
    change = float(after.mean() - before.mean())
    parts = [float(x.var(ddof=1)) / len(x) for x in (before, after)]
    error = math.sqrt(sum(parts))
    if error == 0:
        return Interval(low_ns=change, high_ns=change)
    freedom = sum(parts) ** 2 / sum(p**2 / (len(x) - 1) for p, x in zip(parts, (before, after), strict=True))
    reach = two_sided_t(freedom, CONFIDENCE) * error
    return Interval(low_ns=change - reach, high_ns=change + reach)


DRAWS = 2000


def of_medians(before_ns: I64, after_ns: I64) -> Interval:
    """The interval of the change of the median, by drawing each side again."""
    change = _drawn_medians(after_ns) - _drawn_medians(before_ns)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(change, (tail, 1 - tail))
    return Interval(low_ns=float(low), high_ns=float(high))


def _drawn_medians(times_ns: I64) -> F64:
    seed = int.from_bytes(hashlib.sha256(times_ns.astype("<i8").tobytes()).digest()[:8], "little")
    drawn = np.random.default_rng(seed).integers(0, len(times_ns), (DRAWS, len(times_ns)))
    found: F64 = np.median(times_ns[drawn], axis=1)
    return found


MOST_BY_CHANCE = 0.01
_MOST_NAMED = 99


def slower_by_order(baseline: Sequence[float], new: Sequence[float], most: float = MOST_BY_CHANCE) -> bool:
    """Whether the order of the runs is one that chance makes in a share of `most` of cases or less.

    Few runs have no such order (5 and 3 have 56 choices of places): then the clearest one is asked for, every
    new run slower than every baseline run. Equal figures count against it.

    >>> slower_by_order([1, 2, 3, 4, 5], [6, 7, 8]), slower_by_order([1, 2, 3, 4, 6], [5, 7, 8])
    (True, False)
    """
    n, k = len(baseline), len(new)
    slower = sum(x > y for x in new for y in baseline)
    ways = math.comb(n + k, k)
    as_clear = sum(_ways(n, k, n * k - slower))
    return as_clear <= max(most * ways, 1)


def by_order_alone(ways: int, chances: Sequence[float]) -> float:
    """What orders alone allow of false alarms, of all tests together: of each the clearest of so many ways.

    >>> by_order_alone(1000, [0.005, 0.005]), by_order_alone(50, [0.005, 0.005])
    (0.01, 0.04)
    """
    return sum(max(math.floor(chance * ways), 1) for chance in chances) / ways


def few_orders(baseline_runs: int, new_runs: int, chances: Sequence[float] = (MOST_BY_CHANCE,)) -> list[str]:
    """A note where orders of so many runs allow more than 1 % of false alarms. chances: of each test.

    >>> few_orders(7, 3)
    []
    """

    def allowed(new: int) -> float:
        return by_order_alone(math.comb(baseline_runs + new, new), chances)

    if (most := allowed(new_runs)) <= MOST_BY_CHANCE:
        return []
    enough = next((k for k in range(new_runs, _MOST_NAMED + 1) if allowed(k) <= MOST_BY_CHANCE), None)
    return [
        f"false alarms in up to {per_cent(most)} of cases if scatter is not normal: so often all new runs of "
        f"{baseline_runs} and {new_runs} equal ones may be slower"
        + (f"; at most 1 % with {enough} new runs" if enough else "")
    ]


def slower_in_pairs(changes: Sequence[float], most: float = MOST_BY_CHANCE) -> bool:
    """The same of pairs: changes that are positive where the new run is the slower one of its pair.

    Where nothing changed each is as likely to have the other sign, so every choice of signs for these sizes
    is as likely, whatever the sizes (Wilcoxon's signed ranks). Of fewer than 7 pairs all must be slower. A
    change of 0 counts against it.

    >>> slower_in_pairs([1, 2, 3, 4, 5]), slower_in_pairs([-1, 2, 3, 4, 5])
    (True, False)
    """
    n = len(changes)
    sizes = [abs(c) for c in changes]
    # Twice the mean of the places that equal sizes share, so that it is whole.
    ranks = [sum(s < size for s in sizes) + sum(s <= size for s in sizes) + 1 for size in sizes]
    against = sum(r for r, c in zip(ranks, changes, strict=True) if c <= 0)
    if 2 * against >= sum(ranks):
        return False
    ways = [1] + [0] * against
    for rank in ranks:
        for j in range(against, rank - 1, -1):
            ways[j] += ways[j - rank]
    as_clear = sum(ways)
    return as_clear <= max(most * (1 << n), 1)


def few_pairs(pairs: int, chances: Sequence[float] = (MOST_BY_CHANCE,)) -> list[str]:
    """A note where the signs of so many pairs allow more than 1 % of false alarms. chances: of each test.

    >>> few_pairs(7)
    []
    """
    if (most := by_order_alone(2**pairs, chances)) <= MOST_BY_CHANCE:
        return []
    enough = next(n for n in count(pairs) if by_order_alone(2**n, chances) <= MOST_BY_CHANCE)
    return [
        f"false alarms in up to {per_cent(most)} of cases if scatter is not normal: so often the new run may "
        f"be slower in all of {pairs} pairs of equal runs; at most 1 % with {enough} pairs"
    ]


def _ways(n: int, k: int, most: int) -> list[int]:
    """Of the choices of k places among n + k, how many have 0, 1, … `most` pairs the wrong way round.

    The coefficients of the Gaussian binomial: the product of (1 - q^(n+i)) / (1 - q^i) over i = 1 … k.
    """
    counts = [1] + [0] * most
    for i in range(1, k + 1):
        for j in range(most, n + i - 1, -1):
            counts[j] -= counts[j - n - i]
        for j in range(i, most + 1):
            counts[j] += counts[j - i]
    return counts
