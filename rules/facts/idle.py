"""Thresholds of host-caused idle time, and what of it is no matter of launching."""

from __future__ import annotations

from perfdoc.analyzers.measure_device import RankMeasurement

MIN_HOST_FRAC = 0.05
"""Launch-bound: idle time of the window, mean over ranks; or the predicted gain of the step, other ranks'
waits included."""
MIN_GC_FRAC = 0.01
"""Garbage collection: the same."""


def waiting_ns(rank: RankMeasurement) -> int:
    """idle.host in which the launching thread waited for something other than the device; 0 where unknown."""
    return rank.host.idle_split.waiting_ns or 0


def between_steps_ns(rank: RankMeasurement) -> int:
    """idle.host in long pauses between steps without a CUDA call, waiting left out; 0 where unknown."""
    return rank.host.idle_split.between_steps_ns or 0


def launching_ns(rank: RankMeasurement) -> int:
    """idle.host less both: what fewer or faster launches can act on."""
    return max(rank.ledger.idle.host - waiting_ns(rank) - between_steps_ns(rank), 0)
