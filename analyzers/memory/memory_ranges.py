"""Which of the program's own ranges memory was allocated in, and where its steps end."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.memory.memory_lifetimes import BEFORE, DeviceHistory
from perfdoc.traces.memory.model import MemoryAnnotations
from perfdoc.traces.table import I64

NO_RANGE = -1
MIN_STEP_ENDS = 3
"""Growth is said of two whole steps at least: what a first step allocates for good is no leak."""

_MAX_OPEN = 1000
_STEPS = (
    re.compile(r"perfdoc\.step \d+"),
    re.compile(r"ProfilerStep#\d+"),
    re.compile(r"Optimizer\.step#[\w.]+"),
)
"""Ranges whose ends are ends of steps, the surest first. Optimizers of torch name their step on their own."""


@dataclass(frozen=True, kw_only=True)
class MemoryGrowth:
    """How much more is allocated at the end of each step than at the end of the one before."""

    state: str
    """measured or not_measured."""
    reason: str
    boundary: str
    """What ended the steps: a range's name, or `given`."""
    allocated_bytes: tuple[int, ...]
    """At the end of each step."""
    per_step_bytes: int | None
    """(last - first) / steps between, rounded to the nearest byte; negative where memory shrank."""
    every_step_grew: bool | None


@dataclass(frozen=True, kw_only=True, eq=False)
class EventRanges:
    """The range of each event: an index in MemorySnapshot.labels, or NO_RANGE."""

    name: I64


def ranges_of_events(history: DeviceHistory) -> EventRanges:
    """The metadata that the program had set, else the innermost range that was open."""
    events = history.snapshot.events
    label, time_ns = events.label[history.events], events.time_ns[history.events]
    name = np.full(len(label), NO_RANGE, np.int64)
    annotations = _annotations(history)
    if len(annotations):
        order = np.argsort(annotations.time_ns, kind="stable")
        innermost = _innermost(annotations.name[order].tolist(), annotations.is_start[order].tolist())
        at = np.searchsorted(annotations.time_ns[order], time_ns, "right") - 1
        name = np.where((at >= 0) & (time_ns >= 0), innermost[np.maximum(at, 0)], NO_RANGE)
    return EventRanges(name=np.where(label > 0, label, name).astype(np.int64))


def _annotations(history: DeviceHistory) -> MemoryAnnotations:
    """Those of the device; all of them where only one device has events: threads may not have set theirs."""
    annotations, devices = history.snapshot.annotations, history.snapshot.events.device
    if len(devices) and devices[0] == devices[-1]:
        return annotations
    return annotations.take(annotations.device == history.device)


def _innermost(names: Sequence[int], starts: Sequence[bool]) -> I64:
    """Behind each start or end: the range that began last and is still open."""
    innermost = np.full(len(names), NO_RANGE, np.int64)
    open_ranges: list[int] = []
    for i, (name, starts_here) in enumerate(zip(names, starts, strict=True)):
        if starts_here:
            if len(open_ranges) < _MAX_OPEN:
                open_ranges.append(name)
        elif name in open_ranges:
            # The last of its name: ranges of coroutines may end in another order than they began.
            del open_ranges[len(open_ranges) - 1 - open_ranges[::-1].index(name)]
        if open_ranges:
            innermost[i] = open_ranges[-1]
    return innermost


def measure_growth(history: DeviceHistory, allocated: I64, step_ends_ns: Sequence[int] = ()) -> MemoryGrowth:
    """Compare what is allocated at the ends of steps.

    allocated: bytes at each position from BEFORE on. step_ends_ns: ends of steps in UTC that are known from
    elsewhere, such as a run directory; else the snapshot's own ranges tell, and without them nothing does.
    """
    boundary, ends = (
        ("given", np.array(sorted(step_ends_ns), np.int64)) if step_ends_ns else _step_ends(history)
    )
    time_ns = history.snapshot.events.time_ns[history.events]
    if not len(time_ns) or time_ns.min() < 0:
        return _no_growth("the events have no times")
    # Two threads' events may be stamped in the other order than the allocator saw them.
    time_ns = np.maximum.accumulate(time_ns)
    ends = ends[(ends >= time_ns[0]) & (ends <= time_ns[-1])]
    if len(ends) < MIN_STEP_ENDS:
        return _no_growth(
            f"{len(ends)} ends of steps are known inside the history, {MIN_STEP_ENDS} are needed"
            if boundary
            else "no range in the snapshot names steps"
        )
    values = allocated[np.searchsorted(time_ns, ends, "right") - 1 - BEFORE]
    between = len(values) - 1
    return MemoryGrowth(
        state="measured",
        reason="",
        boundary=boundary,
        allocated_bytes=tuple(values.tolist()),
        per_step_bytes=round(int(values[-1] - values[0]) / between),
        every_step_grew=bool((np.diff(values) > 0).all()),
    )


def _step_ends(history: DeviceHistory) -> tuple[str, I64]:
    annotations, labels = _annotations(history), history.snapshot.labels
    used = np.unique(annotations.name).tolist()
    for form in _STEPS:
        names = [i for i in used if form.fullmatch(labels[i])]
        if names:
            ends = annotations.time_ns[np.isin(annotations.name, names) & ~annotations.is_start]
            # Numbered steps share their first word; optimizers of two kinds may each step once a step.
            kinds = {re.split(r"[ #]", labels[i])[0] if form is not _STEPS[-1] else labels[i] for i in names}
            if len(kinds) == 1:
                return kinds.pop(), np.sort(ends)
    return "", np.empty(0, np.int64)


def _no_growth(reason: str) -> MemoryGrowth:
    return MemoryGrowth(
        state="not_measured",
        reason=reason,
        boundary="",
        allocated_bytes=(),
        per_step_bytes=None,
        every_step_grew=None,
    )
