"""What a window of steps lacks: it begins with its first work, and its last step ends with its last.

A job that waits for data at each step's start shows that wait between steps: one fewer than steps.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfdoc.analyzers.base.intervals import union
from perfdoc.analyzers.device.activity import Activity
from perfdoc.analyzers.device.launches import Launches
from perfdoc.analyzers.device.range_names import KnownRanges, open_on
from perfdoc.analyzers.device.start_up_calls import find_calls
from perfdoc.analyzers.device.window import StepRanges
from perfdoc.analyzers.kernel_class.classify import KernelKinds
from perfdoc.results.figures import duration, per_cent
from perfdoc.results.ranks import Window
from perfdoc.traces import Trace
from perfdoc.traces.table import among, unique

_FEWEST_STEPS = 2
_NEVER = np.iinfo(np.int64).max
_SHORT_FRAC = 0.02
"""Of the mean step: what the last one lacks, shared out over all of them. Less is no matter."""
_OF_TWO_FRAC = 0.2
"""Of a step, what the second of two lacks: with less, two that are off by half of it tell more than one."""
_ONCE_FRAC = 0.05
"""Of the time before the only step, in calls that a process makes once: it is start-up."""


def without_short(
    activity: Activity, kinds: KernelKinds, window: Window, ranges: StepRanges, last: str
) -> tuple[Window, StepRanges, tuple[int, str]]:
    """Without the last of the steps, where what it lacks counts: the idle time before the next one's first
    launch, which the capture does not show, as the others have it at their ends. And (what it lacks, words).
    It stays all the same, which is told, where it is longer than any other, or the only one with kernels of
    some kind, as the update that micro-batches lead to; and of two where that is little, or no range shows
    half as much beside them: once may be by chance. last: as of the request."""
    busy = activity.busy
    if window.kind != "steps" or not _FEWEST_STEPS <= window.steps < 1 / _SHORT_FRAC or not len(busy):
        return window, ranges, (0, "")
    *others, short = window.step_list
    beside_ns, window = window.outside_ns, replace(window, outside_ns=0, outside_data_ns=0)
    ends = np.array([step.end_ns for step in others], np.int64)
    done = busy.end_ns[np.maximum(np.searchsorted(busy.start_ns, ends, "left") - 1, 0)]
    following = np.minimum(np.searchsorted(activity.start_ns, ends, "left"), len(activity.start_ns) - 1)
    launched = activity.launch_start_ns[following]
    lacks_ns = round(float(np.median(np.maximum(np.minimum(launched, ends) - done, 0))))
    usual_ns = float(np.median([step.duration_ns for step in others]))
    least_ns = _SHORT_FRAC * usual_ns * window.steps
    lacks = lacks_ns > least_ns
    longest_ns = max(step.duration_ns for step in others) + (0 if lacks else least_ns)
    stays = last == "stays" or short.duration_ns > longest_ns
    if window.steps == _FEWEST_STEPS and lacks:
        stays = stays or 2 * beside_ns < lacks_ns or lacks_ns < _OF_TWO_FRAC * usual_ns
    stays = stays or _of_last_alone_ns(activity, kinds, window) > _SHORT_FRAC * usual_ns
    longer_ns = short.duration_ns + lacks_ns - usual_ns
    works = f" and works {duration(round(longer_ns))} longer than they do" if longer_ns > least_ns else ""
    said = (
        f"The last step ends with its last work, where others have {duration(lacks_ns)} of idle time "
        f"({per_cent(lacks_ns / usual_ns)}, median){works}: it {'counts as one' if stays else 'is left out'}."
    )
    told = (lacks_ns, said) if lacks else (0, "")
    ranges = replace(ranges, last_may_go=not stays)
    if stays or not (lacks or last):
        return window, ranges, told
    window = replace(window, end_ns=int(ends[-1]), duration_ns=int(ends[-1]) - window.start_ns)
    behind = int(ranges.start_ns[-1]), int(ranges.end_ns[-1])
    ranges = replace(ranges, start_ns=ranges.start_ns[:-1], end_ns=ranges.end_ns[:-1], following=behind)
    return replace(window, steps=len(others), step_list=others), ranges, told


def _of_last_alone_ns(activity: Activity, kinds: KernelKinds, window: Window) -> int:
    """Of the kernels of kinds that the last step runs, and none before it."""
    rows = np.flatnonzero((activity.kernel >= 0) & (activity.start_ns >= window.start_ns))
    kind, start = kinds.kind[activity.kernel[rows]], activity.start_ns[rows]
    last = start >= window.step_list[-1].start_ns
    only = rows[last & (start < window.end_ns) & ~among(kind, unique(kind[~last]))]
    return int((activity.end_ns[only] - activity.start_ns[only]).sum())


_QUEUED_NS = 1_000_000
"""For so long launched work waits beside an idle device only where that does what a capture that begins then
does not show."""


def with_outside(
    trace: Trace, activity: Activity, calls: Launches, window: Window, ranges: StepRanges, known: KnownRanges
) -> Window:
    """A window of a single step with the idle time that its range has on the host beside it: of more steps
    that is the wait between them, and of two this tells of more than one. What runs once is no part of it,
    nor what an open range has behind it."""
    if window.kind != "steps" or window.steps > _FEWEST_STEPS or activity.on_host:
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
