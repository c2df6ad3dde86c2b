"""Passes of micro-batches as the host ran or launched them, layers in them, and what it did twice."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.base.intervals import EMPTY, I64, Intervals, union
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.pipeline.passes import layer_forwards, pass_ranges
from perfdoc.profiling import vocabulary
from perfdoc.profiling.vocabulary import parse_compute
from perfdoc.traces import RangeKind
from perfdoc.traces.table import Bool


@dataclass(frozen=True, kw_only=True)
class HostPasses:
    """Passes by start, on the host's time; none inside another."""

    start_ns: I64
    end_ns: I64
    is_forward: Bool
    recompute: Intervals
    """Forwards of layers inside backward passes."""

    def __len__(self) -> int:
        return len(self.start_ns)

    def at(self, time_ns: I64) -> I64:
        """Index of the pass that runs at each time; -1 none."""
        if not len(self):
            return np.full(len(time_ns), -1, np.int64)
        at = np.searchsorted(self.start_ns, time_ns, "right") - 1
        inside = (at >= 0) & (time_ns < self.end_ns[np.maximum(at, 0)])
        return np.where(inside, at, -1)

    @property
    def backward(self) -> tuple[I64, I64]:
        """Starts and ends of backward passes."""
        return self.start_ns[~self.is_forward], self.end_ns[~self.is_forward]


NO_PASSES = HostPasses(
    start_ns=np.empty(0, np.int64),
    end_ns=np.empty(0, np.int64),
    is_forward=np.empty(0, bool),
    recompute=EMPTY,
)


def host_passes(view: DeviceView) -> HostPasses:
    """Passes that lie in the window, as far as ranges name them."""
    trace = view.trace
    rows, is_forward = pass_ranges(view)
    start, end = trace.ranges.start_ns[rows], trace.ranges.end_ns[rows]
    if view.activity.on_host:
        inside = (start >= view.window.start_ns) & (end <= view.window.end_ns)
        start, end, is_forward = start[inside], end[inside], is_forward[inside]
    if not len(start):
        return NO_PASSES
    return HostPasses(
        start_ns=start,
        end_ns=end,
        is_forward=is_forward,
        recompute=_recomputed(view, union(start[~is_forward], end[~is_forward])),
    )


def _recomputed(view: DeviceView, backward: Intervals) -> Intervals:
    """What of a layer's forward lies in a backward pass."""
    ranges = view.trace.ranges
    rows = layer_forwards(view) if len(backward) else np.empty(0, np.int64)
    start, end = ranges.start_ns[rows], ranges.end_ns[rows]
    within = backward.covered_within(start, end) == end - start
    return union(start[within], end[within])


@dataclass(frozen=True, kw_only=True)
class LayerSpans:
    """Layers by start, on the host's time. A layer whose modules have ranges of their own has several."""

    start_ns: I64
    end_ns: I64
    layer: I64
    """Index over the whole model, from 0."""
    is_forward: Bool

    def __len__(self) -> int:
        return len(self.start_ns)

    def at(self, time_ns: I64) -> I64:
        """Layer that the host is in at each time; -1 none."""
        if not len(self):
            return np.full(len(time_ns), -1, np.int64)
        at = np.searchsorted(self.start_ns, time_ns, "right") - 1
        reach = np.maximum.accumulate(self.end_ns)
        inside = (at >= 0) & (time_ns < reach[np.maximum(at, 0)])
        return np.where(inside, self.layer[np.maximum(at, 0)], -1)


NO_LAYERS = LayerSpans(
    start_ns=np.empty(0, np.int64),
    end_ns=np.empty(0, np.int64),
    layer=np.empty(0, np.int64),
    is_forward=np.empty(0, bool),
)


def layer_spans(view: DeviceView) -> LayerSpans:
    """Ranges of the device's process that name a layer, by our own names."""
    trace, ranges = view.trace, view.trace.ranges
    number = np.full(len(trace.strings), -1, np.int64)
    forward = np.zeros(len(trace.strings), bool)
    prefixes = (f"{vocabulary.FORWARD} layer=", f"{vocabulary.BACKWARD} layer=")
    for i in trace.range_names.tolist():
        text = trace.strings[i]
        if text.startswith(prefixes) and (place := parse_compute(text)) is not None:
            number[i] = -1 if place.layer is None else place.layer
            forward[i] = text.startswith(prefixes[0])
    if not (number >= 0).any():
        return NO_LAYERS
    rows = np.flatnonzero((number[ranges.name] >= 0) & (ranges.kind != RangeKind.MARK) & ~ranges.never_closed)
    rows = rows[np.isin(ranges.thread[rows], trace.threads_of(view.device.process))]
    rows = rows[np.argsort(ranges.start_ns[rows], kind="stable")]
    return LayerSpans(
        start_ns=ranges.start_ns[rows],
        end_ns=ranges.end_ns[rows],
        layer=number[ranges.name[rows]],
        is_forward=forward[ranges.name[rows]],
    )
