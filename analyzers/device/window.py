"""The stretch of a device's time that is analysed: the steps, the capture, or what the user says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.base.rows import kept, picked
from perfdoc.analyzers.device.activity import Activity
from perfdoc.analyzers.device.event_counts import NO_LAUNCHED, REMEDY, Launched
from perfdoc.analyzers.device.marks import (
    MIN_ITERATIONS,
    Marks,
    cut_at_ns,
    iterations,
    marked,
    of_process,
    recorded_in_a_row,
    with_lost,
    with_their_kernels,
    without_last,
)
from perfdoc.analyzers.device.range_names import KnownRanges, ranges_matching
from perfdoc.records import dataclass
from perfdoc.results.figures import brief, per_cent, plural
from perfdoc.results.names import shorten
from perfdoc.results.ranks import ASKED_FOR, NO_STEPS, Step, Window
from perfdoc.traces import RangeKind, Trace
from perfdoc.traces.table import Bool, distinct

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
    last: Literal["", "stays", "goes"] = ""
    """What becomes of the last step, as on other ranks; empty: it goes where it lacks something."""
    data_pattern: re.Pattern[str] | None = None
    """Names of ranges in which training waits for data, beside the known forms."""

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
    lacking: tuple[tuple[str, str], ...] = ()
    """What is missing of steps that were left out, each with its remedy."""
    hung: tuple[int, int] | None = None
    """Launches in a last step that never closes and is left out, and in the one before it."""
    following: tuple[int, int] | None = None
    """Of the step behind them, where the window ends with its first work."""
    last_may_go: bool = False
    """Whether the last step may go, or has gone, for what it lacks on other ranks."""

    @property
    def met(self) -> StepRanges:
        """With the one behind them: where steps meet."""
        if self.following is None:
            return self
        start, end = self.following
        return StepRanges(start_ns=np.append(self.start_ns, start), end_ns=np.append(self.end_ns, end))


_OTHERS = "Analyse the others with --window BEGIN,END."
_BETWEEN = "End the capture between two steps."
HANGS = (
    "While it hangs, see where each process is: `py-spy dump --pid PID`. Of several ranks, one that is in no "
    "collective is waited for."
)
_NEVER = np.iinfo(np.int64).max
MORE_THAN_A_STEP = 1.5
"""Times the launches of any other step: a last one that never closes and has more holds what follows."""
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
        return _capture(activity, ASKED_FOR)
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
        marks = iterations(trace, activity)
        if marks is None:
            return _capture(activity, NO_STEPS)
        source, count = "each ends with Optimizer.step", len(marks.names)
    else:
        marks, restored = with_lost(marked(trace, rows))
        source += f"; {plural(restored, 'lost one')} put between its neighbours" if restored else ""
        count = len(rows) + restored
    marks, apart = recorded_in_a_row(trace, marks)
    marks, lacking = with_their_kernels(marks, launched)
    no_id = (activity.kernel >= 0) & (not activity.on_host)
    no_id[no_id] = trace.kernels.correlation[activity.kernel[no_id]] < 0
    on_host = activity.on_host or host_time
    if not on_host and _by_host(activity, marks):
        on_host, source = True, f"{source}; by the host's clock, since no launch is known"
    steps, ranges = _host_steps(marks) if on_host else _tile(activity, marks, no_id)
    cut, end_so, hung = "", _BETWEEN, None
    if len(rows) and len(steps) > 1 and ranges.start_ns[-1] == cut_at_ns(trace, rows):
        longest_ns = max(step.duration_ns for step in steps[:-1])
        counts = launched.share_between(marks.start_ns, marks.end_ns)[0]
        most = int(counts[:-1].max())
        if steps[-1].duration_ns > longest_ns and counts[-1] > MORE_THAN_A_STEP * most > 0:
            cut = f"{shorten(marks.names[-1], 48)} left out: its range never closes, and holds what follows: "
            cut += f"{counts[-1]:,} launches, where others have up to {most:,}."
            marks = marks.until(-1)
            steps, ranges = _host_steps(marks) if on_host else _tile(activity, marks, no_id)
        elif steps[-1].duration_ns <= longest_ns:
            stuck_ns = 0 if on_host else _stuck_ns(trace, activity, int(marks.start_ns[-1]))
            marks, cut, hangs = without_last(marks, longest_ns, stuck_ns)
            end_so = HANGS if hangs else _BETWEEN
            hung = int(counts[-1]), int(counts[-2])
            steps, ranges = _host_steps(marks) if on_host else _tile(activity, marks, no_id)
        else:  # a hang is no piece of a step
            cut = f"{shorten(steps[-1].name, 48)} never closes: it counts to its last work's end."
    if not steps:
        return _capture(activity, NO_LAUNCHES)
    told = tuple(note for note in ((apart, _OTHERS), (lacking, REMEDY), (cut, end_so)) if note[0])
    reason = f"step ranges: {source}{_left_out(count - len(steps), count)}"
    window = _window("steps", steps[0].start_ns, steps[-1].end_ns, reason, steps)
    return window, replace(ranges, lacking=told, hung=hung)


_LATE_FRAC = 0.9


def _stuck_ns(trace: Trace, activity: Activity, since_ns: int) -> int:
    """How long its process is seen behind this, 0 where a thread that launches calls CUDA near the end, or
    closes a range, as one that saves a checkpoint."""
    calls, threads = trace.api_calls, trace.threads_of(trace.devices[activity.device].process)
    os_calls, closed = trace.os_calls, np.isin(trace.ranges.thread, threads) & ~trace.ranges.never_closed
    ends = (
        calls.end_ns[trace.calls_of(threads)],
        os_calls.end_ns[np.isin(os_calls.thread, threads)],
        trace.ranges.end_ns[closed],
    )
    seen_ns = max(int(end.max(initial=since_ns)) for end in ends) - since_ns
    launching = activity.launching_threads
    own = trace.ranges.end_ns[closed & np.isin(trace.ranges.thread, launching)]
    moves = np.append(calls.start_ns[trace.calls_of(launching)], own)
    return 0 if (moves >= since_ns + _LATE_FRAC * seen_ns).any() else seen_ns


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
    rows = of_process(trace, ranges_matching(trace, request.range_pattern.search), process)
    if not len(rows):
        raise ValueError(f"no range of process {process} matches {request.range_pattern.pattern!r}")
    bounds = int(trace.ranges.start_ns[rows].min()), int(trace.ranges.end_ns[rows].max())
    return bounds, f"from the first to the last range that matches {request.range_pattern.pattern!r}"


_GIVEN = "given with --window"


def _left_out(count: int, of: int) -> str:
    return f" ({count} of {of} left out: inside another one, or nothing ran in them)" if count else ""


def _capture(activity: Activity, reason: str) -> tuple[Window, StepRanges]:
    return _window("capture", *activity.span, reason), _NO_RANGES


def _step_ranges(
    trace: Trace, activity: Activity, pattern: re.Pattern[str] | None, known: KnownRanges
) -> tuple[str, I64]:
    """Where the form is from, and rows of step ranges of the device's process: those on threads that launched
    the device's work, else (a thread that only marks steps) those on any."""
    candidates = known.steps
    if pattern is not None:
        candidates = [("--step-range", ranges_matching(trace, pattern.search))]
    launching = activity.launching_threads
    for source, rows in candidates:
        rows = of_process(trace, rows, trace.devices[activity.device].process)
        rows = rows[trace.ranges.kind[rows] != RangeKind.MARK]
        if len(rows):
            on_launching = rows[np.isin(trace.ranges.thread[rows], launching)]
            return source, on_launching if len(on_launching) else rows
    return "", np.empty(0, np.int64)


_BEHIND_FRAC = 0.5
"""Of a step. Over some steps the share of each leaf is then off by a part of that."""


def _tile(activity: Activity, marks: Marks, no_id: Bool) -> tuple[list[Step], StepRanges]:
    """Steps on the device's own time.

    A step starts with the first activity that was launched at or after its range began on the host and is
    not ahead of its turn; it ends where the next one starts, the last with the last activity launched inside
    its range. no_id: activities that lost the link to their launch, and belong to the step that they run in.
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
    starts = _first(activity, np.minimum(step, last), last + 1)
    # "At or after": an activity of a later step that ran earlier starts this one too.
    starts = np.minimum.accumulate(starts[::-1])[::-1]
    in_last = inside & (step == last)
    later = activity.start_ns[launch >= marks.end_ns[last]]
    # What a later step launches runs after the range has ended, wherever its call is.
    unlinked = no_id | (launch < 0) & (activity.start_ns < marks.end_ns[last])
    in_last |= unlinked & (activity.start_ns >= starts[-1]) & (activity.start_ns < later.min(initial=_NEVER))
    end = int(activity.end_ns[in_last].max())
    return _steps(marks, starts, np.append(starts[1:], end))


def _first(activity: Activity, step: I64, steps: int) -> I64:
    """When the first activity of each step began, but for those, where a step has others, that ran beside an
    earlier step's work on the stream that computes most: a batch that is copied early, on another stream."""
    rows = np.flatnonzero(step >= 0)
    columns = (step, activity.start_ns, activity.end_ns, activity.stream, activity.is_compute)
    of, start, end, stream, is_compute = (picked(column, rows) for column in columns)
    _, stream = distinct(stream)
    computes = np.bincount(stream, np.where(is_compute, end - start, 0))
    main = stream == computes.argmax()  # all in turn, though kernels may begin before the last has ended
    done = np.zeros(steps + 1, np.int64)
    np.maximum.at(done, of[main] + 1, end[main])
    in_turn = main | (start >= np.maximum.accumulate(done)[of])
    found = np.full((2, steps), _NEVER, np.int64)
    for first, some in zip(found, (in_turn, ~in_turn), strict=True):
        steps_of, starts = kept(some, of, start)
        first[steps_of[::-1]] = starts[::-1]  # by start, and the last assignment wins
    return np.asarray(np.where(found[0] < _NEVER, found[0], found[1]))


def _by_host(activity: Activity, marks: Marks) -> bool:
    """Whether the host's clock can bound the steps of a device none of whose launches is known: all work lies
    so near to them that the device was never half a step behind."""
    if (activity.launch_start_ns >= 0).any() or len(marks.names) < MIN_ITERATIONS:
        return False
    first, last = activity.span
    near = float(np.median(marks.end_ns - marks.start_ns)) * _BEHIND_FRAC
    return abs(first - int(marks.start_ns[0])) <= near and abs(last - int(marks.end_ns[-1])) <= near


def _host_steps(marks: Marks) -> tuple[list[Step], StepRanges]:
    """Steps of a CPU rank, or without the device's time: from range to range, the last to its own end."""
    return _steps(marks, marks.start_ns, np.append(marks.start_ns[1:], marks.end_ns[-1]))


def _steps(marks: Marks, starts: I64, ends: I64) -> tuple[list[Step], StepRanges]:
    """A step for each of the first marks, with these bounds on the device; empty ones left out."""
    ran = np.flatnonzero(ends > starts)
    steps = [
        Step(name=marks.names[i], start_ns=a, duration_ns=b - a)
        for i, a, b in zip(ran.tolist(), starts[ran].tolist(), ends[ran].tolist(), strict=True)
    ]
    return steps, StepRanges(start_ns=marks.start_ns[ran], end_ns=marks.end_ns[ran])
