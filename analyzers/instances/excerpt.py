"""What ran on one device around an instance, in few enough bars to be read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.device.device_view import DeviceView
from perfdoc.analyzers.instances.nearby import Nearby
from perfdoc.analyzers.timeline import tracks
from perfdoc.analyzers.timeline.paint import Layer, paint
from perfdoc.analyzers.timeline.pool import Segments, pool, segments_of
from perfdoc.analyzers.timeline.rank_timeline import Track, named
from perfdoc.traces import RangeKind

LIMITS = {"ledger": 60, "compute": 50, "communication": 40, "host": 40, "ranges": 30}
"""Bars of each kind at most, of communication over all dimensions: together 220."""
_MOST_ROWS = 400_000
"""Of an excerpt that holds more, the kernels' classes are not drawn: a bar would stand for thousands."""
_DEPTH = 16


class Excerpts:
    """Cuts excerpts out of one device's trace."""

    def __init__(self, view: DeviceView) -> None:
        self._view = view
        trace, threads = view.trace, view.activity.launching_threads
        self._kernels = Nearby(trace.kernels, view.activity.kernel_rows)
        self._calls = Nearby(trace.api_calls, trace.calls_of(threads))
        threads = threads if len(threads) else trace.threads_of(view.device.process)
        self._ranges = Nearby(trace.ranges, trace.ranges_of(threads))

    def cut(self, start_ns: int, end_ns: int) -> dict[str, Track]:
        """The tracks of [start, end) that hold anything, by kind; of communication by dimension."""
        view = self._view
        found: dict[str, Segments] = {
            "ledger": tracks.ledger_track(view, start_ns, end_ns),
            **self._compute(start_ns, end_ns),
        }
        comm = view.activity.communication
        running = (comm.start_ns < end_ns) & (comm.end_ns > start_ns)
        present = np.unique(comm.dimension[running]).tolist()
        for dimension in present:
            key = f"communication {DIMENSIONS[dimension]}"
            found[key] = tracks.communication_track(view, start_ns, end_ns, dimension)
        found["host"] = tracks.host_track(view, start_ns, end_ns, self._calls.rows(start_ns, end_ns))
        found["ranges"] = self._range_track(start_ns, end_ns)
        limits = {**LIMITS, "communication": LIMITS["communication"] // max(1, len(present))}
        kept = {}
        for key, segments in found.items():
            kind = key.partition(" ")[0]
            if (segments.code >= 0).any():
                kept[key] = named(view, kind, pool(segments, max(4, limits[kind])))
        return kept

    def _compute(self, start_ns: int, end_ns: int) -> dict[str, Segments]:
        rows = self._kernels.rows(start_ns, end_ns)
        if len(rows) > _MOST_ROWS:
            return {}
        return {"compute": tracks.compute_track(self._view, start_ns, end_ns, rows)}

    def _range_track(self, start_ns: int, end_ns: int) -> Segments:
        """The innermost range of the thread that launches, where several do the one with most time in
        ranges. Items are names."""
        ranges = self._view.trace.ranges
        rows = self._ranges.rows(start_ns, end_ns)
        rows = rows[
            (ranges.end_ns[rows] > start_ns)
            & (ranges.end_ns[rows] > ranges.start_ns[rows])
            & (ranges.kind[rows] == RangeKind.PUSH_POP)
        ]
        if len(rows):
            time = np.minimum(ranges.end_ns[rows], end_ns) - np.maximum(ranges.start_ns[rows], start_ns)
            rows = rows[ranges.thread[rows] == np.bincount(ranges.thread[rows], time).argmax()]
        return segments_of(
            paint(_by_depth(ranges.start_ns[rows], ranges.end_ns[rows], ranges.name[rows]), start_ns, end_ns)
        )


def _by_depth(start: I64, end: I64, name: I64) -> Sequence[Layer]:
    """Nested ranges in layers, the innermost last.

    Of ranges that cross one another, which no thread should have, an earlier one ends where the next of its
    depth begins.
    """
    order = np.lexsort((-end, start))
    start, end, name = start[order], end[order], name[order].astype(np.int64)
    depth = np.arange(len(start)) - np.searchsorted(np.sort(end), start, "right")
    layers = []
    for at in range(min(_DEPTH, int(depth.max(initial=-1)) + 1)):
        mine = np.flatnonzero(depth == at)
        begin = start[mine]
        finish = np.minimum(end[mine], np.append(begin[1:], np.iinfo(np.int64).max))
        layers.append(
            Layer(start_ns=begin, end_ns=finish, code=np.zeros(len(mine), np.int64), item=name[mine])
        )
    return layers
