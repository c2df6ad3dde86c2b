"""What a window of steps lacks: it begins with its first work, and its last step ends with its last.

A job that waits for data at each step's start shows that wait between steps: one fewer than steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from perfdoc.analyzers.base.intervals import Intervals, union
from perfdoc.analyzers.device.activity import Activity
from perfdoc.analyzers.device.launches import Launches
from perfdoc.analyzers.device.range_names import KnownRanges, open_on
from perfdoc.analyzers.device.start_up_calls import find_calls
from perfdoc.analyzers.device.window import StepRanges
from perfdoc.results.figures import duration, per_cent
from perfdoc.results.ranks import Window
from perfdoc.traces import Note, Trace

_FEWEST_STEPS = 3
_NEVER = np.iinfo(np.int64).max
_SHORT_FRAC = 0.02
"""Of the mean step: what the last one lacks, shared out over all of them. Less is no matter."""
_ONCE_FRAC = 0.05
"""Of the time before the only step, in calls that a process makes once: it is start-up."""


def lacking_ns(window: Window, busy: Intervals) -> int:
    """The idle time at the end of the other steps, median; 0 where it hardly counts, or steps are few."""
    if window.kind != "steps" or window.steps < _FEWEST_STEPS or not len(busy.start_ns):
        return 0
    others = window.step_list[:-1]
    ends = np.array([step.end_ns for step in others], np.int64)
    last = np.maximum(np.searchsorted(busy.start_ns, ends, "left") - 1, 0)
    idle = float(np.median(np.maximum(ends - np.minimum(busy.end_ns[last], ends), 0)))
    usual = float(np.median([step.duration_ns for step in others]))
    return round(idle) if idle > _SHORT_FRAC * usual * window.steps else 0


_QUEUED_NS = 1_000_000
"""For so long launched work waits beside an idle device only where that does what a capture that begins then
does not show."""


def with_outside(
    trace: Trace, activity: Activity, calls: Launches, window: Window, ranges: StepRanges, known: KnownRanges
) -> Window:
    """A window of a single step with the idle time that its range has on the host beside it: of more steps
    that is the wait between them. What runs once is no part of it, nor what an open range has behind it."""
    if window.kind != "steps" or window.steps != 1 or activity.on_host:
        return window
    start, launched, busy = activity.start_ns, activity.launch_start_ns, activity.busy
    inside = np.flatnonzero(start >= window.start_ns)
    if launched[inside[0]] < 0:
        return window
    order = inside[np.argsort(activity.stream[inside], kind="stable")]
    first = order[np.append(True, activity.stream[order][1:] != activity.stream[order][:-1])]
    since = start[first] - _QUEUED_NS
    held = (launched[first] >= 0) & (launched[first] <= since)
    hidden = bool((held & (busy.covered_within(since, start[first]) == 0)).any())
    begin = max(int(ranges.start_ns[0]), int(activity.end_ns[start < window.start_ns].max(initial=0)))
    if window.start_ns - begin > _SHORT_FRAC * window.duration_ns:
        kinds = find_calls(trace, activity, calls).within(begin, window.start_ns).kinds
        once = union(*(np.concatenate([getattr(of, s) for of in kinds]) for s in ("start_ns", "end_ns")))
        hidden |= once.total_ns > _ONCE_FRAC * (window.start_ns - begin)
    later = start[start >= window.end_ns].min(initial=_NEVER)
    is_open = trace.ranges.never_closed[trace.ranges.start_ns == ranges.start_ns[0]].any()
    end = window.end_ns if is_open else min(int(ranges.end_ns[-1]), int(later))
    before = (window.start_ns if hidden else begin, window.start_ns)
    parts = [(a, b) for a, b in (before, (window.end_ns, end)) if a < b]
    loads = open_on(trace, known.data, activity.launching_threads)
    return replace(
        window,
        outside_ns=sum(b - a for a, b in parts),
        outside_data_ns=sum(loads.clip(a, b).total_ns for a, b in parts),
    )


def last_step_notes(found: Sequence[tuple[Window, int]]) -> list[Note]:
    """For windows, and what the last step of each lacks."""
    lacking = [(window, ns) for window, ns in found if ns]
    if not lacking:
        return []
    window, ns = max(lacking, key=lambda each: (each[1], each[0].start_ns))
    whole = window.step_list[:-1]
    mean = sum(step.duration_ns for step in whole) / len(whole)
    return [
        Note(
            code="last-step-short",
            message=f"{duration(ns)} of idle time between steps ({per_cent(ns / mean)} of one, median) are "
            f"seen {len(whole):,} times in {window.steps:,} steps: the last step ends with its last work. "
            f"The other steps take {duration(round(mean))} in the mean.",
            remedy="Capture more steps: then it hardly counts.",
        )
    ]
