"""Figures of a series of step times: distribution, steady part, range of the median, outliers.

All of them rest on order statistics: step times have a long upper tail, which means and standard deviations
follow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.base.intervals import I64

MAD_TO_SIGMA = 1.4826
"""The median absolute deviation of a normal distribution times this is its standard deviation."""
MIN_WARMUP_STEPS = 8
"""Fewer steps than this show no warm-up: half of them must be steady enough to measure the rest by."""
SLOW_SIGMAS = 4.0
OUTLIER_SIGMAS = 5.0
MIN_EXCESS_FRAC = 0.02
"""A step within 2 % of the median is neither slow nor an outlier, however steady the others are."""
MIN_OUTLIER_STEPS = 5
CONFIDENCE = 0.9
_NORMAL_90 = 1.645
_MANY = 500


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """Step times in nanoseconds; percentiles interpolate linearly."""

    count: int
    median_ns: int
    p10_ns: int
    p90_ns: int
    min_ns: int
    max_ns: int
    variation_frac: float
    """Coefficient of variation: standard deviation by mean."""


def distribution(times_ns: I64) -> Distribution | None:
    """The distribution of step times; None where there is none."""
    if not len(times_ns):
        return None
    p10, median, p90 = (round(float(v)) for v in np.percentile(times_ns, (10, 50, 90)))
    mean = float(times_ns.mean())
    return Distribution(
        count=len(times_ns),
        median_ns=median,
        p10_ns=p10,
        p90_ns=p90,
        min_ns=int(times_ns.min()),
        max_ns=int(times_ns.max()),
        variation_frac=float(times_ns.std()) / mean if mean else 0.0,
    )


def warmup_steps(times_ns: I64) -> int | None:
    """How many of the first steps are warm-up; None where there are too few steps to tell.

    The second half of the steps says what is normal: its median, and its median absolute deviation (MAD). A
    step is slow if it is above the median by more than 4 scaled MADs and 2 %. The change-point is the length
    of the start in which slow steps outnumber the others by most (the shortest such), so one quick step does
    not end the warm-up, and a slow one later on does not belong to it. At most half of the steps are warm-up.

    >>> warmup_steps(np.array([90, 40, 11, 10, 10, 10, 10, 10, 30, 10]))
    3
    """
    if len(times_ns) < MIN_WARMUP_STEPS:
        return None
    half = len(times_ns) // 2
    slow = times_ns[:half] > _threshold(times_ns[half:], SLOW_SIGMAS)
    lead = np.concatenate(([0], np.cumsum(np.where(slow, 1, -1))))
    return int(np.argmax(lead))


def outliers(times_ns: I64) -> I64:
    """Positions of steps above the median by more than 5 scaled MADs and 2 %; none where steps are few."""
    if len(times_ns) < MIN_OUTLIER_STEPS:
        return np.empty(0, np.int64)
    return np.flatnonzero(times_ns > _threshold(times_ns, OUTLIER_SIGMAS))


def _threshold(times_ns: I64, sigmas: float) -> float:
    median = float(np.median(times_ns))
    sigma = MAD_TO_SIGMA * float(np.median(np.abs(times_ns - median)))
    return median + max(sigmas * sigma, MIN_EXCESS_FRAC * median)


def median_range(times_ns: I64) -> tuple[int, int]:
    """Two of the values between which the true median lies with at least 90 % confidence, whatever the
    distribution: order statistics k and n + 1 - k, k the largest that gives it; the extremes where none does.

    The count of values below the median is binomial with p = 1/2. Below five values even the extremes give
    less (3: 75 %).
    """
    ordered = np.sort(times_ns)
    k = _rank_of_bound(len(ordered))
    return int(ordered[k - 1]), int(ordered[-k])


def _rank_of_bound(n: int) -> int:
    if n > _MANY:  # the normal approximation is within one rank
        return int(n / 2 - _NORMAL_90 * math.sqrt(n) / 2)
    tail, k = 0.0, 0
    while k < n // 2:
        tail += math.comb(n, k) / 2**n
        if 1 - 2 * tail < CONFIDENCE:
            break
        k += 1
    return max(k, 1)
