"""Two sets of durations for each of many kernels, compared all at once: quantiles and a rank test.

The test is Mann and Whitney's: it asks whether a duration of one set tends to be longer than one of the
other, whatever their distribution. Its U is compared with its normal approximation, with the correction for
ties (Kineto's microseconds tie often) and for continuity. With eight samples or more in each set p is within
0.011 of the exact one, and larger than it wherever that is below 0.01: never too sure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfdoc.analyzers.intervals import I64
from perfdoc.traces.table import Bool

F64 = NDArray[np.float64]

_DURATION_BITS = 40
LONGEST_NS = (1 << _DURATION_BITS) - 1
"""18 minutes: no kernel is longer."""


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


def compare(kernel: I64, duration_ns: I64, second: Bool, kernels: int) -> Compared:
    """Compare the second set with the first one, kernel by kernel.

    kernel: index of each sample's kernel, below `kernels`; second: whether it belongs to the second set.
    """
    duration = np.clip(duration_ns, 0, LONGEST_NS)
    if kernels < 1 << (63 - _DURATION_BITS):
        order = np.argsort((kernel << _DURATION_BITS) | duration)
    else:
        order = np.lexsort((duration, kernel))
    kernel, duration, second = kernel[order], duration[order], second[order]
    sets = [kernel[~second], kernel[second]]
    counts = [np.bincount(k, minlength=kernels) for k in sets]
    firsts = [np.cumsum(c) - c for c in counts]
    values = [duration[~second], duration[second]]

    def quantile(which: int, share: float) -> I64:
        return _quantile(values[which], firsts[which], counts[which], share)

    return Compared(
        count=(counts[0], counts[1]),
        low_ns=(quantile(0, 0.1), quantile(1, 0.1)),
        median_ns=(quantile(0, 0.5), quantile(1, 0.5)),
        high_ns=(quantile(0, 0.9), quantile(1, 0.9)),
        p_value=_rank_test(kernel, duration, second, counts[0], counts[1]),
    )


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


def _rank_test(kernel: I64, duration: I64, second: Bool, n0: I64, n1: I64) -> F64:
    """p of every kernel; samples sorted by kernel, then duration."""
    kernels = len(n0)
    if not len(kernel):
        return np.full(kernels, np.nan)
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
    away = np.abs(rank_sum - b * (b + 1) / 2 - a * b / 2) - 0.5
    with np.errstate(divide="ignore", invalid="ignore"):
        variance = a * b / 12 * (total + 1 - ties / (total * (total - 1)))
        z = np.where(variance > 0, np.maximum(away, 0) / np.sqrt(variance), 0.0)
    p = np.array([math.erfc(x / math.sqrt(2)) for x in z.tolist()])
    return np.where((n0 > 0) & (n1 > 0), p, np.nan)
