"""What the scatter of runs explains.

The figures of n baseline runs scatter with standard deviation s; where nothing changed, the mean of k new
ones lies with 99 % probability less than

    t(0.99, n - 1) * s * sqrt(1/k + 1/n)

above theirs (one-sided prediction interval of a normal distribution). A few baseline runs may agree by
chance, all of them from a quick stretch of a machine that others use. New runs that scatter more tell of
that, so the same is computed with the scatter of both sides together, of n + k - 2 degrees of freedom, and
the larger counts: new runs can widen the limit, never narrow it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import lru_cache

CONFIDENCE = 0.99
MIN_SPREAD_FRAC = 0.002
"""Few runs may agree by chance: no less spread than this is believed."""


def spread_of(values: Sequence[int], of: float) -> float:
    """Standard deviation as a fraction of `of`; 0 of a single value, which shows none."""
    return statistics.stdev(values) / of if len(values) > 1 else 0.0


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


@lru_cache(maxsize=256)
def student_t(freedom: int, confidence: float = CONFIDENCE) -> float:
    """Student's t: what one of so many degrees of freedom stays below with that probability."""
    from scipy.stats import t  # 0.4 s to import, so only where it is used

    return float(t.ppf(confidence, freedom))
