"""Waits for the next batch that no range names: long pauses of the launching thread where steps meet.

The place is between the last CUDA call of a step's range and the first of the next one's. A pause there is a
stretch in which no thread that launches the device's work makes a CUDA call, and that no range names
otherwise. Evidence, strongest first:

- `range`: a range names the loader (not found here, see range_names);
- `thread`: the thread was off the CPU, or in a system call that waits, for most of the pause. What was
  written to a file or sent is left out: a checkpoint or a log;
- `position`: nothing is known of the thread, the pause is far longer than any inside the steps, and not
  what an optimizer on the host would leave: gradients before it, weights behind it.

Where the thread is known to compute, or runs operators, nothing is found: that may be loading in the
training process, or anything else that Python does between steps. Nor where such pauses do not come back:
one may be a checkpoint or an evaluation. Nor where more than a little work is launched between two steps: an
evaluation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from perfdoc.analyzers.base.intervals import EMPTY, I64, Intervals, union
from perfdoc.analyzers.base.rows import kept, picked
from perfdoc.analyzers.device.activity import Activity
from perfdoc.analyzers.device.offload import pauses_with_sent
from perfdoc.analyzers.device.range_names import KnownRanges, open_on
from perfdoc.analyzers.device.window import StepRanges
from perfdoc.kept import table
from perfdoc.patterns import pattern_of
from perfdoc.records import dataclass
from perfdoc.results.ranks import Window
from perfdoc.traces import RangeKind, Trace
from perfdoc.traces.table import among, unique

WaitKind: TypeAlias = Literal["gil", "lock", "io", "write", "sleep", "other"]

MAX_CALL_NAMES = 64
"""Of one thread, by time: a program makes a few dozen different ones."""


@cache
def _kinds() -> list[tuple[WaitKind, str]]:
    return [(kind, pattern) for kind, pattern in table(Path(__file__).resolve().with_name("stalls.yaml"))]


@lru_cache(maxsize=4096)
def wait_kind(call: str) -> WaitKind:
    """What a thread waits for in a call of the C library.

    >>> wait_kind("pthread_cond_timedwait"), wait_kind("fsync"), wait_kind("epoll_wait")
    ('lock', 'write', 'io')
    """
    return next((kind for kind, pattern in _kinds() if pattern_of(pattern).fullmatch(call[:64])), "other")


@dataclass(frozen=True, kw_only=True)
class ThreadTimes:
    """One thread; nothing is in two of the first two sets."""

    waiting: Intervals
    """Off the CPU; where scheduling is not known, inside a call that waits, or for the interpreter's lock."""
    computing: Intervals
    """On a CPU."""
    calls: tuple[tuple[str, WaitKind, Intervals], ...]
    """What it may have waited in: name and kind of the call, and the time in it. Calls nest: sets overlap."""

    @property
    def scheduled(self) -> bool:
        """Whether the capture shows when it was on a CPU."""
        return len(self.computing) > 0

    def inside(self, *kinds: WaitKind) -> Intervals:
        """The time in calls of these kinds."""
        found = EMPTY
        for _, kind, times in self.calls:
            if kind in kinds:
                found = found | times
        return found


def thread_times(trace: Trace, known: KnownRanges, thread: int) -> ThreadTimes:
    """What is known of a thread."""
    states = trace.thread_states
    mine = slice(*np.searchsorted(states.thread, (thread, thread + 1)).tolist())
    start, end, on_cpu = states.start_ns[mine], states.end_ns[mine], states.on_cpu[mine]
    off, on = union(start[~on_cpu], end[~on_cpu]), union(start[on_cpu], end[on_cpu])
    calls = list(_os_calls(trace, thread))
    if len(gil := open_on(trace, known.lock_waits, np.array([thread]))):
        calls.append(("GIL", "gil", gil))
    calls += _frames(trace, thread)
    inside = EMPTY
    for _, kind, times in calls:
        inside = inside | times if kind != "other" else inside
    # A scheduler's word goes before a call's: a thread may compute inside one, or be woken late.
    return ThreadTimes(waiting=off | (inside - on), computing=on, calls=tuple(calls))


_FRAMES: tuple[tuple[WaitKind, re.Pattern[str]], ...] = (
    ("lock", pattern_of(r"(^|/)threading\.py\(\d+\): ")),
    (
        "io",
        pattern_of(r"(^|/)(queue|selectors|multiprocessing/\w+|torch/utils/data/dataloader)\.py\(\d+\): "),
    ),
)
"""What a thread waits for in a Python function, where stacks were recorded: a queue's get, above all."""


def _frames(trace: Trace, thread: int) -> Iterator[tuple[str, WaitKind, Intervals]]:
    """A thread's Python calls that wait, by name."""
    frames = trace.python_calls
    rows = np.flatnonzero(frames.thread == thread)
    for i in unique(frames.name[rows]).tolist():
        name = trace.strings[i]
        kind = next((kind for kind, form in _FRAMES if form.search(name[-160:])), None)
        if kind is not None:
            own = rows[frames.name[rows] == i]
            yield name, kind, union(frames.start_ns[own], frames.end_ns[own])


def _os_calls(trace: Trace, thread: int) -> Iterator[tuple[str, WaitKind, Intervals]]:
    """A thread's calls of the C library by name: those with most time."""
    rows = trace.os_calls
    mine = slice(*np.searchsorted(rows.thread, (thread, thread + 1)).tolist())
    start, end = rows.start_ns[mine], rows.end_ns[mine]
    names, of = np.unique(rows.name[mine], return_inverse=True)
    order = np.argsort(of, kind="stable")
    first = np.searchsorted(of[order], np.arange(len(names) + 1))
    most = np.argsort(-np.bincount(of, end - start, len(names)), kind="stable")[:MAX_CALL_NAMES]
    for i in most.tolist():
        own = order[first[i] : first[i + 1]]
        name = trace.strings[int(names[i])]
        yield name, wait_kind(name), union(start[own], end[own])


PAUSE_NS = 1_000_000
"""Between steps Python makes a CUDA call every few microseconds to some hundred."""
SHORT_STEP_FRAC, TIMES = 0.1, 20
"""Of the median step, as of a server that decodes, and times as long as from one call to the next: a shorter
pause counts in steps so short."""
MIN_THREAD_FRAC = 0.01
"""Of the median step: what a blocked thread must cost in a pause to count."""
MIN_POSITION_NS, MIN_POSITION_FRAC = 5_000_000, 0.1
"""The same where only the position is known: logging and schedulers take milliseconds too."""
LONGER_THAN_INSIDE = 3
"""And by how much longer than the longest pause inside a step: a slow host is slow everywhere."""
MIN_PLACES, MIN_PLACES_FRAC = 2, 0.1
"""Of the places where steps meet: with as many as ten workers that are too slow, one step in ten waits."""
QUIET_FRAC = 0.2
"""Kernels launched between two step ranges, as a share of those of a step: an evaluation launches more."""
MOST = 0.5
"""Of a pause, for a state of the thread to be that of the pause."""


@dataclass(frozen=True, kw_only=True)
class Stalls:
    """Inferred waits for data, on the host's time; disjoint."""

    thread: Intervals = EMPTY
    position: Intervals = EMPTY
    pauses: Intervals = EMPTY
    """Every pause where steps meet in which the device idles for PAUSE_NS, or less in short steps, whatever
    the host did in it; what ranges name left out."""

    @cached_property
    def both(self) -> Intervals:
        """Every inferred wait."""
        return self.thread | self.position

    @cached_property
    def stalled(self) -> Intervals:
        """The pauses that hold one: a thread that waits wakes up now and then."""
        held = self.both.covered_within(self.pauses.start_ns, self.pauses.end_ns) > 0
        return Intervals(self.pauses.start_ns[held], self.pauses.end_ns[held])


NO_STALLS = Stalls()


def find_stalls(
    trace: Trace, activity: Activity, window: Window, steps: StepRanges, known: KnownRanges, named: Intervals
) -> Stalls:
    """Look for them on one device. named: collections of garbage and loading that ranges name."""
    threads = activity.launching_threads[activity.launching_threads >= 0]
    if activity.on_host or len(steps.start_ns) < 2 or not len(threads):
        return NO_STALLS
    rows = trace.calls_of(threads)
    start = picked(trace.api_calls.start_ns, rows)
    if (start[1:] < start[:-1]).any():
        rows = rows[np.argsort(start, kind="stable")]
        start = trace.api_calls.start_ns[rows]
    calls = union(start, trace.api_calls.end_ns[rows])
    places = _places(activity, steps, calls) if len(calls) else EMPTY
    if not len(places):
        return NO_STALLS
    pauses = places - (calls | _named_otherwise(trace, known, threads, steps, places) | named)
    step_ns = float(np.median([s.duration_ns for s in window.step_list]))
    shortest = max(SHORT_STEP_FRAC * step_ns, TIMES * float(np.median(np.diff(start))))
    long = _idle_ns(activity, pauses) >= min(PAUSE_NS, shortest)
    pauses = Intervals(pauses.start_ns[long], pauses.end_ns[long])
    if not len(pauses):
        return NO_STALLS
    following = np.minimum(np.searchsorted(start, pauses.end_ns, "left"), len(start) - 1)
    thread = trace.api_calls.thread[rows[following]].astype(np.int64)
    waits, unknown = _by_evidence(trace, known, pauses, thread, _operators(trace, threads, pauses))
    unknown = unknown - pauses_with_sent(trace, activity.device, pauses, len(window.step_list))
    unknown = unknown - _in_ending_steps(trace, activity.device, steps, pauses)
    found = Stalls(thread=waits, position=unknown, pauses=pauses)
    return _judged(activity, steps, step_ns, calls, places, found)


def _places(activity: Activity, steps: StepRanges, calls: Intervals) -> Intervals:
    """Where steps meet, on the host's time; without those where much is launched between the ranges."""
    begin, finish = _bounds(steps)
    last = np.searchsorted(calls.start_ns, finish[:-1], "left") - 1
    first = np.searchsorted(calls.start_ns, begin[1:], "left")
    launched = activity.launch_start_ns[activity.is_compute & (activity.launch_start_ns >= 0)]
    launched = np.sort(launched, kind="stable")  # nearly in order already
    at_begin, at_finish = (np.searchsorted(launched, t, "left") for t in (begin, finish))
    inside = np.median(at_finish - at_begin)
    quiet = at_begin[1:] - at_finish[:-1] <= QUIET_FRAC * inside
    last, first = kept(quiet & (last >= 0) & (first < len(calls)), last, first)
    return union(calls.end_ns[last], calls.start_ns[first])


def _bounds(steps: StepRanges) -> tuple[I64, I64]:
    """Start and end of each step's range on the host; none reaches into the next one."""
    begin = steps.start_ns
    return begin, np.append(np.minimum(steps.end_ns[:-1], begin[1:]), steps.end_ns[-1])


def _in_ending_steps(trace: Trace, device: int, steps: StepRanges, pauses: Intervals) -> Intervals:
    """The pauses that mostly lie in the range of the step that ends: it logs there, and fetches behind."""
    begin, finish = _bounds(steps)
    end = finish[np.maximum(np.searchsorted(begin, pauses.start_ns, "right") - 1, 0)]
    mostly = end - pauses.start_ns >= MOST * (pauses.end_ns - pauses.start_ns)
    ranges = trace.ranges_of(trace.threads_of(trace.devices[device].process))
    mostly &= among(end, trace.ranges.end_ns[ranges])  # a step that was lost has no range of its own
    return Intervals(pauses.start_ns[mostly], pauses.end_ns[mostly])


def _operators(trace: Trace, threads: I64, pauses: Intervals) -> Intervals:
    """Framework operators on these threads that reach into the pauses."""
    found = trace.operators
    rows = np.flatnonzero(np.isin(found.thread, threads))
    rows = rows[pauses.covered_within(found.start_ns[rows], found.end_ns[rows]) > 0]
    return union(found.start_ns[rows], found.end_ns[rows])


def _named_otherwise(
    trace: Trace, known: KnownRanges, threads: I64, steps: StepRanges, places: Intervals
) -> Intervals:
    """Ranges that say what is done where steps meet: those that end there, and lie there for the most part.

    One that also holds a step's work, or more than one step, says nothing of the pause.
    """
    ranges = trace.ranges
    rows = trace.ranges_of(threads)
    rows = rows[(ranges.kind[rows] != RangeKind.MARK) & ~ranges.never_closed[rows]]
    silent = np.append(known.lock_waits, known.lock_held)  # they say nothing of what is done
    if len(silent):
        rows = np.setdiff1d(rows, silent)
    start, end = ranges.start_ns[rows], ranges.end_ns[rows]
    at = np.searchsorted(places.start_ns, end, "left") - 1
    start, end = kept((at >= 0) & (end <= places.end_ns[np.maximum(at, 0)]), start, end)  # few end there
    inside = places.covered_within(start, end)
    is_step = among(start, steps.start_ns) & among(end, steps.end_ns)
    return union(*kept((inside > 0) & (inside >= MOST * (end - start)) & ~is_step, start, end))


def _longest_inside_ns(steps: StepRanges, calls: Intervals) -> float:
    """The longest pause between two calls inside a step's range, median over steps."""
    begin, finish = _bounds(steps)
    start, end = calls.end_ns[:-1], calls.start_ns[1:]
    first, last = np.searchsorted(start, begin, "left"), np.searchsorted(end, finish, "right")
    length = end - start
    longest = [length[a:b].max(initial=0) for a, b in zip(first.tolist(), last.tolist(), strict=True)]
    return float(np.median(longest))


def _idle_ns(activity: Activity, times: Intervals) -> I64:
    """How long the device idles in each."""
    idle: I64 = times.end_ns - times.start_ns - activity.busy.covered_within(times.start_ns, times.end_ns)
    return idle


def _by_evidence(
    trace: Trace, known: KnownRanges, pauses: Intervals, thread: I64, operators: Intervals
) -> tuple[Intervals, Intervals]:
    """Waits in pauses of threads that wait, and pauses of threads of which nothing is known."""
    waits, unknown = EMPTY, np.zeros(len(pauses), bool)
    for of in unique(thread).tolist():
        times = thread_times(trace, known, of)
        mine = np.flatnonzero(thread == of)
        start, end = pauses.start_ns[mine], pauses.end_ns[mine]
        most = MOST * (end - start)
        computes = times.computing | operators
        waiting, computing = (t.covered_within(start, end) for t in (times.waiting, computes))
        waits_for_others = times.waiting - times.inside("write", "gil")
        may_be_data = waits_for_others.covered_within(start, end) >= most
        possible = Intervals(start[may_be_data], end[may_be_data])
        waits = waits | possible - (possible - waits_for_others)
        unknown[mine] = (waiting < most) & (computing < most)
    return waits, Intervals(pauses.start_ns[unknown], pauses.end_ns[unknown]) - operators


def _judged(
    activity: Activity, steps: StepRanges, step_ns: float, calls: Intervals, places: Intervals, found: Stalls
) -> Stalls:
    """What costs enough, in places enough, of what the evidence shows."""
    least = {
        "thread": max(PAUSE_NS, MIN_THREAD_FRAC * step_ns),
        "position": max(
            MIN_POSITION_NS,
            MIN_POSITION_FRAC * step_ns,
            LONGER_THAN_INSIDE * _longest_inside_ns(steps, calls),
        ),
    }
    costing: dict[str, Intervals] = {}
    stalled = np.zeros(len(places), bool)
    for evidence, least_ns in least.items():
        times: Intervals = getattr(found, evidence)
        idle = _idle_ns(activity, times)
        at = np.searchsorted(places.start_ns, times.start_ns, "right") - 1
        costly = np.bincount(at, idle, len(places)) >= least_ns
        costing[evidence] = Intervals(times.start_ns[costly[at]], times.end_ns[costly[at]])
        stalled |= costly
    if np.count_nonzero(stalled) < max(MIN_PLACES, MIN_PLACES_FRAC * (len(steps.start_ns) - 1)):
        return Stalls(pauses=found.pauses)
    return Stalls(pauses=found.pauses, **costing)
