"""A window in its parts: start-up and cold steps, which run once, are left out where most work follows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfdoc.analyzers.device.activity import Activity
from perfdoc.analyzers.device.cold_steps import cold_steps, may_be_cold
from perfdoc.analyzers.device.launches import Launches
from perfdoc.analyzers.device.period import find_period
from perfdoc.analyzers.device.proposed_ranges import proposed_ranges
from perfdoc.analyzers.device.start_up import find_start_up, start_up_of
from perfdoc.analyzers.device.start_up_calls import StartUpCalls, find_calls
from perfdoc.analyzers.device.window import StepRanges, runs_once
from perfdoc.analyzers.kernel_class.classify import KernelKinds
from perfdoc.results.capture_parts import Pause
from perfdoc.results.figures import plural
from perfdoc.results.ranks import Window
from perfdoc.traces import Trace

MIN_WINDOW_FRAC = 0.2
MIN_IDLE_FRAC = 0.5
"""Of the idle time: so much of it in one stretch is no habit of the host."""
ALONE = 2
"""Times the next longest: of two that are about as long one comes back."""


def find_pause(activity: Activity, start_ns: int, end_ns: int) -> Pause | None:
    """The one long pause of a device in [start, end); None where idle time comes in more than one piece."""
    gaps = activity.busy.gaps(start_ns, end_ns)
    if not len(gaps):
        return None
    length = gaps.end_ns - gaps.start_ns
    longest = int(length.argmax())
    least = max(MIN_WINDOW_FRAC * (end_ns - start_ns), MIN_IDLE_FRAC * int(length.sum()))
    others = np.delete(length, longest)
    if length[longest] < least or ALONE * others.max(initial=0) > length[longest]:
        return None
    start, end = int(gaps.start_ns[longest]), int(gaps.end_ns[longest])
    before = int(np.count_nonzero((activity.start_ns >= start_ns) & (activity.start_ns < start)))
    after = int(np.count_nonzero((activity.start_ns >= end) & (activity.start_ns < end_ns)))
    return Pause(start_ns=start, end_ns=end, before=before, after=after)


MAX_START_UP_WORK_FRAC = 0.5
"""Of what runs on the device: with more of it in start-up, what is left is hardly the job."""

MAX_TAIL_FRAC = 0.05
"""Of what runs after start-up: with no more of it before a long pause, that pause ends start-up."""
MIN_REST_FRAC = 0.05
"""Of the capture: what follows start-up is hardly the job where it is shorter and nothing in it repeats."""


def in_parts(
    trace: Trace,
    activity: Activity,
    kinds: KernelKinds,
    launches: Launches,
    window: Window,
    ranges: StepRanges,
    *,
    chosen: bool,
) -> tuple[Window, StepRanges]:
    """The same window, told in parts; another one where start-up is left out. ranges: its steps on the host.

    The bounds of what the user chose stay as they are.
    """
    if activity.on_host or window.end_ns <= window.start_ns:
        return window, ranges
    if window.steps > 1 and not may_be_cold(window.step_list, ranges):
        return window, ranges
    calls = find_calls(trace, activity, launches)
    if window.steps > 1:
        window, ranges = _without_cold_steps(trace, activity, calls, window, ranges)
    elif window.kind != "capture" or chosen:
        bounds = window.start_ns, window.end_ns
        # A pause in it may be what the user wants to know about.
        window = replace(window, start_up=find_start_up(calls, activity, bounds, given=True))
    else:
        window = _of_capture(trace, activity, kinds, calls, window)
    return replace(window, runs_once=runs_once(window, chosen=chosen)), ranges


def _without_cold_steps(
    trace: Trace, activity: Activity, calls: StartUpCalls, window: Window, ranges: StepRanges
) -> tuple[Window, StepRanges]:
    cold = cold_steps(trace, activity, window.step_list, ranges, calls)
    if not cold:
        return window, ranges
    kept = window.step_list[cold:]
    first_ns, kept_ns = int(ranges.start_ns[0]), int(ranges.start_ns[cold])
    start_up = start_up_of(
        calls.within(first_ns, kept_ns),
        activity,
        (min(first_ns, window.start_ns), kept[0].start_ns),
        (window.start_ns, window.end_ns),
        steps=cold,
    )
    warm = replace(
        _from(window, kept[0].start_ns),
        steps=len(kept),
        step_list=kept,
        start_up=replace(start_up, start_ns=window.start_ns, left_out=True),
        reason=f"{window.reason}; the first {plural(cold, 'step')} left out: warm-up",
    )
    return warm, StepRanges(start_ns=ranges.start_ns[cold:], end_ns=ranges.end_ns[cold:])


def _from(window: Window, start_ns: int) -> Window:
    """The window from a later start on."""
    return replace(window, start_ns=start_ns, duration_ns=window.end_ns - start_ns)


def _of_capture(
    trace: Trace, activity: Activity, kinds: KernelKinds, calls: StartUpCalls, window: Window
) -> Window:
    """Of a window that fell back to the whole capture."""
    found = find_start_up(calls, activity, (window.start_ns, window.end_ns))
    steady_ns = window.start_ns if found is None else found.end_ns
    parts = replace(
        window,
        start_up=found,
        period=find_period(trace, activity, kinds, steady_ns),
        proposals=proposed_ranges(trace, activity, None if found is None else steady_ns),
    )
    if found is None or found.work_frac > MAX_START_UP_WORK_FRAC:
        return _with_pause(activity, parts)
    after = activity.start_ns[activity.start_ns >= found.end_ns]
    start_ns = int(after[0])
    pause = find_pause(activity, start_ns, window.end_ns)
    if pause is not None and pause.before <= MAX_TAIL_FRAC * len(after):
        start_ns = pause.end_ns
    rest = _with_pause(
        activity,
        replace(
            _from(parts, start_ns),
            start_up=replace(found, left_out=True),
            reason=f"{window.reason}; begins after start-up",
        ),
    )
    # A little that tells nothing either does not stand for the capture.
    once = rest.period is None and rest.duration_ns < MIN_REST_FRAC * window.duration_ns
    once |= rest.pause is not None and rest.duration_ns < found.duration_ns
    return parts if once else rest


def _with_pause(activity: Activity, window: Window) -> Window:
    """Start-up that is part of the window says more than a pause in it."""
    if window.start_up is not None and not window.start_up.left_out:
        return window
    return replace(window, pause=find_pause(activity, window.start_ns, window.end_ns))
