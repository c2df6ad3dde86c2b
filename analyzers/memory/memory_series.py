"""Allocated memory over time, by what it is: a bounded number of moments, the peak among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.kernels.kernels import sum_by
from perfdoc.analyzers.memory.memory_categories import CATEGORIES, StackUses
from perfdoc.analyzers.memory.memory_composition import categorise
from perfdoc.analyzers.memory.memory_lifetimes import BEFORE, DeviceHistory, Lifetimes
from perfdoc.analyzers.memory.memory_ranges import EventRanges
from perfdoc.traces.table import I64

MAX_MOMENTS = 400


@dataclass(frozen=True, kw_only=True)
class MemorySeries:
    """Columns of one length. What is between two moments is not shown; the peak is one of them."""

    event: Sequence[int]
    """Position in the device's events, ascending; -1 is before the first."""
    time_ns: Sequence[int]
    """Since the first event, never descending; empty where the events have no times."""
    category_bytes: Mapping[str, Sequence[int]]
    """Allocated by category, those that are ever above 0; a moment's sum is what is allocated then."""
    reserved_bytes: Sequence[int]
    """Empty where reserved memory is not known."""
    peak: int
    """Which moment is the peak of allocated memory."""


def memory_series(
    history: DeviceHistory,
    lifetimes: Lifetimes,
    uses: StackUses,
    ranges: EventRanges,
    allocated: I64,
    reserved: I64 | None,
) -> MemorySeries:
    """The series of one device.

    allocated, reserved: at each position from BEFORE on, so that element 0 is before the first event.
    """
    at = np.unique(
        np.append(np.linspace(0, len(allocated) - 1, MAX_MOMENTS - 1).astype(int), allocated.argmax())
    )
    of_category, _ = categorise(history, lifetimes, np.arange(len(lifetimes)), uses, ranges)
    size = len(CATEGORIES)
    # What comes at a position counts in the first moment that is not before it, and in all after that.
    change = np.zeros((len(at) + 1) * size, np.int64)
    for position, sign in ((lifetimes.start, 1), (lifetimes.end, -1)):
        moment = np.searchsorted(at, position - BEFORE, "left")
        change += sign * sum_by(moment * size + of_category, lifetimes.size_bytes, len(change))
    taken = np.cumsum(change.reshape(-1, size), axis=0)[:-1]
    assert (taken.sum(axis=1) == allocated[at]).all(), "categories sum to what is allocated"
    return MemorySeries(
        event=(at + BEFORE).tolist(),
        time_ns=_times(history, at),
        category_bytes={name: taken[:, i].tolist() for i, name in enumerate(CATEGORIES) if taken[:, i].any()},
        reserved_bytes=reserved[at].tolist() if reserved is not None else [],
        peak=int(np.flatnonzero(at == allocated.argmax())[0]),
    )


def _times(history: DeviceHistory, at: I64) -> list[int]:
    time = history.snapshot.events.time_ns[history.events]
    if not len(time) or (time < 0).any():
        return []
    # Clocks may be set back; the order of the events is what the allocator vouches for.
    since = np.maximum.accumulate(time - time[0])
    return [int(t) for t in since[np.maximum(at + BEFORE, 0)]]
