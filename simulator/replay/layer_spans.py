"""Layers of the model in the passes of a rank, as its host launched or ran them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.profiling import vocabulary
from perfdoc.profiling.vocabulary import parse_compute
from perfdoc.traces import RangeKind
from perfdoc.traces.table import Bool


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
