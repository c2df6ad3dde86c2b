"""The stretch of a device's time that is analysed: the steps, the capture, or what the user says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.device.activity import Activity
from perfdoc.analyzers.device.range_names import KnownRanges, ranges_matching
from perfdoc.results.capture_parts import Pause, Period, RangeProposal, StartUp
from perfdoc.results.figures import brief, per_cent
from perfdoc.traces import RangeKind, Trace

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


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step on one device."""

    name: str
    start_ns: int
    end_ns: int
    host_start_ns: int = -1
    """Start of the step's range on the host; -1 unknown."""
    host_end_ns: int = -1


@dataclass(frozen=True, kw_only=True)
class Window:
    """[start, end) on the capture's clock; steps tile it where kind is `steps`.

    Not the published window, which counts its steps and gives their durations: here a step also has its times
    on the host, for the analyses that compare the two.
    """

    kind: Literal["steps", "capture", "user"]
    start_ns: int
    end_ns: int
    steps: Sequence[Step]
    reason: str
    given: bool = False
    """Whether the user asked for the whole capture; a window of kind `user` is given anyhow."""
    start_up: StartUp | None = None
    """These see `capture_parts`."""
    pause: Pause | None = None
    period: Period | None = None
    """Period and proposals are of a window that fell back to the capture."""
    proposals: Sequence[RangeProposal] = ()

    @property
    def duration_ns(self) -> int:
        """Length."""
        return self.end_ns - self.start_ns

    @property
    def runs_once(self) -> str:
        """Why nothing is promised of the window: what runs once is much of it. Empty where it is not."""
        if self.start_up is not None and not self.start_up.left_out:
            part = self.start_up.duration_ns / self.duration_ns
            if part >= MAX_START_UP_FRAC or (self.kind == "capture" and not self.given):
                return f"{per_cent(part)} of the window is start-up, which runs once"
        if self.pause is not None:
            part = self.pause.duration_ns / self.duration_ns
            return f"{per_cent(part)} of the window is one pause of {brief(self.pause.duration_ns)}"
        return ""


def find_window(
    trace: Trace, activity: Activity, request: WindowRequest, known: KnownRanges, *, host_time: bool = False
) -> Window:
    """The window of one device. host_time: steps go by the host's clock, since work is missing from the file.

    Raises ValueError where the user's request matches nothing.
    """
    process = trace.devices[activity.device].process
    asked, why = _asked(trace, process, request)
    if asked is not None and request.step_pattern is None:
        return Window(kind="user", start_ns=asked[0], end_ns=asked[1], steps=(), reason=why)
    if request.whole_capture and request.step_pattern is None:
        return _capture(activity, "given with --window capture", given=True)
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
        return _capture(activity, "no range in the capture names a step")
    outer = _outermost(trace, rows)
    steps = _host_steps(trace, outer) if activity.on_host or host_time else _tile(trace, activity, outer)
    if not steps:
        return _capture(activity, NO_LAUNCHES)
    return Window(
        kind="steps",
        start_ns=steps[0].start_ns,
        end_ns=steps[-1].end_ns,
        steps=steps,
        reason=f"step ranges: {source}{_left_out(len(rows) - len(steps), len(rows))}",
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


def _capture(activity: Activity, reason: str, *, given: bool = False) -> Window:
    start, end = activity.span
    return Window(kind="capture", start_ns=start, end_ns=end, steps=(), reason=reason, given=given)


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


def _tile(trace: Trace, activity: Activity, rows: I64) -> list[Step]:
    """Steps on the device's own time.

    A step starts with the first activity that was launched at or after its range began on the host, and
    ends where the next one starts; the last ends with the last activity launched inside its range.
    """
    launch = activity.launch_start_ns
    begin = trace.ranges.start_ns[rows]
    # Step of each activity: the last range that began before its launch; -1 before the first.
    step = np.searchsorted(begin, launch, "right") - 1
    step[launch < 0] = -1
    inside = (step >= 0) & (launch < trace.ranges.end_ns[rows[np.maximum(step, 0)]])
    if not inside.any():
        return []
    # Steps at the end that launched nothing are no steps: what came after them would count as theirs.
    last = int(step[inside].max())
    rows = rows[: last + 1]
    starts = np.full(last + 1, np.iinfo(np.int64).max, np.int64)
    np.minimum.at(starts, np.minimum(step[step >= 0], last), activity.start_ns[step >= 0])
    # "At or after": an activity of a later step that ran earlier starts this one too.
    starts = np.minimum.accumulate(starts[::-1])[::-1]
    end = int(activity.end_ns[inside & (step == last)].max())
    return _steps(trace, rows, starts.tolist(), [*starts[1:].tolist(), end])


def _host_steps(trace: Trace, rows: I64) -> list[Step]:
    """Steps of a CPU rank, or without the device's time: from range to range, the last to its own end."""
    starts = trace.ranges.start_ns[rows].tolist()
    return _steps(trace, rows, starts, [*starts[1:], int(trace.ranges.end_ns[rows[-1]])])


def _steps(trace: Trace, rows: I64, starts: Sequence[int], ends: Sequence[int]) -> list[Step]:
    """A step for each range, with these bounds on the device; empty ones left out."""
    names = [trace.strings[i] for i in trace.ranges.name[rows].tolist()]
    on_host = zip(trace.ranges.start_ns[rows].tolist(), trace.ranges.end_ns[rows].tolist(), strict=True)
    return [
        Step(name=n, start_ns=a, end_ns=b, host_start_ns=host_a, host_end_ns=host_b)
        for n, a, b, (host_a, host_b) in zip(names, starts, ends, on_host, strict=True)
        if b > a
    ]
