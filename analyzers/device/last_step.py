"""What a window of steps lacks: it begins with its first work, and its last step ends with its last.

A job that waits for data at each step's start shows that wait between steps: one fewer than steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from perfdoc.analyzers.base.intervals import Intervals, union
from perfdoc.analyzers.device.activity import Activity
from perfdoc.analyzers.device.marks import of_process
from perfdoc.analyzers.device.range_names import KnownRanges
from perfdoc.analyzers.device.window import StepRanges
from perfdoc.results.figures import duration, per_cent
from perfdoc.results.ranks import Window
from perfdoc.traces import Note, Trace

_FEWEST_STEPS = 3
_NEVER = np.iinfo(np.int64).max
_SHORT_FRAC = 0.02
"""Of the mean step: what the last one lacks, shared out over all of them. Less is no matter."""


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
"""From its launch to its start the first work waited for other work, which a capture that begins then may
not show."""


def with_outside(
    trace: Trace, activity: Activity, window: Window, ranges: StepRanges, known: KnownRanges
) -> Window:
    """A window of a single step with the idle time that its range has on the host beside it: of more steps
    that is the wait between them."""
    first = int(np.argmin(np.where(activity.start_ns >= window.start_ns, activity.start_ns, _NEVER)))
    launch_ns = int(activity.launch_start_ns[first])
    if window.kind != "steps" or window.steps != 1 or launch_ns < 0 or activity.on_host:
        return window
    earlier, later = activity.start_ns < window.start_ns, activity.start_ns >= window.end_ns
    begin = max(int(ranges.start_ns[0]), int(activity.end_ns[earlier].max(initial=0)))
    begin = begin if window.start_ns - launch_ns < _QUEUED_NS else window.start_ns
    end = min(int(ranges.end_ns[-1]), int(activity.start_ns[later].min(initial=_NEVER)))
    rows = of_process(trace, known.data, trace.devices[activity.device].process)
    loads = union(trace.ranges.start_ns[rows], trace.ranges.end_ns[rows])
    parts = [(a, b) for a, b in ((begin, window.start_ns), (window.end_ns, end)) if a < b]
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
