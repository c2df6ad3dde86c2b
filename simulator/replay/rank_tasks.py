"""One GPU rank's window as tasks: the host's calls, the device's work, and what waits for what.

What the trace says of a start is kept where it explains it: a kernel starts within a short latency of its
launch, of the end of what ran before it on its stream, or of an event that it waited for. Longer delays
have no cause in the capture; the replay leaves them out, and they are its error.
"""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.base.rows import kept, sum_by
from perfdoc.analyzers.communication.blocking import awaited_pairs
from perfdoc.analyzers.device.activity import Activity
from perfdoc.analyzers.device.idle import LAUNCH_LATENCY_MAX_NS
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.host.calls import CallKind, host_calls
from perfdoc.records import dataclass
from perfdoc.simulator.engine.graph import I8, I64, NONE, EdgeKind, GraphBuilder, TaskGraph, TaskKind
from perfdoc.simulator.engine.graph import NO_RELEASE as NO_RELEASE
from perfdoc.simulator.replay.host_tasks import HostTasks, host_tasks
from perfdoc.traces.table import at_percent, distinct, median

EVERY = np.iinfo(np.int64).max
QUEUED_NS = 1_200
"""After what ran before it queued work begins, where a capture shows none (V100 to H100: 0.7 to 1.6 us)."""
RETURN_LATENCY_MAX_NS = 100_000
"""A blocked host thread is back within this of the device being done."""


@dataclass(frozen=True, kw_only=True)
class RankTasks:
    """A rank's window as a graph, and the measured times of its tasks."""

    graph: TaskGraph
    start_ns: I64
    """As measured."""
    end_ns: I64
    call: I8
    """CallKind of a CUDA call, -1 for everything else."""
    launch_ns: I64
    """When the host launched it, -1 unknown; of host tasks their start."""
    activity_task: I64
    """Task of each row of Activity; -1 outside of the window (and, on a CPU rank, for compute)."""
    unexplained_by_step_ns: I64
    """Delays of the device's work that nothing in the capture explains; the replay has none of them. Of a CPU
    rank late returns from waits, which it has: the thread did not run, as may happen in any piece. By step;
    one figure where the window is not made of steps."""
    impossible_edges: int
    """Dependencies that the measured times contradict; left out."""


@dataclass(frozen=True, kw_only=True)
class _Link:
    """Something that device work waits for: ends, by activity; -1 as source none."""

    source: I64
    target: I64
    ready_ns: I64
    kind: EdgeKind


def unknown(count: int) -> I64:
    """A column of NONE that takes no memory and cannot be written to."""
    return np.broadcast_to(np.int64(NONE), count)


def rank_tasks(view: DeviceView, most: int = EVERY) -> RankTasks:
    """Build the graph of a device's window. Of more tasks than `most` what only edits ask for is unknown."""
    activity, window = view.activity, view.window
    inside = np.flatnonzero((activity.start_ns >= window.start_ns) & (activity.start_ns < window.end_ns))
    launched = activity.launch_start_ns[inside]
    first_call = int(launched[launched >= 0].min(initial=window.start_ns))
    host = host_tasks(host_calls(view, from_ns=first_call), first_call, window.end_ns)

    calls = len(host.start_ns)
    returns = np.flatnonzero(host.waits)
    # At one time (captures in whole microseconds have many) a wait returns before the next call begins.
    start = np.concatenate((host.end_ns[returns], host.start_ns, activity.start_ns[inside]))
    order = np.argsort(start, kind="stable")  # sorted runs, for the most part: merged in linear time
    start = start.take(order)
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    return_task, call_task, work_task = np.split(number, (len(returns), len(returns) + calls))
    end = np.concatenate(
        (host.end_ns[returns], np.where(host.waits, host.start_ns, host.end_ns), activity.end_ns[inside])
    ).take(order)
    on_host = np.full(len(returns) + calls, TaskKind.HOST, np.int8)
    kinds = np.concatenate((on_host, _device_kinds(activity, inside))).take(order)
    no_call = np.full(len(start), NONE, np.int8)
    call = np.concatenate((no_call[: len(returns)], host.kind, no_call[: len(inside)])).take(order)
    count = len(order)
    resource = row = launch_ns = unknown(count)
    if count <= most:
        resource, row, launch_ns = (
            np.concatenate(parts).take(order)
            for parts in (
                (np.append(host.thread[returns], host.thread).astype(np.int64), activity.stream[inside]),
                (returns, np.arange(calls), inside),
                (host.end_ns[returns], host.start_ns, activity.launch_start_ns[inside]),
            )
        )
    del order, launched  # from here on a long trace takes most
    builder = GraphBuilder()
    ended_by = call_task.copy()
    ended_by[returns] = return_task
    _order_host(builder, host, call_task, ended_by)
    links, until_ns = _links(view, inside, host, call_task, work_task)
    late_at, late_ns = _lag_device(builder, links, until_ns, activity, inside, work_task, start, end)
    _block_host(builder, activity, inside, host, returns, call_task, return_task, work_task)
    activity_task = np.full(len(activity.start_ns), NONE, np.int64)
    activity_task[inside] = work_task
    del links, host, call_task, work_task, return_task, ended_by, number
    edges, impossible = builder.possible_edges(count)
    del builder
    alone = np.diff(edges.first) == 0
    return RankTasks(
        graph=TaskGraph(
            duration_ns=end - start,
            release_ns=np.where(alone, start, NO_RELEASE),
            kind=kinds,
            rank=np.zeros(count, np.int64),
            resource=resource,
            row=row,
            edges=edges,
        ),
        start_ns=start,
        end_ns=end,
        call=call,
        launch_ns=launch_ns,
        activity_task=activity_task,
        unexplained_by_step_ns=by_step(view, late_at, late_ns),
        impossible_edges=impossible,
    )


def _device_kinds(activity: Activity, inside: I64) -> I8:
    kinds = np.full(len(activity.start_ns), TaskKind.COPY, np.int8)
    kinds[activity.is_compute] = TaskKind.COMPUTE
    kinds[activity.comm_rows] = TaskKind.COMMUNICATION
    return kinds[inside]


def _order_host(builder: GraphBuilder, host: HostTasks, call_task: I64, ended_by: I64) -> None:
    """A call follows another after what the host did in between."""
    follows = host.previous >= 0
    previous = host.previous[follows]
    gap = host.start_ns[follows] - host.end_ns[previous]
    same = host.thread[follows] == host.thread[previous]
    kinds = np.where(same, EdgeKind.HOST_ORDER, EdgeKind.HOST_HANDOVER)
    builder.add_all(ended_by[previous], call_task[np.flatnonzero(follows)], gap, kinds.astype(np.int8))


def _links(
    view: DeviceView, inside: I64, host: HostTasks, call_task: I64, work_task: I64
) -> tuple[list[_Link], I64]:
    """What each activity may have waited for: its launch, its stream, events; and until when its call may
    have been launching it."""
    activity = view.activity
    position = np.full(len(activity.start_ns) + 1, NONE, np.int64)  # the last entry is that of row -1
    position[inside] = np.arange(len(inside))
    launch_ns = activity.launch_start_ns[inside]
    call = host.at(activity.launch_thread[inside], np.where(launch_ns >= 0, launch_ns, NONE))
    call = np.where(launch_ns >= 0, call, NONE)
    previous = _previous_on_stream(activity, inside)
    links = [
        _Link(
            source=np.append(call_task, NONE)[call],  # call -1 is the last entry
            target=work_task,
            ready_ns=np.where(call >= 0, launch_ns, NO_RELEASE),
            kind=EdgeKind.LAUNCH,
        ),
        _Link(
            source=np.append(work_task, NONE)[previous],
            target=work_task,
            ready_ns=np.append(activity.end_ns[inside], NO_RELEASE)[previous],
            kind=EdgeKind.STREAM_ORDER,
        ),
    ]
    awaited, behind = (position[rows] for rows in awaited_pairs(view.trace, activity, view.launches))
    awaited, behind = kept((awaited >= 0) & (behind >= 0), awaited, behind)
    links.append(
        _Link(
            source=work_task[awaited],
            target=work_task[behind],
            ready_ns=activity.end_ns[inside[awaited]],
            kind=EdgeKind.EVENT,
        )
    )
    alone = call >= 0  # of calls that launch one thing, and do not wait for it
    alone[alone] = np.bincount(call[alone])[call[alone]] == 1
    alone[alone] = ((host.kind == CallKind.LAUNCH) & ~host.waits)[call[alone]]
    returned_or_begun = np.minimum(activity.launch_end_ns[inside], activity.start_ns[inside])
    return links, np.where(alone, returned_or_begun, launch_ns)


def _held_by_call(launch: _Link, until_ns: I64, free_ns: I64, start: I64) -> tuple[I64, int]:
    """Places of what its call held up, and how long after what ran before it queued work begins.

    The device was free for it while the call still ran, or no longer after that began than a launch takes
    to get there, and it began later than what is queued: a call [7, 11), a kernel at 12 behind one until 8.
    """
    one = np.flatnonzero((launch.source >= 0) & (until_ns > launch.ready_ns))
    free, begins = free_ns[launch.target[one]], start[launch.target[one]]
    called, until = launch.ready_ns[one], until_ns[one]
    at_once = (called >= free) & (begins - called <= LAUNCH_LATENCY_MAX_NS)
    takes = int(median(begins[at_once] - called[at_once])) if at_once.any() else 0
    near = free >= begins - LAUNCH_LATENCY_MAX_NS
    gaps = (begins - free)[near]
    queued = gaps[np.maximum(called + LAUNCH_LATENCY_MAX_NS, until)[near] <= free[near]]
    queued = queued if len(queued) else gaps.min(initial=QUEUED_NS, keepdims=True).clip(0)
    usual, most = at_percent(queued, (50, 90)).astype(np.int64).tolist()
    held = (free < begins - most) & ((until > free) | (called + takes > free + usual))
    return one[held], usual


def _previous_on_stream(activity: Activity, inside: I64) -> I64:
    """Position of the activity before, in the order in which a stream runs; -1 none."""
    _, stream = distinct(activity.stream[inside])
    # Rows are by start as it is; numpy sorts two bytes in linear time.
    order = np.argsort(stream.astype(np.min_scalar_type(int(stream.max(initial=0)))), kind="stable")
    same = np.flatnonzero(stream[order[1:]] == stream[order[:-1]])
    previous = np.full(len(inside), NONE, np.int64)
    previous[order[same + 1]] = order[same]
    return previous


def _lag_device(
    builder: GraphBuilder,
    links: list[_Link],
    until_ns: I64,
    activity: Activity,
    inside: I64,
    work_task: I64,
    start: I64,
    end: I64,
) -> tuple[I64, I64]:
    """Give every link its lag; returns the delays that no link explains: when, and how long."""
    tasks = len(start)
    ready = np.full(tasks, NO_RELEASE, np.int64)
    launch, *others = links
    for link in others:
        target, at = kept(link.source >= 0, link.target, link.ready_ns)
        if (target[1:] > target[:-1]).all():  # as nearly always
            ready[target] = np.maximum(ready[target], at)
        else:
            np.maximum.at(ready, target, at)
    held, queued_ns = _held_by_call(launch, until_ns, ready, start)
    by_call = np.zeros(tasks, bool)
    by_call[launch.target[held]] = True
    ready[work_task] = np.maximum(ready[work_task], launch.ready_ns)
    ready[launch.target[held]] = until_ns[held]
    slack = np.zeros(len(work_task), np.int64)
    has_link = np.flatnonzero(ready[work_task] > NO_RELEASE)
    linked = work_task[has_link]
    slack[has_link] = start[linked] - ready[linked]
    late = np.zeros(tasks, bool)
    late[work_task] = slack > LAUNCH_LATENCY_MAX_NS
    inferred = _inferred(activity, inside, work_task, late, start)
    late[inferred.target] = by_call[inferred.target] = False
    ready[inferred.target] = inferred.ready_ns
    for link in [*links, inferred]:
        source, target, at = kept(link.source >= 0, link.source, link.target, link.ready_ns)
        own = start[target] - at
        binding = np.where(by_call[target], link is launch, at == ready[target])
        explained = binding & ~late[target]
        usual = own[explained & (own <= LAUNCH_LATENCY_MAX_NS)]  # calls may be longer
        typical = queued_ns if link is others[0] else int(median(usual)) if len(usual) else 0
        lag = np.where(explained, own, np.minimum(own, typical))
        # Edges count from the end of their source; a launch counts from the start of the call.
        builder.add(source, target, lag - (end[source] - at), link.kind)
    unexplained = np.flatnonzero(late[work_task])
    return start[work_task[unexplained]], slack[unexplained]


def by_step(view: DeviceView, time_ns: I64, length_ns: I64) -> I64:
    """Their lengths by the step in which they lie, without what lies behind the last; one sum where the
    window is not made of steps."""
    ends = np.array([s.end_ns for s in view.window.step_list], np.int64)
    if not len(ends):
        return np.array([length_ns.sum()], np.int64)
    return sum_by(np.searchsorted(ends, time_ns, "right"), length_ns, len(ends) + 1)[:-1]


def _inferred(activity: Activity, inside: I64, work_task: I64, late: np.ndarray, start: I64) -> _Link:
    """Late work that started as something on another stream ended: it waited, though no event shows it."""
    ends = activity.end_ns[inside]
    by_end = np.argsort(ends, kind="stable")
    waiting = np.flatnonzero(late[work_task])
    at = np.searchsorted(ends[by_end], start[work_task[waiting]], "right") - 1
    source = by_end[np.maximum(at, 0)]
    near = (at >= 0) & (start[work_task[waiting]] - ends[source] <= LAUNCH_LATENCY_MAX_NS)
    near &= work_task[source] < work_task[waiting]
    return _Link(
        source=work_task[source[near]],
        target=work_task[waiting[near]],
        ready_ns=ends[source[near]],
        kind=EdgeKind.INFERRED,
    )


def _block_host(
    builder: GraphBuilder,
    activity: Activity,
    inside: I64,
    host: HostTasks,
    returns: I64,
    call_task: I64,
    return_task: I64,
    work_task: I64,
) -> None:
    """A call that waits returns no earlier than the last work that was launched before it and ended in it."""
    if not len(returns):
        return
    begin, finish = host.start_ns[returns], host.end_ns[returns]
    if not len(inside):
        builder.add(call_task[returns], return_task, finish - begin, EdgeKind.HOST_ORDER)
        return
    ends = activity.end_ns[inside]
    by_end = np.argsort(ends, kind="stable")
    at = np.searchsorted(ends[by_end], finish, "right") - 1
    awaited = by_end[np.maximum(at, 0)]
    # Work of other threads may have ended in the meantime without being waited for: what was launched later.
    launched = activity.launch_start_ns[inside[awaited]] <= finish
    waited = (at >= 0) & launched & (ends[awaited] > begin)
    late = finish - ends[awaited] > RETURN_LATENCY_MAX_NS
    own = finish - ends[awaited]
    typical = int(np.median(own[waited & ~late])) if (waited & ~late).any() else 0
    lag = np.where(late, typical, own)
    builder.add(np.where(waited & ~late, work_task[awaited], NONE), return_task, lag, EdgeKind.HOST_SYNC)
    # Without a wait the call takes what it took; with one, what it does itself is short.
    itself = np.where(waited & ~late, np.minimum(finish - begin, typical), finish - begin)
    builder.add(call_task[returns], return_task, itself, EdgeKind.HOST_ORDER)
