"""The stretch of a device's time that is analysed: the steps, the capture, or what the user says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.device.activity import Activity
from perfdoc.analyzers.device.event_counts import MAX_MISSING_FRAC, NO_LAUNCHED, Launched
from perfdoc.analyzers.device.range_names import KnownRanges, ranges_matching
from perfdoc.results.figures import brief, per_cent, plural
from perfdoc.results.names import shorten
from perfdoc.results.ranks import Step, Window
from perfdoc.traces import RangeKind, Trace
from perfdoc.traces.table import Bool

NO_LAUNCHES = "no activity could be matched to a launch inside the step ranges"
"""Why steps that are marked cannot be used."""
MAX_START_UP_FRAC = 0.2
"""Of a window that somebody chose: with more of it in start-up nothing is promised. In a capture start-up
that is not left out is most of the work."""


@dataclass(frozen=True, kw_only=True)
class WindowRequest:
    """At most one of bounds, range and whole capture is set. Without them and steps of the user's: the known
    steps, else the whole capture."""

    bounds_ns: tuple[int, int] | None = None
    range_pattern: re.Pattern[str] | None = None
    """From the first to the last matching range of the rank's process, clipped to the ranges' host times."""
    step_pattern: re.Pattern[str] | None = None
    """Names of step ranges, in place of the known forms; with bounds or a range those that begin inside."""
    whole_capture: bool = False
    data_pattern: re.Pattern[str] | None = None
    """Names of ranges in which training waits for data, beside the known forms."""
    table_patterns: tuple[re.Pattern[str], ...] = ()
    """Names of ranges that the table of ranges has rows of; no part of the window's choice."""

    @property
    def chosen(self) -> bool:
        """Whether the user chose the window itself, and not steps, which perfdoc makes a window of."""
        some = self.bounds_ns is not None or self.range_pattern is not None or self.whole_capture
        return some and self.step_pattern is None


@dataclass(frozen=True, kw_only=True)
class StepRanges:
    """Where the ranges of a window's steps lie on the host: a column each, in the order of the steps."""

    start_ns: I64
    end_ns: I64
    lacking: str = ""
    """What is missing of steps at the ends that were left out; empty without any."""


_NEVER = np.iinfo(np.int64).max
_NO_RANGES = StepRanges(start_ns=np.empty(0, np.int64), end_ns=np.empty(0, np.int64))


def runs_once(window: Window, *, chosen: bool) -> str:
    """Why nothing is promised of a window: what runs once is much of it. Empty where it is not.

    chosen: whether the user chose it.
    """
    if window.start_up is not None and not window.start_up.left_out:
        part = window.start_up.duration_ns / window.duration_ns
        if part >= MAX_START_UP_FRAC or (window.kind == "capture" and not chosen):
            return f"{per_cent(part)} of the window is start-up, which runs once"
    if window.pause is not None:
        part = window.pause.duration_ns / window.duration_ns
        return f"{per_cent(part)} of the window is one pause of {brief(window.pause.duration_ns)}"
    return ""


def find_window(
    trace: Trace,
    activity: Activity,
    request: WindowRequest,
    known: KnownRanges,
    *,
    host_time: bool = False,
    launched: Launched = NO_LAUNCHED,
) -> tuple[Window, StepRanges]:
    """The window of one device, and its steps' ranges. host_time: steps go by the host's clock, since work is
    missing from the file. launched: the process's launches; steps at either end whose kernels are missing are
    left out.

    Raises ValueError where the user's request matches nothing.
    """
    process = trace.devices[activity.device].process
    asked, why = _asked(trace, process, request)
    if asked is not None and request.step_pattern is None:
        return _window("user", *asked, why), _NO_RANGES
    if request.whole_capture and request.step_pattern is None:
        return _capture(activity, "given with --window capture")
    source, rows = _step_ranges(trace, activity, request.step_pattern, known)
    if asked is not None:
        begin = trace.ranges.start_ns[rows]
        rows = rows[(begin >= asked[0]) & (begin < asked[1])]
        source += f" inside what was {why}" if why == _GIVEN else f" {why}"
    if not len(rows):
        if request.step_pattern is not None:
            inside = " begins inside the window and" if asked is not None else ""
            raise ValueError(
                f"no range of process {process}{inside} matches {request.step_pattern.pattern!r}"
            )
        marks = _iterations(trace, activity)
        if marks is None:
            return _capture(activity, "no range in the capture names a step")
        source, count = "each ends with Optimizer.step", len(marks.names)
    else:
        marks, restored = _with_lost(_marked(trace, rows))
        source += f"; {plural(restored, 'lost one')} put between its neighbours" if restored else ""
        count = len(rows) + restored
    marks, lacking = _with_their_kernels(marks, launched)
    no_id = np.zeros(len(activity.kernel), bool)
    if not activity.on_host:
        no_id = (activity.kernel >= 0) & (trace.kernels.correlation[activity.kernel] < 0)
    on_host = activity.on_host or host_time
    steps, ranges = _host_steps(marks) if on_host else _tile(activity, marks, no_id)
    if not steps:
        return _capture(activity, NO_LAUNCHES)
    reason = f"step ranges: {source}{_left_out(count - len(steps), count)}"
    window = _window("steps", steps[0].start_ns, steps[-1].end_ns, reason, steps)
    return window, replace(ranges, lacking=lacking)


def _window(
    kind: Literal["steps", "capture", "user"], start: int, end: int, reason: str, steps: Sequence[Step] = ()
) -> Window:
    return Window(
        kind=kind,
        start_ns=start,
        end_ns=end,
        duration_ns=end - start,
        steps=len(steps),
        step_list=list(steps),
        reason=reason,
    )


def _asked(trace: Trace, process: int, request: WindowRequest) -> tuple[tuple[int, int] | None, str]:
    """The stretch that the user names, and how; None where it is none. Raises ValueError."""
    if request.bounds_ns is not None:
        return request.bounds_ns, _GIVEN
    if request.range_pattern is None:
        return None, ""
    rows = _of_process(trace, ranges_matching(trace, request.range_pattern.search), process)
    if not len(rows):
        raise ValueError(f"no range of process {process} matches {request.range_pattern.pattern!r}")
    bounds = int(trace.ranges.start_ns[rows].min()), int(trace.ranges.end_ns[rows].max())
    return bounds, f"from the first to the last range that matches {request.range_pattern.pattern!r}"


_GIVEN = "given with --window"


def _left_out(count: int, of: int) -> str:
    return f" ({count} of {of} left out: inside another one, or nothing ran in them)" if count else ""


def _capture(activity: Activity, reason: str) -> tuple[Window, StepRanges]:
    return _window("capture", *activity.span, reason), _NO_RANGES


def _of_process(trace: Trace, rows: I64, process: int) -> I64:
    return rows[np.isin(trace.ranges.thread[rows], trace.threads_of(process))]


def _step_ranges(
    trace: Trace, activity: Activity, pattern: re.Pattern[str] | None, known: KnownRanges
) -> tuple[str, I64]:
    """Where the form is from, and rows of step ranges of the device's process: those on threads that launched
    the device's work, else (a thread that only marks steps) those on any."""
    candidates = known.steps
    if pattern is not None:
        candidates = [("--step-range", ranges_matching(trace, pattern.search))]
    launching = np.unique(activity.launch_thread)
    for source, rows in candidates:
        rows = _of_process(trace, rows, trace.devices[activity.device].process)
        rows = rows[trace.ranges.kind[rows] != RangeKind.MARK]
        if len(rows):
            on_launching = rows[np.isin(trace.ranges.thread[rows], launching)]
            return source, on_launching if len(on_launching) else rows
    return "", np.empty(0, np.int64)


@dataclass(frozen=True, kw_only=True)
class _Marks:
    """Steps as the host marks them, in order."""

    names: Sequence[str]
    start_ns: I64
    end_ns: I64


def _marked(trace: Trace, rows: I64) -> _Marks:
    rows = _outermost(trace, rows)
    return _Marks(
        names=[trace.strings[i] for i in trace.ranges.name[rows].tolist()],
        start_ns=trace.ranges.start_ns[rows],
        end_ns=trace.ranges.end_ns[rows],
    )


_NUMBERED = re.compile(r"(.*?)(\d{1,15})")
_LIKE_OTHERS = 2.0
"""Times longer or shorter than the others, a gap may hold the step whose number is missing."""


def _with_lost(marks: _Marks) -> tuple[_Marks, int]:
    """The steps with those whose range is lost, and how many: between two whose numbers leave out one, and
    where the time for it is. Without them a neighbour would count as twice as long."""
    usual_ns = float(np.median(marks.end_ns - marks.start_ns))
    steps: list[tuple[str, int, int]] = []
    number: re.Match[str] | None = None
    for name, start, end in zip(marks.names, marks.start_ns.tolist(), marks.end_ns.tolist(), strict=True):
        before, number = number, _NUMBERED.fullmatch(name)
        if before and number and before[1] == number[1] and int(number[2]) - int(before[2]) == 2:
            since = steps[-1][2]
            if usual_ns / _LIKE_OTHERS <= start - since <= usual_ns * _LIKE_OTHERS:
                steps.append((f"{number[1]}{int(number[2]) - 1}", since, start))
        steps.append((name, start, end))
    lost = len(steps) - len(marks.names)
    if not lost:
        return marks, 0
    names, starts, ends = zip(*steps, strict=True)
    return _Marks(names=names, start_ns=np.array(starts, np.int64), end_ns=np.array(ends, np.int64)), lost


_FEWEST_LOST = 3


def _with_their_kernels(marks: _Marks, launched: Launched) -> tuple[_Marks, str]:
    """The steps from the first to the last one whose launches have their kernels in the file, and what to say
    of the others. All of them where one in between lacks its kernels too, or most do: events were sampled."""
    of, without = launched.share_between(marks.start_ns, marks.end_ns)
    lost = (without >= _FEWEST_LOST) & (without > MAX_MISSING_FRAC * of)
    whole = np.flatnonzero(~lost)
    if not lost.any() or 2 * len(whole) < len(lost) or lost[whole[0] : whole[-1] + 1].any():
        return marks, ""
    kept = slice(int(whole[0]), int(whole[-1]) + 1)
    names = [shorten(marks.names[i], 48) for i in np.flatnonzero(lost).tolist()]
    which = names[0] if len(names) == 1 else f"{len(names)} steps ({names[0]} to {names[-1]})"
    found = _Marks(names=marks.names[kept], start_ns=marks.start_ns[kept], end_ns=marks.end_ns[kept])
    said = (
        f"{int(without[lost].sum()):,} of {int(of[lost].sum()):,} kernel launches have no kernel in the file"
    )
    return found, f"{which} left out: {said}."


_MIN_ITERATIONS = 3
_ALIKE_SHARE = 0.8
_ALIKE_FRAC = 0.1
"""Of the median: so far may the launches of that share of iterations lie from it. Two optimizers that take
turns, as in adversarial training, end half an iteration each."""


def _iterations(trace: Trace, activity: Activity) -> _Marks | None:
    """Steps from one end of PyTorch's Optimizer.step to the next, the first from the first launch on; None
    where they do not launch about as much each."""
    process = trace.devices[activity.device].process
    rows = _of_process(trace, ranges_matching(trace, re.compile(r"Optimizer\.step#").match), process)
    rows = rows[(trace.ranges.kind[rows] != RangeKind.MARK) & ~trace.ranges.never_closed[rows]]
    launched = np.sort(activity.launch_start_ns[activity.launch_start_ns >= 0])
    if len(rows) < _MIN_ITERATIONS or not len(launched):
        return None
    rows = _outermost(trace, rows)
    begin, end = trace.ranges.start_ns[rows], trace.ranges.end_ns[rows]
    # Between optimizers that follow one another, as of parts of a model, nothing is launched.
    between = np.searchsorted(launched, begin[1:], "left") - np.searchsorted(launched, end[:-1], "left")
    end = end[np.append(between > 0, True)]
    counts = np.diff(np.searchsorted(launched, end, "left"))
    if len(end) < _MIN_ITERATIONS:
        return None
    alike = np.abs(counts - np.median(counts)) <= _ALIKE_FRAC * np.median(counts)
    if alike.mean() < _ALIKE_SHARE or launched[0] >= end[0]:
        return None
    # No number that ends a name: ranks may begin with different iterations.
    names = [f"iteration {i} of {len(end)}" for i in range(1, len(end) + 1)]
    return _Marks(names=names, start_ns=np.append(launched[0], end[:-1]), end_ns=end)


def _outermost(trace: Trace, rows: I64) -> I64:
    """Sorted by start, without ranges that lie inside another one of them.

    One that never closed contains nothing: it reaches to the end of the capture for want of a better end.
    """
    start, end = trace.ranges.start_ns[rows], trace.ranges.end_ns[rows]
    end = np.where(trace.ranges.never_closed[rows], start, end)
    order = np.lexsort((-end, start))
    rows, end = rows[order], end[order]
    # In this order a range lies inside an earlier one exactly if it ends no later than one of them did.
    reach = np.maximum.accumulate(end)
    outer = np.ones(len(rows), bool)
    outer[1:] = (end[1:] > reach[:-1]) | (trace.ranges.start_ns[rows][1:] >= reach[:-1])
    return rows[outer]


def _tile(activity: Activity, marks: _Marks, no_id: Bool) -> tuple[list[Step], StepRanges]:
    """Steps on the device's own time.

    A step starts with the first activity that was launched at or after its range began on the host, and
    ends where the next one starts; the last ends with the last activity launched inside its range. no_id:
    activities that lost the link to their launch, and belong to the step that they run in.
    """
    launch = activity.launch_start_ns
    # Step of each activity: the last range that began before its launch; -1 before the first.
    step = np.searchsorted(marks.start_ns, launch, "right") - 1
    step[launch < 0] = -1
    inside = (step >= 0) & (launch < marks.end_ns[np.maximum(step, 0)])
    if not inside.any():
        return [], _NO_RANGES
    # Steps at the end that launched nothing are no steps: what came after them would count as theirs.
    last = int(step[inside].max())
    starts = np.full(last + 1, _NEVER, np.int64)
    np.minimum.at(starts, np.minimum(step[step >= 0], last), activity.start_ns[step >= 0])
    # "At or after": an activity of a later step that ran earlier starts this one too.
    starts = np.minimum.accumulate(starts[::-1])[::-1]
    in_last = inside & (step == last)
    later = activity.start_ns[launch >= marks.end_ns[last]]
    in_last |= no_id & (activity.start_ns >= starts[-1]) & (activity.start_ns < later.min(initial=_NEVER))
    end = int(activity.end_ns[in_last].max())
    return _steps(marks, starts, np.append(starts[1:], end))


def _host_steps(marks: _Marks) -> tuple[list[Step], StepRanges]:
    """Steps of a CPU rank, or without the device's time: from range to range, the last to its own end."""
    return _steps(marks, marks.start_ns, np.append(marks.start_ns[1:], marks.end_ns[-1]))


def _steps(marks: _Marks, starts: I64, ends: I64) -> tuple[list[Step], StepRanges]:
    """A step for each of the first marks, with these bounds on the device; empty ones left out."""
    ran = np.flatnonzero(ends > starts)
    steps = [
        Step(name=marks.names[i], start_ns=a, duration_ns=b - a)
        for i, a, b in zip(ran.tolist(), starts[ran].tolist(), ends[ran].tolist(), strict=True)
    ]
    return steps, StepRanges(start_ns=marks.start_ns[ran], end_ns=marks.end_ns[ran])
