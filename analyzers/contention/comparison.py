"""Two sets of durations for each of many kernels, compared all at once: quantiles and a rank test.

The test is Mann and Whitney's: it asks whether a duration of one set tends to be longer than one of the
other, whatever their distribution. Its U is compared with its normal approximation, with the correction for
ties (Kineto's microseconds tie often) and for continuity. With eight samples or more in each set p is within
0.011 of the exact one, and larger than it wherever that is below 0.01: never too sure. No p is below 2 over
the number of ways to deal the samples out, which no exact test goes below either (ties may push the
approximation there).

Few samples bound p from below whatever they are: eight and eight give 0.00094 at best. A test whose best
p is above its level cannot find anything, so a kernel that it passes is not one without a difference.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.base.rows import kept
from perfdoc.results.contention import Verdict
from perfdoc.traces.table import F64, Bool

_DURATION_BITS = 40
LONGEST_NS = (1 << _DURATION_BITS) - 1
"""18 minutes: no kernel is longer."""
_MOST_LOG_WAYS = 600.0
GAP_MIN_RATIO = 1.2
GAP_MIN_NS = 1_000
"""A gap is wide from this ratio on, and above this length: formats that round to microseconds make such."""
GROUP_MIN_FRAC = 0.1
GROUP_MIN_SAMPLES = 2


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One entry for each kernel; quantiles are -1 where the set is empty."""

    count: tuple[I64, I64]
    """Samples in the first and in the second set."""
    low_ns: tuple[I64, I64]
    """A tenth of the samples is shorter."""
    median_ns: tuple[I64, I64]
    high_ns: tuple[I64, I64]
    """A tenth of the samples is longer."""
    p_value: F64
    """Two-sided; NaN where a set is empty."""
    least_p_value: F64
    """The smallest p that these samples can give, however they fall into the sets; NaN likewise."""
    within_p_value: F64
    """One-sided p against the second set being longer by `tolerance`: small where it is proven not to be."""
    gapped: Bool
    """Whether the first set falls into two groups, each a tenth of it or more, far apart."""


def compare(
    kernel: I64, duration_ns: I64, second: Bool, kernels: int, tolerance_frac: float = 0.05
) -> Compared:
    """Compare the second set with the first one, kernel by kernel.

    kernel: index of each sample's kernel, below `kernels`; second: whether it belongs to the second set.
    """
    kernel, duration, second = _sorted(kernel, duration_ns, second, kernels)
    (kernel_0, duration_0), (kernel_1, duration_1) = (kept(s, kernel, duration) for s in (~second, second))
    sets = [kernel_0, kernel_1]
    counts = [np.bincount(k, minlength=kernels) for k in sets]
    firsts = [np.cumsum(c) - c for c in counts]
    values = [duration_0, duration_1]

    def quantile(which: int, share: float) -> I64:
        return _quantile(values[which], firsts[which], counts[which], share)

    ranked = _rank_test(kernel, duration, second, counts[0], counts[1])
    longer = np.where(second, duration, np.ceil(duration * (1 + tolerance_frac)).astype(np.int64))
    shifted = _rank_test(*_sorted(kernel, longer, second, kernels), counts[0], counts[1])
    return Compared(
        count=(counts[0], counts[1]),
        low_ns=(quantile(0, 0.1), quantile(1, 0.1)),
        median_ns=(quantile(0, 0.5), quantile(1, 0.5)),
        high_ns=(quantile(0, 0.9), quantile(1, 0.9)),
        p_value=ranked.p_value,
        least_p_value=ranked.least_p_value,
        within_p_value=shifted.shorter_p_value,
        gapped=_gapped(sets[0], values[0], firsts[0], counts[0]),
    )


def _sorted(kernel: I64, duration_ns: I64, second: Bool, kernels: int) -> tuple[I64, I64, Bool]:
    """By kernel, then duration."""
    duration = np.clip(duration_ns, 0, LONGEST_NS)
    if kernels < 1 << (63 - _DURATION_BITS):
        order = np.argsort((kernel << _DURATION_BITS) | duration)
    else:
        order = np.lexsort((duration, kernel))
    return kernel[order], duration[order], second[order]


def _gapped(kernel: I64, values: I64, first: I64, count: I64) -> Bool:
    """Whether sorted runs have a wide gap with two samples and a tenth of all, or more, on either side."""
    found = np.zeros(len(count), bool)
    if len(values) < 2 * GROUP_MIN_SAMPLES:
        return found
    below = np.arange(1, len(values)) - first[kernel[1:]]  # of its kernel's samples, before this gap
    least = np.maximum(GROUP_MIN_SAMPLES, np.ceil(GROUP_MIN_FRAC * count).astype(np.int64))[kernel[1:]]
    wide = (values[1:] >= GAP_MIN_RATIO * values[:-1]) & (values[1:] - values[:-1] > GAP_MIN_NS)
    apart = wide & (kernel[1:] == kernel[:-1]) & (below >= least) & (count[kernel[1:]] - below >= least)
    found[kernel[1:][apart]] = True
    return found


def _quantile(values: I64, first: I64, count: I64, share: float) -> I64:
    """Quantiles of sorted runs: between the two nearest samples by linear interpolation, rounded."""
    at = np.maximum(count - 1, 0) * share
    below = np.floor(at).astype(np.int64)
    above = np.minimum(below + 1, np.maximum(count - 1, 0))
    if not len(values):
        return np.full(len(count), -1, np.int64)
    last = len(values) - 1
    low = values[np.minimum(first + below, last)]
    high = values[np.minimum(first + above, last)]
    found = low + np.rint((high - low) * (at - below)).astype(np.int64)
    return np.where(count > 0, found, -1)


@dataclass(frozen=True, kw_only=True)
class _Ranked:
    p_value: F64
    least_p_value: F64
    shorter_p_value: F64
    """One-sided: small where the second set is shorter."""


def _rank_test(kernel: I64, duration: I64, second: Bool, n0: I64, n1: I64) -> _Ranked:
    """p of every kernel; samples sorted by kernel, then duration."""
    kernels = len(n0)
    if not len(kernel):
        nothing = np.full(kernels, np.nan)
        return _Ranked(p_value=nothing, least_p_value=nothing, shorter_p_value=nothing)
    fresh = np.ones(len(kernel), bool)
    fresh[1:] = (kernel[1:] != kernel[:-1]) | (duration[1:] != duration[:-1])
    run_first = np.flatnonzero(fresh)
    run_length = np.diff(np.append(run_first, len(kernel)))
    run_kernel = kernel[run_first]
    group_first = np.cumsum(n0 + n1) - (n0 + n1)
    # Equal durations share the mean of their ranks, which count from 1 within the kernel.
    rank = run_first - group_first[run_kernel] + (run_length + 1) / 2
    of_second = np.add.reduceat(second.astype(np.int64), run_first)
    rank_sum = np.bincount(run_kernel, weights=rank * of_second, minlength=kernels)
    length = run_length.astype(np.float64)
    ties = np.bincount(run_kernel, weights=length**3 - length, minlength=kernels)

    a, b = n0.astype(np.float64), n1.astype(np.float64)
    total = a + b
    longer = rank_sum - b * (b + 1) / 2 - a * b / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        deviation = np.sqrt(a * b / 12 * (total + 1 - ties / (total * (total - 1))))
    known = (n0 > 0) & (n1 > 0)
    floor = np.array([_ways(x, y) for x, y in zip(n0.tolist(), n1.tolist(), strict=True)])

    def beyond(away: F64) -> F64:
        """The chance to be so far up or further, with the correction for continuity."""
        with np.errstate(divide="ignore", invalid="ignore"):
            z = np.where(deviation > 0, (away - 0.5) / deviation, 0.0)
        p = np.array([math.erfc(x / math.sqrt(2)) / 2 for x in z.tolist()])
        return np.where(known, np.clip(p, 1 / floor, 1.0), np.nan)

    return _Ranked(
        p_value=np.minimum(2 * beyond(np.abs(longer)), 1.0),
        least_p_value=np.minimum(2 * beyond(a * b / 2), 1.0),
        shorter_p_value=beyond(-longer),
    )


def _ways(first: int, second: int) -> float:
    """Ways to deal so many samples out to the two sets, or a bound where they are too many to count."""
    log = math.lgamma(first + second + 1) - math.lgamma(first + 1) - math.lgamma(second + 1)
    return math.exp(log) if log < _MOST_LOG_WAYS else math.exp(_MOST_LOG_WAYS)


MIN_SAMPLES = 8
"""Of each set: with fewer no difference is called one."""
SIGNIFICANCE = 0.05
"""Chance of calling any kernel of one kind slower that is not; and each one as slow as alone that is not."""
SLOWER_MIN_FRAC = 0.05
"""A smaller difference of the medians is called none: clocks and memory traffic make as much."""
MIXED_MAX_RATIO = 1.5
"""Runs alone that spread further (longest tenth over shortest tenth) hardly do the same work each."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A verdict, and what it lacks where it is none."""

    verdict: Verdict
    reason: str


def judge(found: Compared, mine: Bool) -> dict[int, Judged]:
    """Verdicts on the kernels of one kind, by index; `mine` says which these are.

    found: compared with tolerance_frac=SLOWER_MIN_FRAC. The kernels' tests share SIGNIFICANCE by Holm's
    procedure, over those whose samples suffice to pass: 70 kernels of eight and eight runs give no p below
    0.00094, and 0.05 / 70 is less than that. Of such the 53 that come first are tested, the rest are not.
    """
    enough = (found.count[0] >= MIN_SAMPLES) & (found.count[1] >= MIN_SAMPLES) & mine
    tested = _testable(found.least_p_value, enough)
    differs = _holm(found.p_value, tested)
    low, median, high = found.low_ns, found.median_ns, found.high_ns
    slower = differs & (median[1] >= (1 + SLOWER_MIN_FRAC) * median[0])
    within = found.within_p_value < SIGNIFICANCE
    reasons = (
        ("too_few_samples", ~enough, ""),
        ("mixed_work", found.gapped, "runs alone fall into groups of different length: different work"),
        ("mixed_work", high[0] > MIXED_MAX_RATIO * low[0], "runs alone spread too far to be the same work"),
        ("mixed_work", high[1] < low[0], "runs beside communication are faster: they do other work"),
        ("slower", slower, ""),
        ("no_difference", within, ""),
        (
            "undecided",
            enough & ~tested,
            f"too few runs to prove anything of one of {int(enough.sum()):,} kernels tested together",
        ),
        ("undecided", enough, "inconclusive: too few runs, or too scattered"),
    )
    verdicts: dict[int, Judged] = {}
    for i in np.flatnonzero(mine).tolist():
        verdict, _, reason = next(r for r in reasons if r[1][i])
        if verdict == "too_few_samples":
            alone, beside = int(found.count[0][i]), int(found.count[1][i])
            reason = (
                f"{alone:,} runs alone and {beside:,} beside communication; {MIN_SAMPLES} of each are needed"
            )
        verdicts[i] = Judged(verdict=verdict, reason=reason)  # type: ignore[arg-type]
    return verdicts


def _testable(least_p: F64, enough: Bool) -> Bool:
    """As many kernels as can be tested together such that each of them could pass the strictest level.

    The smallest p that a kernel can reach depends on how many samples it has and not on which of them ran
    beside communication, so to choose by it leaves the tests' level as it is (Tarone, 1990).
    """
    rows: I64 = np.flatnonzero(enough)
    rows = rows[np.argsort(least_p[rows], kind="stable")]
    could = least_p[rows] <= SIGNIFICANCE / np.arange(1, len(rows) + 1)
    found = np.zeros(len(enough), bool)
    found[rows[: len(rows) if could.all() else int(np.argmin(could))]] = True
    return found


def _holm(p: F64, tested: Bool) -> Bool:
    """Those of the tested whose difference is more than chance, all tests together."""
    rows = np.flatnonzero(tested)
    rows = rows[np.argsort(p[rows], kind="stable")]
    passes = p[rows] <= SIGNIFICANCE / np.arange(len(rows), 0, -1)
    found = np.zeros(len(tested), bool)
    found[rows[: len(rows) if passes.all() else int(np.argmin(passes))]] = True
    return found
