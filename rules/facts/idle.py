"""Thresholds of host-caused idle time."""

from __future__ import annotations

MIN_HOST_FRAC = 0.05
"""Launch-bound: idle time of the window, mean over ranks; or the predicted gain of the step, other ranks'
waits included."""
MIN_GC_FRAC = 0.01
"""Garbage collection: the same."""
