"""A CPU rank's window as tasks: what its host did one after the other, and the collectives beside it.

The host is the device here. Its time is cut where ranges and operators begin and end; the pieces follow one
another. A collective runs from its issue, or the end of the one that it queued behind, to its completion on
threads of the backend; a wait begins, and returns once the collective is complete. What else its thread needs
until then is the host's own time, as in any other piece: another process may have had its core.
"""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.base.intervals import I64, Intervals
from perfdoc.analyzers.device.cpu_rank import facts_of_collective
from perfdoc.analyzers.device.view import (
    DeviceView,
    collective_issues,
    collective_runs,
    collective_waits,
    host_intervals,
)
from perfdoc.records import dataclass
from perfdoc.simulator.engine.graph import NONE, EdgeKind, GraphBuilder, TaskGraph, TaskKind
from perfdoc.simulator.replay.rank_tasks import NO_RELEASE, RETURN_LATENCY_MAX_NS, RankTasks, by_step
from perfdoc.traces.table import Bool

_KNOWN_ENDS = ("all_reduce", "all_gather", "all_to_all", "broadcast")
"""Of others gloo tells the end of the wait only."""


@dataclass(frozen=True, kw_only=True)
class _Waits:
    """Waits of the host, by time, none inside another."""

    start_ns: I64
    end_ns: I64
    awaited: I64
    """Row of Activity.communication; -1 unknown."""


def cpu_tasks(view: DeviceView) -> RankTasks:
    """Build the graph of a CPU rank's window."""
    activity, window = view.activity, view.window
    comm = activity.communication
    waits = _waits(view)
    begin, finish, is_compute = _pieces(view, waits)
    inside = np.flatnonzero((comm.start_ns >= window.start_ns) & (comm.start_ns < window.end_ns))
    returns, pieces, work = len(waits.start_ns), len(begin), len(inside)
    behind, transfers_ns = _queued(view, inside)
    # At one time a wait returns before the next piece begins, and a piece begins before what it issues.
    kind = np.repeat((0, 1, 2), (returns, pieces, work))
    key = np.concatenate((waits.end_ns, begin, transfers_ns))
    order = np.lexsort((kind, key))
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    return_task, piece_task, work_task = np.split(number, (returns, returns + pieces))

    builder = GraphBuilder()
    waiting = np.searchsorted(begin, waits.start_ns)
    """The piece as which each wait begins; it takes no time."""
    ended_by = piece_task.copy()
    ended_by[waiting] = return_task
    builder.add(ended_by[:-1], piece_task[1:], 0, EdgeKind.HOST_ORDER)
    issuing = np.searchsorted(begin, comm.start_ns[inside], "right") - 1
    lag = comm.start_ns[inside] - np.where(np.isin(issuing, waiting), begin[issuing], finish[issuing])
    builder.add(np.where(issuing >= 0, piece_task[issuing], NONE), work_task, lag, EdgeKind.LAUNCH)
    queued = np.where(behind >= 0, work_task[behind], NONE)
    builder.add(queued, work_task, 0, EdgeKind.STREAM_ORDER)
    late_ns = _return(builder, view, waits, inside, work_task, piece_task[waiting], return_task)
    edges, impossible = builder.possible_edges(len(order))

    takes = np.where(np.isin(np.arange(pieces), waiting), 0, finish - begin)
    start = np.concatenate((waits.end_ns - late_ns, begin, transfers_ns))[order]
    end = np.concatenate((waits.end_ns, begin + takes, comm.end_ns[inside]))[order]
    kinds = np.concatenate(
        (
            np.full(returns, TaskKind.HOST, np.int8),
            np.where(is_compute, TaskKind.COMPUTE, TaskKind.HOST).astype(np.int8),
            np.full(work, TaskKind.COMMUNICATION, np.int8),
        )
    )[order]
    activity_task = np.full(len(activity.start_ns), NONE, np.int64)
    activity_task[activity.comm_rows[inside]] = work_task
    none = np.full(len(order), NONE, np.int64)
    launch = np.concatenate((waits.end_ns, begin, comm.start_ns[inside]))[order]
    return RankTasks(
        graph=TaskGraph(
            duration_ns=end - start,
            release_ns=np.where(np.diff(edges.first) == 0, start, NO_RELEASE),
            kind=kinds,
            rank=np.zeros(len(order), np.int64),
            resource=np.where(kinds == TaskKind.COMMUNICATION, 1, 0),
            row=none,
            edges=edges,
        ),
        start_ns=start,
        end_ns=end,
        call=none.astype(np.int8),
        launch_ns=launch,
        activity_task=activity_task,
        unexplained_by_step_ns=by_step(view, waits.start_ns, late_ns),
        impossible_edges=impossible,
    )


def _queued(view: DeviceView, inside: I64) -> tuple[I64, I64]:
    """For each collective (row of `inside`) the one of its dimension that it queued behind, -1 none, and when
    it could begin: the backend works off a group's collectives in the order of their issue, as long as their
    ends do not say otherwise."""
    comm = view.activity.communication
    start, end = comm.start_ns[inside], comm.end_ns[inside]
    behind, transfers = np.full(len(inside), NONE, np.int64), start.copy()
    exact = np.array([k is not None and k.collective in _KNOWN_ENDS for k in comm.kinds], bool)[
        comm.kind[inside]
    ]
    for dimension in np.unique(comm.dimension[inside]).tolist():
        mine = np.flatnonzero((comm.dimension[inside] == dimension) & exact)
        earlier, later = mine[:-1], mine[1:]
        if (end[later] >= end[earlier]).all():
            waits = end[earlier] > start[later]
            behind[later[waits]] = earlier[waits]
            transfers[later[waits]] = end[earlier[waits]]
    return behind, transfers


def _pieces(view: DeviceView, waits: _Waits) -> tuple[I64, I64, Bool]:
    """Start and end of every piece of the host's time, and whether it computes; waits are whole pieces."""
    window, compute = view.window, view.activity.compute
    known = [compute, collective_issues(view), *host_intervals(view).values()]
    cuts = np.concatenate([np.concatenate((i.start_ns, i.end_ns)) for i in known])
    held = Intervals(start_ns=waits.start_ns, end_ns=waits.end_ns)
    cuts = cuts[held.covered_within(cuts, cuts + 1) == 0]
    bounds = np.array([window.start_ns, window.end_ns], np.int64)
    cuts = np.unique(np.concatenate((cuts, waits.start_ns, waits.end_ns, bounds)))
    cuts = cuts[(cuts >= window.start_ns) & (cuts <= window.end_ns)]
    begin, finish = cuts[:-1], cuts[1:]
    return begin, finish, 2 * compute.covered_within(begin, finish) > finish - begin


def _waits(view: DeviceView) -> _Waits:
    """Waits wholly inside the window, and what each is for, by what its name says."""
    trace, comm = view.trace, view.activity.communication
    rows = collective_waits(view)
    start, end = trace.ranges.start_ns[rows], trace.ranges.end_ns[rows]
    keep = (start >= view.window.start_ns) & (end <= view.window.end_ns) & (end > start)
    rows = rows[keep][np.argsort(start[keep], kind="stable")]
    start, end = trace.ranges.start_ns[rows], trace.ranges.end_ns[rows]
    if len(rows):
        outer = np.concatenate(([True], start[1:] >= np.maximum.accumulate(end)[:-1]))
        rows, start, end = rows[outer], start[outer], end[outer]
    runs = collective_runs(view)
    position = {int(s): i for i, s in enumerate(comm.start_ns.tolist())}
    row_of = {
        facts_of_collective(trace.strings[n]): position.get(s, NONE)
        for n, s in zip(trace.ranges.name[runs].tolist(), trace.ranges.start_ns[runs].tolist(), strict=True)
    }
    awaited = [
        row_of.get(facts_of_collective(trace.strings[n]), NONE) for n in trace.ranges.name[rows].tolist()
    ]
    return _Waits(start_ns=start, end_ns=end, awaited=np.array(awaited, np.int64))


def _return(
    builder: GraphBuilder,
    view: DeviceView,
    waits: _Waits,
    inside: I64,
    work_task: I64,
    begin_task: I64,
    return_task: I64,
) -> I64:
    """A wait returns after its own work, and not before what it waits for is complete. Gives the time that
    each return took beyond what is usual: the thread did not run, or did other things, and would again."""
    comm = view.activity.communication
    task_of = np.full(len(comm.start_ns) + 1, NONE, np.int64)  # the last entry is that of row -1
    task_of[inside] = work_task
    done = np.append(comm.end_ns, NO_RELEASE)[waits.awaited]
    length = waits.end_ns - waits.start_ns
    blocked = (task_of[waits.awaited] >= 0) & (done > waits.start_ns)
    own = waits.end_ns - done
    usual = blocked & (own <= RETURN_LATENCY_MAX_NS)
    typical = int(np.median(own[usual])) if usual.any() else 0
    lag = np.where(usual, own, typical)
    free = length[~blocked]
    itself = np.where(blocked, np.minimum(length, int(np.median(free)) if len(free) else 0), length)
    builder.add(begin_task, return_task, itself, EdgeKind.HOST_ORDER)
    builder.add(np.where(blocked, task_of[waits.awaited], NONE), return_task, lag, EdgeKind.HOST_SYNC)
    return np.asarray(np.where(blocked & ~usual, own - typical, 0))
