"""The steps that a run logged without the profiler: more of them, and none that it slowed down.

Their medians are compared, as the gate does, since logged steps have tails. The interval is a bootstrap's:
each side's steps are drawn again with replacement, and the medians' differences of all draws have their 0.5 %
and 99.5 % bounds. What draws a side is its own content, so that the way back is exactly the negative.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from perfdoc.analyzers.base.intervals import I64
from perfdoc.diff.noise import CONFIDENCE
from perfdoc.diff.result import Logged, duration

MIN_STEPS = 10
"""A median of fewer steps has no interval worth its name."""
DRAWS = 2000


def logged(before_ns: I64, after_ns: I64) -> Logged | None:
    """The change of the median logged step; None where a side has none."""
    if not len(before_ns) or not len(after_ns):
        return None
    medians = [round(float(np.median(x))) for x in (before_ns, after_ns)]
    low = high = None
    if min(len(before_ns), len(after_ns)) >= MIN_STEPS:
        change = _drawn_medians(after_ns) - _drawn_medians(before_ns)
        tail = (1 - CONFIDENCE) / 2
        low, high = (round(float(q)) for q in np.quantile(change, (tail, 1 - tail)))
    return Logged(
        median=duration(medians[0], medians[1]),
        before_steps=len(before_ns),
        after_steps=len(after_ns),
        low_ns=low,
        high_ns=high,
        within_noise=None if low is None or high is None else low <= 0 <= high,
    )


def _drawn_medians(times_ns: I64) -> npt.NDArray[np.float64]:
    seed = int.from_bytes(hashlib.sha256(times_ns.astype("<i8").tobytes()).digest()[:8], "little")
    drawn = np.random.default_rng(seed).integers(0, len(times_ns), (DRAWS, len(times_ns)))
    found: npt.NDArray[np.float64] = np.median(times_ns[drawn], axis=1)
    return found
