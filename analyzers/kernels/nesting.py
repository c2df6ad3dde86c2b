"""Nested spans of one thread: which is inside which, and which is innermost at a time. No loop over rows."""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.records import dataclass
from perfdoc.traces.table import Bool

NONE = -1
DEEPEST = 500
"""Spans nested deeper are left out: no program nests so deep, a hostile trace may."""


@dataclass(frozen=True, kw_only=True)
class Nesting:
    """Spans of one thread in the order of their starts, outer before inner."""

    row: I64
    """Position of each in what was given."""
    parent: I64
    """Position, in this order, of the span right around it; NONE (-1)."""
    levels: list[I64]
    """Positions by depth: the outermost first."""
    time_ns: I64
    """When the innermost span changes."""
    innermost: I64
    """From each of these times on: position, in this order; NONE."""

    def at(self, time_ns: I64) -> I64:
        """The innermost span that is open at each time, as a position in this order; NONE."""
        return value_at(self.time_ns, self.innermost, time_ns)


def value_at(change_ns: I64, value: I64, time_ns: I64) -> I64:
    """What holds at each time, of values that hold from their changes on (ascending); NONE before the first.

    >>> value_at(np.array([10, 20]), np.array([7, 8]), np.array([9, 10, 25])).tolist()
    [-1, 7, 8]
    """
    at = np.searchsorted(change_ns, time_ns, "right") - 1
    return np.asarray(np.append(value, NONE).take(at))  # the last is where -1 looks


def nest(start_ns: I64, end_ns: I64) -> Nesting:
    """Nest the half-open spans of one thread; empty ones are dropped.

    A span that reaches beyond the one it starts in (Kineto rounds to microseconds) is cut at its end.
    """
    row = np.flatnonzero(end_ns > start_ns)
    row = row[np.lexsort((-end_ns[row], start_ns[row]))]
    start, end = start_ns[row], end_ns[row]
    depth, parent = _depths(start, end)
    if not _nested(end, parent):
        end = _cut(start, end)
        whole = end > start
        row, start, end = row[whole], start[whole], end[whole]
        depth, parent = _depths(start, end)
    if len(depth) and int(depth.max()) >= DEEPEST:
        kept = depth < DEEPEST
        row, start, end = row[kept], start[kept], end[kept]
        depth, parent = _depths(start, end)
    time, innermost = _changes(start, end, parent)
    order = np.argsort(depth, kind="stable")
    levels = np.split(order, np.flatnonzero(np.diff(depth[order])) + 1) if len(depth) else []
    return Nesting(row=row, parent=parent, levels=levels, time_ns=time, innermost=innermost)


def _depths(start: I64, end: I64) -> tuple[I64, I64]:
    """How many spans each lies in, and the innermost of them."""
    count = len(start)
    at = np.arange(count)
    # Of those before it, the ones that have ended are no longer around it.
    depth = at - np.searchsorted(np.sort(end), start, "right")
    # The last one before it that lies one level higher.
    key = np.sort(depth * count + at)
    before = key[np.maximum(np.searchsorted(key, (depth - 1) * count + at) - 1, 0)] if count else key
    return depth, np.where(depth > 0, before % max(count, 1), NONE)


def _nested(end: I64, parent: I64) -> bool:
    inner = parent >= 0
    return bool((end[inner] <= end[parent[inner]]).all())


def _cut(start: I64, end: I64) -> I64:
    """Ends, none beyond that of a span which is open at the start. Only for spans that cross."""
    until: list[int] = []
    open_ends: list[int] = []
    for a, b in zip(start.tolist(), end.tolist(), strict=True):
        while open_ends and open_ends[-1] <= a:
            open_ends.pop()
        until.append(min(b, open_ends[-1]) if open_ends else b)
        open_ends.append(until[-1])
    return np.array(until, np.int64)


def _changes(start: I64, end: I64, parent: I64) -> tuple[I64, I64]:
    count = len(start)
    time = np.concatenate((end, start))
    innermost = np.concatenate((parent, np.arange(count)))
    # At one time: ends before starts, inner ends before outer ones, outer starts before inner ones.
    begun = np.concatenate((-np.arange(count), np.arange(count)))
    is_start = np.repeat((0, 1), count)
    order = np.lexsort((begun, is_start, time))
    time, innermost = time[order], innermost[order]
    last: Bool = np.append(time[1:] != time[:-1], True) if count else np.empty(0, bool)
    return time[last], innermost[last]
