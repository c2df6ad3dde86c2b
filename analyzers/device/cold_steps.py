"""Cold steps: the first ones of a capture, in which code is loaded, memory allocated for the first time,
communicators are made or kernels are tried out (cuDNN's benchmark). They are warm-up and no part of the mean.

A step is cold if it is longer than later steps of as much work and shows such a thing that they lack. Length
alone proves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.device.activity import Activity
from perfdoc.analyzers.device.start_up_calls import Calls, StartUpCalls
from perfdoc.analyzers.device.window import StepRanges
from perfdoc.results.ranks import Step
from perfdoc.traces import Trace

LONGER = 1.2
"""Than the median of the later steps."""
_ALIKE_FRAC = 0.8
"""Of a step's activities: a later step with as many is of the same kind. Trials of kernels make more."""
_MIN_LAUNCHES = 3
"""Long first launches: one may have been held up."""
_MIN_ALLOCATIONS = 10
_MORE = 2
"""Times the allocations of later steps."""
_MIN_OWN_FRAC = 0.1
"""Of a step's compute: kernels that no later step runs were tried out."""


def may_be_cold(steps: Sequence[Step], ranges: StepRanges) -> bool:
    """Whether the first step is long enough to look further, which costs passes over whole tables.

    ranges: of the steps, on the host.
    """
    length = _lengths(steps, ranges)
    return len(length) > 1 and bool(length[0] > LONGER * length[1:].min())


def cold_steps(
    trace: Trace, activity: Activity, steps: Sequence[Step], ranges: StepRanges, calls: StartUpCalls
) -> int:
    """How many of the first steps are cold; at least one step is left."""
    evidence = _Evidence(trace, activity, steps, ranges, calls)
    cold = 0
    while cold < len(steps) - 1 and evidence.is_cold(cold):
        cold += 1
    return cold


class _Evidence:
    """Figures of every step."""

    def __init__(
        self, trace: Trace, activity: Activity, steps: Sequence[Step], ranges: StepRanges, calls: StartUpCalls
    ) -> None:
        edges = np.append(ranges.start_ns, ranges.end_ns.max())
        self._length = _lengths(steps, ranges)
        self._work = _count(activity.launch_start_ns, edges)
        launches = _in_steps(calls.first_launches, edges)
        self._loads = _in_steps(calls.loads, edges) + np.where(launches >= _MIN_LAUNCHES, launches, 0)
        self._communicators = _in_steps(calls.communicators, edges)
        self._allocations = _in_steps(calls.allocations, edges)
        on_device = np.array([*(s.start_ns for s in steps), steps[-1].end_ns], np.int64)
        rows = activity.kernel_rows[~activity.kernel_is_comm]
        start = trace.kernels.start_ns[rows]
        self._step = np.searchsorted(on_device, start, "right") - 1
        self._kernel = trace.kernels.full_name[rows]
        self._spent = trace.kernels.end_ns[rows] - start

    def is_cold(self, i: int) -> bool:
        """Whether a step is cold, all before it being so."""
        later = np.arange(i + 1, len(self._length))
        alike = later[self._work[later] >= _ALIKE_FRAC * self._work[i]]
        alike = alike if len(alike) else later
        if self._length[i] <= LONGER * np.median(self._length[alike]):
            return False
        once = (self._loads, self._communicators)
        if any(of[i] and not np.median(of[alike]) for of in once):
            return True
        many = max(_MIN_ALLOCATIONS, _MORE * float(np.median(self._allocations[alike])))
        return bool(self._allocations[i] >= many) or self._tries(i)

    def _tries(self, i: int) -> bool:
        """Whether much of it is kernels that no later step runs."""
        mine = self._step == i
        own = mine & ~np.isin(self._kernel, np.unique(self._kernel[self._step > i]))
        return bool(self._spent[own].sum() > _MIN_OWN_FRAC * self._spent[mine].sum())


def _lengths(steps: Sequence[Step], ranges: StepRanges) -> I64:
    length = np.array([s.duration_ns for s in steps], np.int64)
    # On the device the last one ends with its last work, whatever its range holds behind that.
    length[-1] = max(length[-1], ranges.end_ns[-1] - ranges.start_ns[-1])
    return length


def _count(time_ns: I64, edges: I64) -> I64:
    at = np.searchsorted(np.sort(time_ns), edges, "left")
    count: I64 = np.diff(at)
    return count


def _in_steps(calls: Calls, edges: I64) -> I64:
    return _count(calls.start_ns, edges)
