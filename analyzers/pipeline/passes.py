"""Forward and backward passes of micro-batches on one device, as ranges name them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfdoc.analyzers.base.intervals import EMPTY, I64, Intervals, index_within, union
from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.device.launches import innermost
from perfdoc.analyzers.device.range_names import named_as
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.patterns import pattern_of
from perfdoc.profiling import vocabulary
from perfdoc.profiling.vocabulary import parse_compute
from perfdoc.records import dataclass
from perfdoc.traces import RangeKind
from perfdoc.traces.table import Bool, Table, unique


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
        return index_within(self.start_ns, self.end_ns, time_ns)

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
        at = index_within(self.start_ns, np.maximum.accumulate(self.end_ns), time_ns)
        return np.append(self.layer, -1)[at]


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
    for i in trace.range_names_like(lambda name: name.startswith(prefixes)):
        text = trace.strings[i]
        if (place := parse_compute(text)) is not None:
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


_FORMS = (
    (pattern_of(rf"{re.escape(vocabulary.FORWARD)}"), pattern_of(rf"{re.escape(vocabulary.BACKWARD)}")),
    (
        pattern_of(r"(?:[\w.]{1,200}\.)?forward[_-](?:step|compute)"),
        pattern_of(r"(?:[\w.]{1,200}\.)?backward[_-](?:step|compute)"),
    ),
    (named_as("forward"), named_as("backward")),
)
"""(forward, backward) on the whole name: ours, else megatron-core's functions and timers, else the words
alone, as people and TorchRec write them (`## forward ##`, `backward pass`)."""
_LONGEST = 512
"""Characters of a name that are looked at."""
_MICRO_BATCH = pattern_of(rf"{re.escape(vocabulary.MICRO_BATCH)} (\d{{1,9}})")
INSIDE_A_PASS = [DIMENSIONS.index(d) for d in ("tp", "cp", "ep")]
"""Communication that belongs to the pass that launched it; gradients and messages run on beside others."""


def work_of_passes(
    compute: Intervals, start_ns: I64, end_ns: I64, dimension: NDArray[np.integer[Any]]
) -> Intervals:
    """What passes are made of: compute, and communication inside a pass. dimension: of each communication."""
    inside = np.isin(dimension, INSIDE_A_PASS)
    return compute | union(start_ns[inside], end_ns[inside]) if inside.any() else compute


@dataclass(frozen=True, kw_only=True, eq=False)
class Passes(Table):
    """Passes on the device by start time: from the first activity launched in the range to the last end."""

    step: I64
    """Index into the window's steps."""
    is_forward: Bool
    micro_batch: I64
    """As the ranges say; -1 unknown."""
    start_ns: I64
    end_ns: I64


def numbered_micro_batches(passes: Passes) -> int | None:
    """Micro-batches of a step by the numbers in ranges; None where they have none, or steps disagree."""
    step, number = passes.step[passes.is_forward], passes.micro_batch[passes.is_forward]
    if not len(step) or (number < 0).any() or len(unique(step)) < len(unique(passes.step)):
        return None
    each = np.unique(np.stack((step, number)), axis=1)[0]
    found = unique(np.unique(each, return_counts=True)[1]).tolist()
    return found[0] if len(found) == 1 else None


def leading_forwards(passes: Passes) -> int | None:
    """Forward passes of a step before its first backward pass; None where there are no steps, one has no
    backward pass, or they disagree."""
    found = set()
    for s in unique(passes.step).tolist():
        order = passes.is_forward[passes.step == s]
        found.add(-1 if order.all() else int(np.argmin(order)))
    return found.pop() if len(found) == 1 and found != {-1} else None


def find_passes(view: DeviceView) -> Passes:
    """Passes inside the window's steps; empty where nothing names them."""
    rows, is_forward = pass_ranges(view)
    ranges = view.trace.ranges
    begin, end = ranges.start_ns[rows], ranges.end_ns[rows]
    step = index_within(view.step_ranges.start_ns, view.step_ranges.end_ns, begin)
    inside = step >= 0
    rows, is_forward, step = rows[inside], is_forward[inside], step[inside]
    start, end = begin[inside], end[inside]
    micro_batch = _micro_batches(view, rows)
    if not view.activity.on_host:
        start, end = _on_device(view, start, end)
    ran = end > start
    order = np.flatnonzero(ran)[np.argsort(start[ran], kind="stable")]
    return Passes(
        step=step[order],
        is_forward=is_forward[order],
        micro_batch=micro_batch[order],
        start_ns=start[order],
        end_ns=end[order],
    )


def pass_ranges(view: DeviceView) -> tuple[I64, Bool]:
    """Rows of Trace.ranges that are passes on the host, by start, none inside another, and which of them are
    forward."""
    trace = view.trace
    used = [(i, trace.strings[i]) for i in trace.range_names_like(_speaks_of_a_pass)]
    threads = trace.threads_of(view.device.process)
    for forms in _FORMS:
        code = np.zeros(len(trace.strings), np.int8)
        for value, form in enumerate(forms, start=1):
            code[[i for i, text in used if form.fullmatch(text)]] = value
        usable = (trace.ranges.kind != RangeKind.MARK) & ~trace.ranges.never_closed
        rows = np.flatnonzero((code[trace.ranges.name] > 0) & usable)
        rows = rows[np.isin(trace.ranges.thread[rows], threads)]
        if len(rows):
            rows = _outermost(trace.ranges.start_ns, trace.ranges.end_ns, rows)
            is_forward: Bool = code[trace.ranges.name[rows]] == 1
            if forms is _FORMS[-1] and not _in_turn(is_forward):
                break
            return rows, is_forward
    return np.empty(0, np.int64), np.empty(0, bool)


def _speaks_of_a_pass(text: str) -> bool:
    lower = text[:_LONGEST].lower()
    return "forward" in lower or "backward" in lower


def _in_turn(is_forward: Bool) -> bool:
    """Whether forwards and backwards alternate: the words alone may also name each layer's, one after the
    other, or an evaluation's. Passes of a pipeline that words alone name are not told from those."""
    return len(is_forward) > 1 and bool((is_forward[1:] != is_forward[:-1]).all())


def layer_forwards(view: DeviceView) -> I64:
    """Rows of Trace.ranges that are the forward of a layer, by our own names, wherever they lie."""
    trace, ranges = view.trace, view.trace.ranges
    layer = f"{vocabulary.FORWARD} layer="
    names = trace.range_names_like(lambda name: name.startswith(layer))
    rows = np.flatnonzero(np.isin(ranges.name, names) & (ranges.kind != RangeKind.MARK))
    return rows[np.isin(ranges.thread[rows], trace.threads_of(view.device.process))]


def _outermost(start_ns: I64, end_ns: I64, rows: I64) -> I64:
    """Rows by start, without those that begin inside an earlier one: a pass may be named twice."""
    rows = rows[np.lexsort((-end_ns[rows], start_ns[rows]))]
    reach = np.maximum.accumulate(end_ns[rows])
    outer = np.ones(len(rows), bool)
    outer[1:] = start_ns[rows][1:] >= reach[:-1]
    return rows[outer]


def _micro_batches(view: DeviceView, rows: I64) -> I64:
    """The number of the micro-batch range around each pass; -1 none."""
    trace = view.trace
    numbers = {
        i: int(found[1])
        for i in trace.range_names_like(_MICRO_BATCH.match)
        if (found := _MICRO_BATCH.fullmatch(trace.strings[i])) is not None
    }
    table = np.full(len(trace.strings), -1, np.int64)
    table[list(numbers)] = list(numbers.values())
    around = np.flatnonzero(table[trace.ranges.name] >= 0)
    at = innermost(
        trace.ranges.start_ns[around],
        trace.ranges.end_ns[around],
        trace.ranges.thread[around].astype(np.int64),
        trace.ranges.start_ns[rows],
        trace.ranges.thread[rows].astype(np.int64),
    )
    return np.where(at >= 0, table[trace.ranges.name[around[np.maximum(at, 0)]]], -1) if len(around) else at


def _on_device(view: DeviceView, begin: I64, end: I64) -> tuple[I64, I64]:
    """First start and last end of what was launched in each range; (0, 0) where nothing was."""
    activity = view.activity
    mine = np.ones(len(activity.start_ns), bool)
    mine[activity.comm_rows] = np.isin(activity.communication.dimension, INSIDE_A_PASS)
    # By time alone: autograd launches a backward from a thread of its own while the range's waits.
    at = np.searchsorted(begin, activity.launch_start_ns, "right") - 1
    mine &= (at >= 0) & (activity.launch_start_ns < np.append(end, 0)[at])
    first = np.full(len(begin), np.iinfo(np.int64).max, np.int64)
    last = np.zeros(len(begin), np.int64)
    np.minimum.at(first, at[mine], activity.start_ns[mine])
    np.maximum.at(last, at[mine], activity.end_ns[mine])
    nothing = last == 0
    return np.where(nothing, 0, first), last
