"""Which range of a thread encloses an instant: the innermost one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.traces import Trace

if TYPE_CHECKING:  # activity asks for enclosing ranges itself
    from perfdoc.analyzers.device.activity import Communication

NONE = -1


def innermost_at_launch(trace: Trace, rows: I64, comm: Communication) -> I64:
    """For each communication the position in `rows` of the innermost of these ranges that was open on the
    launching thread when it was launched; -1 none or launch unknown."""
    at = innermost(
        trace.ranges.start_ns[rows],
        trace.ranges.end_ns[rows],
        trace.ranges.thread[rows].astype(np.int64),
        comm.launch_start_ns,
        comm.launch_thread,
    )
    return np.where(comm.launch_start_ns >= 0, at, NONE)


def innermost(start_ns: I64, end_ns: I64, range_thread: I64, time_ns: I64, thread: I64) -> I64:
    """For each (time, thread), the position of the innermost range of that thread that is open then; -1 none.

    Ranges are half-open; those of one thread are taken to nest (NVTX push/pop, record_function). Where two
    cross, the one that started last and is still open wins.
    """
    found = np.full(len(time_ns), NONE, np.int64)
    for t in np.unique(thread).tolist():
        asked = np.flatnonzero(thread == t)
        rows = np.flatnonzero(range_thread == t)
        if not len(rows):
            continue
        # Outer before inner where two start together.
        rows = rows[np.lexsort((-end_ns[rows], start_ns[rows]))]
        parent = _parents(start_ns[rows], end_ns[rows])
        time = time_ns[asked]
        at = np.searchsorted(start_ns[rows], time, "right") - 1
        ends = np.append(end_ns[rows], np.iinfo(np.int64).max)  # index -1 is open for ever: no range
        while (closed := ends[at] <= time).any():
            at = np.where(closed, parent[at], at)
        found[asked] = np.where(at >= 0, rows[np.maximum(at, 0)], NONE)
    return found


def _parents(start: I64, end: I64) -> I64:
    """For each range, sorted by start, the last earlier one that is still open when it starts; -1 none."""
    parent = np.full(len(start), NONE, np.int64)
    open_ranges: list[int] = []
    starts, ends = start.tolist(), end.tolist()
    for i, begin in enumerate(starts):
        while open_ranges and ends[open_ranges[-1]] <= begin:
            open_ranges.pop()
        parent[i] = open_ranges[-1] if open_ranges else NONE
        open_ranges.append(i)
    return parent
