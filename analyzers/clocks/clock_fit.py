"""A line through noisy differences of clocks, robust against the few that are far off."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.clocks.clock_graph import F64

FEWEST_FOR_OFFSET = 5
"""Fewer matched ends than this do not move a clock: with one, any offset fits."""
FEWEST_FOR_DRIFT = 24
SHORTEST_FOR_DRIFT_NS = 10_000_000
_BINS = 32
_PER_BIN = 6
_TO_SIGMA = 1.4826
"""Median absolute deviation to standard deviation, for normal noise."""
_OF_MEDIAN = 1.2533
"""Standard error of a median over that of a mean."""
_SIGNIFICANT = 4.0
_SMALLEST_ERROR_NS = 1.0
_SMALLEST_OFFSET_ERROR_NS = 100.0
"""Ends differ by the length of the way that data take, which no number of them averages out."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """difference = offset_ns + drift * time, time in ns from 0."""

    offset_ns: float
    offset_error_ns: float
    drift: float | None
    """ns per ns; 0 where it is not told from 0, None where there is too little to say."""
    drift_error: float


def fit_line(time_ns: F64, difference_ns: F64) -> Line:
    """Median of slopes between medians of bins, then the median of what is left."""
    count = len(time_ns)
    centre = float(np.median(time_ns))
    drift, drift_error = None, np.inf
    spread_ns = float(np.std(time_ns))
    if count >= FEWEST_FOR_DRIFT and float(np.ptp(time_ns)) >= SHORTEST_FOR_DRIFT_NS and spread_ns > 0:
        slope = _median_slope(time_ns, difference_ns)
        noise = deviation(difference_ns - slope * (time_ns - centre))
        drift_error = _OF_MEDIAN * max(noise, _SMALLEST_ERROR_NS) / (np.sqrt(count) * spread_ns)
        drift = slope if abs(slope) > _SIGNIFICANT * drift_error else 0.0
    rest = difference_ns - (drift or 0.0) * time_ns
    error = _OF_MEDIAN * deviation(rest) / np.sqrt(count)
    return Line(
        offset_ns=float(np.median(rest)),
        offset_error_ns=max(float(error), _SMALLEST_OFFSET_ERROR_NS),
        drift=drift,
        drift_error=float(drift_error),
    )


def deviation(values: F64) -> float:
    """Robust standard deviation."""
    return _TO_SIGMA * float(np.median(np.abs(values - np.median(values)))) if len(values) else 0.0


def _median_slope(time_ns: F64, difference_ns: F64) -> float:
    order = np.argsort(time_ns, kind="stable")
    bins = min(_BINS, len(order) // _PER_BIN)
    # Of equal size, so that one call takes all medians; what is left over at the end is not missed.
    parts = order[: bins * (len(order) // bins)].reshape(bins, -1)
    t, d = np.median(time_ns[parts], axis=1), np.median(difference_ns[parts], axis=1)
    i, j = np.triu_indices(bins, 1)
    apart = t[j] > t[i]
    slopes = (d[j] - d[i])[apart] / (t[j] - t[i])[apart]
    return float(np.median(slopes)) if len(slopes) else 0.0
