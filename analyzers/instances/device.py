"""The worst instances of one device, each with what ran around it, in few enough bars to be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.base.spot import Spot
from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.instances.spots import Nearby, find_spots
from perfdoc.analyzers.timeline.rank import (
    Track,
    communication_track,
    compute_track,
    host_track,
    ledger_track,
    named,
)
from perfdoc.analyzers.timeline.segments import Layer, Segments, paint, pool, segments_of
from perfdoc.results.ranks import Ledger, Step
from perfdoc.traces import RangeKind

_LEAST_PAD_NS = 50_000
_MOST_PAD_NS = 5_000_000
_LONG_PAD_FRAC = 0.1
"""Of a long instance so much is shown on either side, where that is more than _MOST_PAD_NS."""


@dataclass(frozen=True, kw_only=True)
class Instance:
    """The worst instance of its kind on one device, with what ran around it."""

    spot: Spot
    step: str
    """Of the step in which it began; empty where the window is not made of steps."""
    first_ns: int
    """Of what is kept, on the capture's clock."""
    last_ns: int
    tracks: Mapping[str, Track]
    """By kind; of communication one for each dimension, `communication dp`."""


def padded(start_ns: int, end_ns: int) -> tuple[int, int]:
    """Bounds of what is shown: an instance and as much again on either side, 50 us at least and 5 ms at
    most, or a tenth of a longer one.

    >>> padded(1_000_000, 1_200_000)
    (800000, 1400000)
    """
    length = end_ns - start_ns
    pad = max(_LEAST_PAD_NS, min(length, _MOST_PAD_NS), int(length * _LONG_PAD_FRAC))
    return start_ns - pad, end_ns + pad


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
            "ledger": ledger_track(view, start_ns, end_ns),
            **self._compute(start_ns, end_ns),
        }
        comm = view.activity.communication
        running = (comm.start_ns < end_ns) & (comm.end_ns > start_ns)
        present = np.unique(comm.dimension[running]).tolist()
        for dimension in present:
            key = f"communication {DIMENSIONS[dimension]}"
            found[key] = communication_track(view, start_ns, end_ns, dimension)
        found["host"] = host_track(view, start_ns, end_ns, self._calls.rows(start_ns, end_ns))
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
        return {"compute": compute_track(self._view, start_ns, end_ns, rows)}

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


MAX_INSTANCES = 16
"""Of one device."""


def device_instances(view: DeviceView, ledger: Ledger, contended: Sequence[Spot]) -> tuple[Instance, ...]:
    """contended: of `norm_contention`. One instance of each kind that the device has, costliest first."""
    if view.window.duration_ns <= 0:
        return ()
    spots = [*find_spots(view, ledger), *contended]
    spots.sort(key=lambda s: (-s.cost_ns, s.key))
    excerpts = Excerpts(view)
    return tuple(_instance(view, excerpts, spot) for spot in spots[:MAX_INSTANCES])


def _instance(view: DeviceView, excerpts: Excerpts, spot: Spot) -> Instance:
    low, high = view.activity.span
    first, last = padded(spot.start_ns, spot.end_ns)
    # Beyond the capture there is nothing to see; beyond the window there may be.
    first = max(first, min(low, view.window.start_ns, spot.start_ns))
    last = min(last, max(high, view.window.end_ns, spot.end_ns))
    return Instance(
        spot=spot,
        step=step_of(view.window.step_list, spot.start_ns),
        first_ns=first,
        last_ns=last,
        tracks=excerpts.cut(first, last),
    )


def step_of(steps: Sequence[Step], time_ns: int) -> str:
    """Name of the step that holds a time of the device; empty where none does."""
    at = int(np.searchsorted([s.start_ns for s in steps], time_ns, "right")) - 1
    return steps[at].name if at >= 0 and time_ns < steps[at].end_ns else ""
