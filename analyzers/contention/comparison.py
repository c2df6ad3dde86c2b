"""Two sets of durations for each of many kernels, compared: quantiles and a rank test.

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
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.records import dataclass
from perfdoc.results.contention import Verdict
from perfdoc.traces.table import F64, Bool

LONGEST_NS = (1 << 40) - 1
"""18 minutes: no kernel is longer."""
_PACKED = 1 << 22
"""Kernels whose numbers and sets fit beside LONGEST_NS in 63 bits."""
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
    duration = np.clip(duration_ns, 0, LONGEST_NS)
    # Two sets a kernel, each sorted: by one number of both, where it fits.
    if kernels < _PACKED:
        packed = np.sort((2 * kernel.astype(np.int64, copy=False) + second) << 40 | duration)
        ends, ordered = packed.searchsorted(np.arange(1, 2 * kernels) << 40), packed & LONGEST_NS
    else:
        order = np.lexsort((duration, second, kernel))
        ends = (2 * kernel + second)[order].searchsorted(np.arange(1, 2 * kernels))
        ordered = duration[order]
    sets = np.split(ordered, ends)
    pairs = list(zip(sets[::2], sets[1::2], strict=False))[:kernels]
    tests = [_rank_test(first, later) for first, later in pairs]
    longer = [np.ceil(first * (1 + tolerance_frac)).astype(np.int64) for first, _ in pairs]
    within = [_rank_test(first, later) for first, (_, later) in zip(longer, pairs, strict=True)]

    def of_both(measure: Callable[[I64], int]) -> tuple[I64, I64]:
        return (
            np.array([measure(first) for first, _ in pairs], np.int64),
            np.array([measure(later) for _, later in pairs], np.int64),
        )

    return Compared(
        count=of_both(len),
        low_ns=of_both(partial(_quantile, share=0.1)),
        median_ns=of_both(partial(_quantile, share=0.5)),
        high_ns=of_both(partial(_quantile, share=0.9)),
        p_value=np.array([test.p_value for test in tests], np.float64),
        least_p_value=np.array([test.least_p_value for test in tests], np.float64),
        within_p_value=np.array([test.shorter_p_value for test in within], np.float64),
        gapped=np.array([_gapped(first) for first, _ in pairs], bool),
    )


def _gapped(values: I64) -> bool:
    """Whether sorted runs have a wide gap with two samples and a tenth of all, or more, on either side."""
    least = max(GROUP_MIN_SAMPLES, math.ceil(GROUP_MIN_FRAC * len(values)))
    wide = (values[1:] >= GAP_MIN_RATIO * values[:-1]) & (np.diff(values) > GAP_MIN_NS)
    return bool(wide[least - 1 : len(values) - least].any())


def _quantile(values: I64, share: float) -> int:
    """Of sorted runs: between the two nearest samples by linear interpolation, rounded; -1 of none."""
    if not len(values):
        return -1
    at = (len(values) - 1) * share
    low, high = int(values[int(at)]), int(values[min(int(at) + 1, len(values) - 1)])
    return low + round((high - low) * (at - int(at)))


class _Ranked(NamedTuple):
    p_value: float
    least_p_value: float
    shorter_p_value: float
    """One-sided: small where the second set is shorter."""


def _rank_test(first: I64, second: I64) -> _Ranked:
    a, b = len(first), len(second)
    if not a or not b:
        return _Ranked(math.nan, math.nan, math.nan)
    both = np.sort(np.concatenate((first, second)), kind="stable")  # of two sorted sets in linear time
    less, up_to = (both.searchsorted(second, side) for side in ("left", "right"))
    length = np.diff(np.flatnonzero(np.append(True, both[1:] != both[:-1])), append=len(both))
    # Equal durations share the mean of their ranks, which count from 1.
    longer = float((less + up_to + 1).sum()) / 2 - b * (b + 1) / 2 - a * b / 2
    ties = float((length.astype(np.float64) ** 3 - length).sum())
    deviation = math.sqrt(max(a * b / 12 * (a + b + 1 - ties / ((a + b) * (a + b - 1))), 0.0))
    least = 1 / _ways(a, b)

    def beyond(away: float) -> float:
        """The chance to be so far up or further, with the correction for continuity."""
        z = (away - 0.5) / deviation if deviation > 0 else 0.0
        return min(max(math.erfc(z / math.sqrt(2)) / 2, least), 1.0)

    return _Ranked(min(2 * beyond(abs(longer)), 1.0), min(2 * beyond(a * b / 2), 1.0), beyond(-longer))


def _ways(first: int, second: int) -> float:
    """Ways to deal so many samples out to the two sets, or a bound where they are too many to count."""
    log = math.lgamma(first + second + 1) - math.lgamma(first + 1) - math.lgamma(second + 1)
    return math.exp(min(log, _MOST_LOG_WAYS))


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
