"""A window without what runs once: start-up and cold first steps, which are left out where most work follows.

Start-up is told by the calls that a process makes once. A first step is cold if it is longer than later
steps of as much work and shows such calls, or kernels that are tried out (cuDNN's benchmark), that they lack.
Length alone proves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from perfdoc.analyzers.base.intervals import EMPTY, I64
from perfdoc.analyzers.device.activity import Activity
from perfdoc.analyzers.device.launches import Launches
from perfdoc.analyzers.device.period import find_period
from perfdoc.analyzers.device.proposed_ranges import propose_ranges
from perfdoc.analyzers.device.start_up_calls import Calls, StartUpCalls, find_calls
from perfdoc.analyzers.device.window import StepRanges, runs_once
from perfdoc.analyzers.kernel_class.classify import KernelKinds
from perfdoc.results.capture_parts import Pause, StartUp
from perfdoc.results.figures import plural
from perfdoc.results.ranks import Step, Window
from perfdoc.traces import Trace

_ENDS_AT_FRAC = 0.95
"""Of the time in such calls."""
_MIN_FRAC = 0.05
"""Of the window: a shorter start-up changes no figure."""
_MIN_CALLS_FRAC = 0.01
"""Of the start-up of a capture, spent in such calls: less does not tell what the time was."""
_MIN_GIVEN_FRAC = 0.05
"""The same of a window that somebody chose, who may have left start-up out."""
_MIN_FIRST_FRAC = 0.2
"""The same where long first launches alone tell: any call may be held up once."""
_MIN_CALLS = 10
"""Allocations alone are a start-up from here on."""


def _find_start_up(
    calls: StartUpCalls, activity: Activity, begin: int, end: int, *, given: bool
) -> StartUp | None:
    """The start-up at the beginning of a window; None where the capture shows none. given: whether somebody
    chose the window."""
    # What comes before the first activity of the capture led to it.
    since = int(np.iinfo(np.int64).min) if begin <= activity.span[0] else begin
    calls = calls.within(since, end)
    once = map(len, (calls.loads, calls.uploads, calls.communicators))
    told = any(once) or len(calls.allocations) >= _MIN_CALLS
    if not told and not len(calls.first_launches):
        return None
    last = max(_end(calls.kinds), _end((calls.loads, calls.allocations, calls.communicators)))
    last = max(last, int(calls.uploads.end_ns.max(initial=0)))
    if last - begin < _MIN_FRAC * (end - begin):
        return None
    least = (_MIN_GIVEN_FRAC if given else _MIN_CALLS_FRAC) if told else _MIN_FIRST_FRAC
    if _covered_ns((*calls.kinds, calls.uploads), begin, last) < least * (last - begin):
        return None
    return _start_up(calls, activity, begin, last, (begin, end))


def _end(calls: Sequence[Calls]) -> int:
    """When most of the time in these calls has passed; 0 without any."""
    start, end = (np.concatenate([getattr(of, side) for of in calls]) for side in ("start_ns", "end_ns"))
    if not len(start):
        return 0
    order = np.argsort(start, kind="stable")
    # Fractions: calls and ranges together may last longer than an integer holds.
    passed = np.cumsum((end - start)[order], dtype=np.float64)
    return int(end[order][np.searchsorted(passed, _ENDS_AT_FRAC * passed[-1], "left")])


def _covered_ns(calls: Sequence[Calls], begin: int, end: int) -> int:
    covered = EMPTY
    for of in calls:
        covered = covered | of.covered
    return covered.clip(begin, end).total_ns


def _start_up(
    calls: StartUpCalls, activity: Activity, begin: int, end: int, window_ns: tuple[int, int]
) -> StartUp:
    start = activity.start_ns
    inside = start[(start >= window_ns[0]) & (start < window_ns[1])]
    return StartUp(
        start_ns=begin,
        end_ns=end,
        compute_ns=activity.compute.clip(begin, end).total_ns,
        loading_ns=_covered_ns((calls.loads, calls.first_launches, calls.uploads), begin, end),
        allocation_ns=_covered_ns((calls.allocations,), begin, end),
        communicator_ns=_covered_ns((calls.communicators,), begin, end),
        work_frac=float(np.searchsorted(inside, end, "left") / max(1, len(inside))),
        left_out=False,
    )


_LONGER = 1.2
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


def _step_lengths(steps: Sequence[Step], ranges: StepRanges) -> I64:
    length = np.array([s.duration_ns for s in steps], np.int64)
    # On the device the last one ends with its last work, whatever its range holds behind that.
    length[-1] = max(length[-1], ranges.end_ns[-1] - ranges.start_ns[-1])
    return length


def _count_cold_steps(
    trace: Trace, activity: Activity, steps: Sequence[Step], ranges: StepRanges, calls: StartUpCalls
) -> int:
    """How many of the first steps are cold; at least one step is left."""
    edges = np.append(ranges.start_ns, ranges.end_ns.max())

    def count(time_ns: I64) -> I64:
        counts: I64 = np.diff(np.searchsorted(np.sort(time_ns), edges, "left"))
        return counts

    length, work = _step_lengths(steps, ranges), count(activity.launch_start_ns)
    launches, loads = count(calls.first_launches.start_ns), count(calls.loads.start_ns)
    once = (loads + np.where(launches >= _MIN_LAUNCHES, launches, 0), count(calls.communicators.start_ns))
    allocations = count(calls.allocations.start_ns)
    rows = activity.kernel_rows[~activity.kernel_is_comm]
    name, start = trace.kernels.full_name[rows], trace.kernels.start_ns[rows]
    compute_ns = trace.kernels.end_ns[rows] - start
    on_device = np.array([*(s.start_ns for s in steps), steps[-1].end_ns], np.int64)
    step = np.searchsorted(on_device, start, "right") - 1

    def tries_kernels(i: int) -> bool:
        own = (step == i) & ~np.isin(name, np.unique(name[step > i]))
        return bool(compute_ns[own].sum() > _MIN_OWN_FRAC * compute_ns[step == i].sum())

    def is_cold(i: int) -> bool:
        later = np.arange(i + 1, len(steps))
        alike = later[work[later] >= _ALIKE_FRAC * work[i]]
        alike = alike if len(alike) else later
        if length[i] <= _LONGER * np.median(length[alike]):
            return False
        if any(of[i] and not np.median(of[alike]) for of in once):
            return True
        many = max(_MIN_ALLOCATIONS, _MORE * float(np.median(allocations[alike])))
        return bool(allocations[i] >= many) or tries_kernels(i)

    cold = 0
    while cold < len(steps) - 1 and is_cold(cold):
        cold += 1
    return cold


_MIN_WINDOW_FRAC = 0.2
_MIN_IDLE_FRAC = 0.5
"""Of the idle time: so much of it in one stretch is no habit of the host."""
_ALONE = 2
"""Times the next longest: of two that are about as long one comes back."""


def _find_pause(activity: Activity, start_ns: int, end_ns: int) -> Pause | None:
    """The one long pause of a device in [start, end); None where idle time comes in more than one piece."""
    gaps = activity.busy.gaps(start_ns, end_ns)
    if not len(gaps):
        return None
    length = gaps.end_ns - gaps.start_ns
    longest = int(length.argmax())
    least = max(_MIN_WINDOW_FRAC * (end_ns - start_ns), _MIN_IDLE_FRAC * int(length.sum()))
    others = np.delete(length, longest)
    if length[longest] < least or _ALONE * others.max(initial=0) > length[longest]:
        return None
    start, end = int(gaps.start_ns[longest]), int(gaps.end_ns[longest])
    before = int(np.count_nonzero((activity.start_ns >= start_ns) & (activity.start_ns < start)))
    after = int(np.count_nonzero((activity.start_ns >= end) & (activity.start_ns < end_ns)))
    return Pause(start_ns=start, end_ns=end, before=before, after=after)


_MAX_START_UP_WORK_FRAC = 0.5
"""Of what runs on the device: with more of it in start-up, what is left is hardly the job."""
_MAX_TAIL_FRAC = 0.05
"""Of what runs after start-up: with no more of it before a long pause, that pause ends start-up."""
_MIN_REST_FRAC = 0.05
"""Of the capture: what follows start-up is hardly the job where it is shorter and nothing in it repeats."""


def leave_out_start_up(
    trace: Trace,
    activity: Activity,
    kinds: KernelKinds,
    launches: Launches,
    window: Window,
    ranges: StepRanges,
    *,
    chosen: bool,
) -> tuple[Window, StepRanges]:
    """The window with its start-up, period and pause, and without start-up where most work follows.

    ranges: its steps on the host. The bounds of what the user chose stay as they are.
    """
    if activity.on_host or window.end_ns <= window.start_ns:
        return window, ranges
    if window.steps > 1:
        # The evidence costs passes over whole tables.
        length = _step_lengths(window.step_list, ranges)
        if length[0] <= _LONGER * length[1:].min():
            return window, ranges
    whole = window.kind == "capture" and not chosen
    calls = find_calls(trace, activity, launches, whole=whole)
    if window.steps > 1:
        window, ranges = _without_cold_steps(trace, activity, calls, window, ranges)
    elif not whole:
        # A pause in it may be what the user wants to know about.
        start_up = _find_start_up(calls, activity, window.start_ns, window.end_ns, given=True)
        window = replace(window, start_up=start_up)
    else:
        window = _of_capture(trace, activity, kinds, calls, window)
    return replace(window, runs_once=runs_once(window, chosen=chosen)), ranges


def _without_cold_steps(
    trace: Trace, activity: Activity, calls: StartUpCalls, window: Window, ranges: StepRanges
) -> tuple[Window, StepRanges]:
    cold = _count_cold_steps(trace, activity, window.step_list, ranges, calls)
    if not cold:
        return window, ranges
    warm = window.step_list[cold:]
    first_ns, warm_ns = int(ranges.start_ns[0]), int(ranges.start_ns[cold])
    start_up = _start_up(
        calls.within(first_ns, warm_ns),
        activity,
        min(first_ns, window.start_ns),
        warm[0].start_ns,
        (window.start_ns, window.end_ns),
    )
    return replace(
        _from(window, warm[0].start_ns),
        steps=len(warm),
        step_list=warm,
        start_up=replace(start_up, start_ns=window.start_ns, left_out=True, steps=cold),
        reason=f"{window.reason}; the first {plural(cold, 'step')} left out: warm-up",
    ), StepRanges(start_ns=ranges.start_ns[cold:], end_ns=ranges.end_ns[cold:])


def _from(window: Window, start_ns: int) -> Window:
    """The window from a later start on."""
    return replace(window, start_ns=start_ns, duration_ns=window.end_ns - start_ns)


def _of_capture(
    trace: Trace, activity: Activity, kinds: KernelKinds, calls: StartUpCalls, window: Window
) -> Window:
    """Of a window that fell back to the whole capture."""
    start_up = _find_start_up(calls, activity, window.start_ns, window.end_ns, given=False)
    steady_ns = window.start_ns if start_up is None else start_up.end_ns
    whole = replace(
        window,
        start_up=start_up,
        period=find_period(trace, activity, kinds, steady_ns),
        proposals=propose_ranges(trace, activity, None if start_up is None else steady_ns),
    )
    if start_up is None:
        return _with_pause(activity, whole)
    if start_up.work_frac > _MAX_START_UP_WORK_FRAC:
        return whole  # start-up that is part of the window says more than a pause in it
    after = activity.start_ns[activity.start_ns >= start_up.end_ns]
    start_ns = int(after[0])
    pause = _find_pause(activity, start_ns, window.end_ns)
    if pause is not None and pause.before <= _MAX_TAIL_FRAC * len(after):
        start_ns = pause.end_ns
    rest = _with_pause(
        activity,
        replace(
            _from(whole, start_ns),
            start_up=replace(start_up, left_out=True),
            reason=f"{window.reason}; begins after start-up",
        ),
    )
    # A little that tells nothing either does not stand for the capture.
    once = rest.period is None and rest.duration_ns < _MIN_REST_FRAC * window.duration_ns
    once |= rest.pause is not None and rest.duration_ns < start_up.duration_ns
    return whole if once else rest


def _with_pause(activity: Activity, window: Window) -> Window:
    return replace(window, pause=_find_pause(activity, window.start_ns, window.end_ns))
