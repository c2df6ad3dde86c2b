"""The worst instance of each kind on one device: where it lies, and in which step.

Of many candidates the longest few are looked at first: what is lost in a stretch is never more than its
length, so that as soon as the worst of them has lost as much as the next shorter one is long, no other can be
worse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from perfdoc.analyzers.base.intervals import EMPTY, I64, Intervals, index_within, union
from perfdoc.analyzers.base.spot import Spot
from perfdoc.analyzers.device.activity import DIMENSIONS, Activity
from perfdoc.analyzers.device.range_names import rows_on
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.records import dataclass
from perfdoc.results.ranks import Ledger, Step
from perfdoc.traces.model import Operators, Ranges
from perfdoc.traces.table import Bool, among, distinct


@dataclass(frozen=True, kw_only=True)
class Instance:
    """The worst instance of its kind on one device."""

    spot: Spot
    step: str
    """Of the step in which it began; empty where the window is not made of steps."""


MAX_INSTANCES = 16
"""Of one device."""


def device_instances(view: DeviceView, ledger: Ledger, contended: Sequence[Spot]) -> tuple[Instance, ...]:
    """contended: of `norm_contention`. One instance of each kind that the device has, costliest first."""
    if view.window.duration_ns <= 0:
        return ()
    spots = [*find_spots(view, ledger), *contended]
    spots.sort(key=lambda s: (-s.cost_ns, s.key))
    steps = view.window.step_list
    return tuple(Instance(spot=s, step=step_of(steps, s.start_ns)) for s in spots[:MAX_INSTANCES])


def step_of(steps: Sequence[Step], time_ns: int) -> str:
    """Name of the step that holds a time of the device; empty where none does."""
    at = int(np.searchsorted([s.start_ns for s in steps], time_ns, "right")) - 1
    return steps[at].name if at >= 0 and time_ns < steps[at].end_ns else ""


LEAST_FRAC = {
    "exposed": 0.01,
    "exposed_memcpy": 0.02,
    "idle.host": 0.02,
    "idle.gc": 0.002,
    "idle.data": 0.002,
    "idle.unexplained": 0.02,
}
"""Of the window: what takes less of it in all is no finding of any rule, and is not looked for."""
_FIRST = 256
"""Candidates that are looked at first."""


def find_spots(view: DeviceView, ledger: Ledger) -> list[Spot]:
    """The worst instance of everything that takes LEAST_FRAC of the window or more, by the ledger's leaves.

    Of communication whose dimension is known to be one that rules advise on.
    """
    found = [*_exposed(view, ledger), *_idle(view, ledger), _longest_step(view)]
    if _matters(ledger, "exposed_memcpy", ledger.exposed_memcpy):
        found.append(_copy(view))
    return [spot for spot in found if spot is not None]


def _matters(ledger: Ledger, what: str, total_ns: int) -> bool:
    return total_ns > 0 and total_ns >= LEAST_FRAC[what] * ledger.total


def worst_of(length: I64, lost: Callable[[I64], I64]) -> tuple[int, int] | None:
    """(which, how much it lost) of the candidate that lost most; None where none lost anything.

    lost: of some candidates, at most their length each.

    >>> worst_of(np.array([5, 9, 7]), lambda rows: np.array([5, 2, 6])[rows])
    (2, 6)
    """
    looked = min(_FIRST, len(length))
    while looked:
        rows = np.argpartition(-length, looked - 1)[:looked]
        losses = lost(rows)
        # Of equal ones the first.
        at = int(np.lexsort((rows, -losses))[0])
        if looked == len(length) or int(losses[at]) >= int(length[rows].min()):
            return (int(rows[at]), int(losses[at])) if losses[at] > 0 else None
        looked = min(16 * looked, len(length))
    return None


def _exposed(view: DeviceView, ledger: Ledger) -> Iterator[Spot | None]:
    """Communication of each dimension: what of an operation no compute ran beside."""
    comm, compute, window = view.activity.communication, view.activity.compute, view.window
    inside = (comm.start_ns < window.end_ns) & (comm.end_ns > window.start_ns)
    for code, dimension in enumerate(DIMENSIONS):
        advised = dimension not in ("other", "unknown")
        if not advised or not _matters(ledger, "exposed", ledger.exposed_comm.by_name[dimension]):
            continue
        rows = np.flatnonzero(inside & (comm.dimension == code))
        start = np.maximum(comm.start_ns[rows], window.start_ns)
        end = np.minimum(comm.end_ns[rows], window.end_ns)

        def lost(some: I64, start: I64 = start, end: I64 = end) -> I64:
            found: I64 = end[some] - start[some] - compute.covered_within(start[some], end[some])
            return found

        worst = worst_of(end - start, lost)
        if worst is not None:
            row, cost = int(rows[worst[0]]), worst[1]
            kind = comm.kinds[int(comm.kind[row])]
            yield Spot(
                key=f"exposed.{dimension}",
                start_ns=int(comm.start_ns[row]),
                end_ns=int(comm.end_ns[row]),
                cost_ns=cost,
                name="copy between GPUs" if kind is None else kind.collective or kind.label,
            )


def _idle(view: DeviceView, ledger: Ledger) -> Iterator[Spot | None]:
    gaps, bounds = view.gaps, (view.window.start_ns, view.window.end_ns)
    start, handed, end = (_clipped(t, *bounds) for t in (gaps.start_ns, gaps.host_end_ns, gaps.end_ns))
    pauses = view.idle_inputs.gc_or_data
    if _matters(ledger, "idle.host", ledger.idle.host):

        def lost(rows: I64) -> I64:
            found: I64 = handed[rows] - start[rows] - pauses.covered_within(start[rows], handed[rows])
            return found

        worst = worst_of(handed - start, lost)
        spot = _spot("idle.host", start, handed, worst, _launched(view, gaps.following))
        thread = int(view.activity.launch_thread[gaps.following[worst[0]]]) if worst else -1
        if spot is not None:
            long = np.flatnonzero(2 * (handed - start) >= spot.cost_ns)
            spot = replace(spot, often=_often(view, start[long[2 * lost(long) >= spot.cost_ns]]))
            yield _in_range(view, spot, thread, lambda: union(start, handed) - pauses)
    if _matters(ledger, "idle.unexplained", ledger.idle.unexplained):
        length = np.where(gaps.short, 0, end - handed)
        worst = worst_of(length, length.__getitem__)
        yield _spot("idle.unexplained", handed, end, worst, lambda _: "")
    stalled = view.idle_inputs.stalls.stalled
    for cause, rows, inferred in (("gc", view.known.gc, EMPTY), ("data", view.known.data, stalled)):
        if _matters(ledger, f"idle.{cause}", ledger.idle.by_name[cause]):
            yield _pause(view, cause, rows, inferred)


def _often(view: DeviceView, begins_ns: I64) -> str:
    """Where nearly each step has exactly one, or every second one some and the others none."""
    steps = [step.start_ns for step in view.window.step_list]
    count = np.bincount(np.maximum(np.searchsorted(steps, begins_ns, "right") - 1, 0), minlength=len(steps))
    if len(steps) > 1 and np.count_nonzero(count == 1) >= _ALL * len(steps):
        return " once a step"
    turns = len(steps) >= _FEWEST and bool(((count[1:] > 0) != (count[:-1] > 0)).all())
    return " in every second step" if turns else ""


_FEWEST = 4
"""Steps that show a turn."""
_ALL, _HALF, _SOME = 0.8, 0.5, 0.2
"""Of idle time, or of a copy, inside a range; of the range, idle, or copies that are used there."""


def _in_range(
    view: DeviceView, spot: Spot, thread: int, idle: Callable[[], Intervals], *, all_alike: bool = False
) -> Spot:
    """The same with the shortest range, no step's, else Python function, else operator, that holds nearly all
    of this idle time and little else: what the host did then. Of the thread that launched what ended it, or
    a collective of gloo's: other threads keep nobody waiting. all_alike: the range holds other such time as
    well, which may be less of it."""
    trace, idle_ns = view.trace, spot.end_ns - spot.start_ns
    some = idle_ns - round(_ALL * idle_ns)
    steps = np.concatenate([EMPTY.start_ns, *(of for _, of in view.known.steps)])
    gloo = rows_on(trace, view.known.gloo, trace.threads_of(view.device.process))
    for table in (trace.ranges, trace.python_calls, trace.operators) if thread >= 0 else ():
        of = table.thread == thread
        if isinstance(table, Ranges):
            of[gloo] = True
            of &= ~table.never_closed
        near = (table.start_ns <= spot.start_ns + some) & (table.end_ns >= spot.end_ns - some)
        rows = np.flatnonzero(near & of)
        start, end = table.start_ns[rows], table.end_ns[rows]
        mine = np.minimum(end, spot.end_ns) - np.maximum(start, spot.start_ns) >= _ALL * idle_ns
        known = steps if isinstance(table, Ranges) else EMPTY.start_ns
        held_ns = idle().covered_within(start, end) if all_alike else idle_ns
        mine &= (held_ns >= (_SOME if all_alike else _HALF) * (end - start)) & ~among(rows, known)
        if mine.any():
            name = table.name[rows[mine][np.argmin((end - start)[mine])]]
        elif all_alike or table is not trace.operators or (name := _mostly(table, of, spot)) < 0:
            continue
        same = of & (table.name == name)
        ranges = union(table.start_ns[same], table.end_ns[same])
        return replace(spot, inside=trace.strings[int(name)], inside_ns=ranges.overlap_ns(idle()))
    return spot


def _mostly(table: Operators, of: Bool, spot: Spot) -> int:
    """Name of the operator that most of this time goes to, one call after the other, as embeddings that are
    looked up on the CPU; -1 where none has as much."""
    rows = np.flatnonzero(of & (table.start_ns < spot.end_ns) & (table.end_ns > spot.start_ns))
    start, end = (np.clip(t[rows], spot.start_ns, spot.end_ns) for t in (table.start_ns, table.end_ns))
    outer = start >= np.append(spot.start_ns, np.maximum.accumulate(end))[: len(rows)]
    names, at = distinct(table.name[rows[outer]].astype(np.int64))
    took = np.bincount(at, (end - start)[outer])
    return int(names[took.argmax()]) if took.max(initial=0) >= _HALF * (spot.end_ns - spot.start_ns) else -1


def _clipped(times: I64, low: int, high: int) -> I64:
    """Ascending times inside the bounds; mostly all of them are, and then nothing is copied."""
    inside = not len(times) or (times[0] >= low and times[-1] <= high)
    return times if inside else np.clip(times, low, high)


def _launched(view: DeviceView, following: I64) -> Callable[[int], str]:
    """Name of the call that ended each gap, as far as it is known."""

    def name(gap: int) -> str:
        api, at = view.trace.api_calls, int(view.activity.launch_start_ns[following[gap]])
        thread = int(view.activity.launch_thread[following[gap]])
        rows = view.trace.calls_of(np.array([thread]))
        rows = rows[api.start_ns[rows] == at]
        return view.trace.strings[int(api.name[rows[0]])] if at >= 0 and len(rows) else ""

    return name


def _spot(
    key: str, start: I64, end: I64, worst: tuple[int, int] | None, name: Callable[[int], str]
) -> Spot | None:
    if worst is None:
        return None
    at, cost = worst
    return Spot(key=key, start_ns=int(start[at]), end_ns=int(end[at]), cost_ns=cost, name=name(at))


def _pause(view: DeviceView, cause: str, rows: I64, inferred: Intervals) -> Spot | None:
    """The collection, or the wait for data, in which the device idled longest; inferred ones have no name."""
    ranges, activity, window = view.trace.ranges, view.activity, view.window
    threads = view.trace.threads_of(view.device.process) if cause == "gc" else activity.launching_threads
    rows = rows_on(view.trace, rows, threads)
    start = np.clip(np.append(ranges.start_ns[rows], inferred.start_ns), window.start_ns, window.end_ns)
    end = np.clip(np.append(ranges.end_ns[rows], inferred.end_ns), window.start_ns, window.end_ns)

    def lost(some: I64) -> I64:
        found: I64 = end[some] - start[some] - activity.busy.covered_within(start[some], end[some])
        return found

    worst = worst_of(end - start, lost)

    def name(at: int) -> str:
        return view.trace.strings[ranges.name[rows[at]]] if at < len(rows) else ""

    return _spot(f"idle.{cause}", start, end, worst, name)


def _copy(view: DeviceView) -> Spot | None:
    """The stretch of copies, one after another, that nothing else ran beside for longest."""
    activity, window = view.activity, view.window
    copies = activity.copies.clip(window.start_ns, window.end_ns)

    @cache
    def all_else() -> Intervals:
        return activity.compute | activity.comm

    def lost(rows: I64) -> I64:
        # Of few stretches only what ran within them is looked at; of many all of it, in one pass.
        beside = _within(activity, copies, rows) if len(rows) <= _FIRST else all_else()
        start, end = copies.start_ns[rows], copies.end_ns[rows]
        found: I64 = end - start - beside.covered_within(start, end)
        return found

    worst = worst_of(copies.end_ns - copies.start_ns, lost)
    spot = _spot("exposed_memcpy", copies.start_ns, copies.end_ns, worst, lambda _: "copies")
    if spot is None:
        return None
    first = np.searchsorted(activity.start_ns, spot.start_ns)
    return _in_range(view, spot, int(activity.launch_thread[first]), lambda: copies, all_alike=True)


_LONGER, _OWN, _RANGES = 1.5, 0.5, 8
"""Times the median step; of what it takes longer, what it computes in a range; names that are looked at."""


def _longest_step(view: DeviceView) -> Spot | None:
    """The longest step, where it takes far longer than the median one and computes most of that in ranges of
    a name that no other step has: the longest of these, in all."""
    trace, begins, steps = view.trace, view.step_ranges.start_ns, view.window.step_list
    took = np.array([step.duration_ns for step in steps])
    if len(steps) < _FEWEST - 1 or len(begins) != len(steps) or took.max() < _LONGER * np.median(took):
        return None
    at, activity, ranges = int(took.argmax()), view.activity, trace.ranges
    rows = rows_on(trace, np.flatnonzero(~ranges.never_closed), activity.launching_threads)
    step = np.searchsorted(begins, ranges.start_ns[rows], "right") - 1
    names = trace.alike[ranges.name[rows]]
    mine = rows[(step == at) & ~among(names, names[(step != at) & (step >= 0)])]
    name, of = distinct(ranges.name[mine].astype(np.int64))
    best = Spot(key="compute", start_ns=steps[at].start_ns, end_ns=steps[at].end_ns, cost_ns=0, name="")
    launched = np.flatnonzero(activity.is_compute & (activity.launch_start_ns >= 0))
    for i in np.argsort(-np.bincount(of, (ranges.end_ns - ranges.start_ns)[mine]))[:_RANGES].tolist():
        inside = union(ranges.start_ns[mine[of == i]], ranges.end_ns[mine[of == i]])
        some = launched[index_within(inside.start_ns, inside.end_ns, activity.launch_start_ns[launched]) >= 0]
        ran_ns = union(activity.start_ns[some], activity.end_ns[some]).total_ns
        if ran_ns > best.cost_ns:
            best = replace(best, cost_ns=ran_ns, inside=trace.strings[int(name[i])])
    return best if best.cost_ns >= _OWN * (took[at] - np.median(took)) else None


def _within(activity: Activity, stretches: Intervals, rows: I64) -> Intervals:
    """When anything computed or communicated in these stretches."""
    pieces = [
        ran.clip(start, end)
        for start, end in zip(stretches.start_ns[rows].tolist(), stretches.end_ns[rows].tolist(), strict=True)
        for ran in (activity.compute, activity.comm)
    ]
    return union(
        np.concatenate([piece.start_ns for piece in pieces]),
        np.concatenate([piece.end_ns for piece in pieces]),
    )
