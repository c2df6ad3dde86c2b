"""The ranks of a job as one graph, on one time: a late rank delays the others.

Every member of a matched collective arrives; when the last has, all transfer, each until its own end: members
of one collective are done at different times where the network delivers each part separately. Who may leave
before all have come (the root of a broadcast, a sender) and did waits for nobody. Communication that was not
matched keeps its measured duration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from perfdoc.analyzers.base.intervals import I64, Intervals
from perfdoc.analyzers.clocks.alignment import ClockAlignment
from perfdoc.analyzers.communication.calls import CollectiveCalls
from perfdoc.analyzers.communication.matches import Matches
from perfdoc.analyzers.kernels.optimizer import LoopSpans
from perfdoc.analyzers.pipeline.passes import HostPasses, LayerSpans
from perfdoc.simulator.engine import EdgeKind, Edges, GraphBuilder, TaskGraph, TaskKind
from perfdoc.simulator.engine.graph import NONE
from perfdoc.simulator.replay.rank_tasks import NO_RELEASE
from perfdoc.simulator.replay.rebuilt import OF_GRAPH, OF_TASK, Rebuilt, with_edges
from perfdoc.traces.table import Bool

_Spans = TypeVar("_Spans", Intervals, HostPasses, LayerSpans, LoopSpans)


def join_ranks(
    ranks: Sequence[Rebuilt], calls: Sequence[CollectiveCalls], matches: Matches, clocks: ClockAlignment
) -> Rebuilt | None:
    """One graph of all ranks. All arguments in the same order of ranks, one rank each.

    None where the matched collectives form a dependency cycle between ranks, so that the matching
    cannot be right.
    """
    # The clock of all counts from the middle of the matches. Here no time is negative: -1 says unknown.
    from_ns = min((int(clocks.aligned(i, _earliest(r))[0]) for i, r in enumerate(ranks)), default=0)
    aligned = [_on_one_time(r, i, clocks, from_ns) for i, r in enumerate(ranks)]
    first = np.concatenate(([0], np.cumsum([len(r.start_ns) for r in ranks])))
    whole = _together(aligned, first)
    return _with_meetings(whole, *_collectives(ranks, first, calls, matches, clocks))


def _collectives(
    ranks: Sequence[Rebuilt],
    first: I64,
    calls: Sequence[CollectiveCalls],
    matches: Matches,
    clocks: ClockAlignment,
) -> tuple[I64, I64, Bool]:
    """(task, collective, whether it may leave before all have come) of every member of the collectives that
    are replayed as such: all their tasks lie in the windows, and all their ranks are here."""
    task = np.full(len(matches.row), NONE, np.int64)
    for i, mine in enumerate(matches.of_member):
        if len(mine):
            found = _task_of_call(ranks[i], calls[i])[matches.row[mine]]
            task[mine] = np.where(found >= 0, found + first[i], NONE)
    believed = ~np.isin(matches.group, list(clocks.contradicted))
    whole = np.logical_and.reduceat(task >= 0, matches.first[:-1]) if len(matches) else np.empty(0, bool)
    keep = (whole & believed & matches.is_complete)[matches.collective]
    collective = matches.collective[keep]
    return task[keep], collective, ~matches.is_synchronising[collective]


def _task_of_call(rank: Rebuilt, calls: CollectiveCalls) -> I64:
    """Task of each row of CollectiveCalls; -1 none.

    The rows are those of Activity.communication, except that a CPU rank's calls leave out what never ended.
    """
    task = rank.ranks[0].communication_task
    if len(task) == len(calls):
        return task
    known = np.flatnonzero(task >= 0)
    start = rank.launch_ns[task[known]]
    order = np.argsort(start, kind="stable")
    at = np.minimum(np.searchsorted(start[order], calls.start_ns), len(order) - 1)
    if not len(order):
        return np.full(len(calls), NONE, np.int64)
    found = task[known[order[at]]]
    return np.where(rank.launch_ns[found] == calls.start_ns, found, NONE)


def _earliest(rank: Rebuilt) -> I64:
    """The first of all times that are known of it."""
    frame = rank.ranks[0]
    known = rank.launch_ns[rank.launch_ns >= 0]
    of_host = [frame.passes.start_ns, frame.layers.start_ns, frame.optimizer_starts_ns]
    of_host += [i.start_ns for i in frame.host.values()]
    times = [frame.window_start_ns, *frame.step_starts_ns]
    times += [int(column.min()) for column in (rank.start_ns, known, *of_host) if len(column)]
    return np.array([min(times)], np.int64)


def _on_one_time(rank: Rebuilt, index: int, clocks: ClockAlignment, from_ns: int) -> Rebuilt:
    """The same rank with all times on the job's clock, since from_ns. (Drift is too small to show in
    durations.)"""

    def at(time_ns: I64) -> I64:
        return clocks.aligned(index, time_ns) - from_ns

    def one(time_ns: int) -> int:
        return int(at(np.array([time_ns], np.int64))[0])

    def moved(of: _Spans) -> _Spans:
        return replace(of, start_ns=at(of.start_ns), end_ns=at(of.end_ns))

    frame = rank.ranks[0]
    graph = rank.graph
    held = graph.release_ns > NO_RELEASE
    release = np.where(held, at(np.where(held, graph.release_ns, 0)), NO_RELEASE)
    return replace(
        rank,
        graph=replace(graph, release_ns=release, rank=np.full(len(release), index, np.int64)),
        start_ns=at(rank.start_ns),
        end_ns=at(rank.end_ns),
        launch_ns=np.where(rank.launch_ns >= 0, at(rank.launch_ns), NONE),
        ranks=(
            replace(
                frame,
                window_start_ns=one(frame.window_start_ns),
                window_end_ns=one(frame.window_end_ns),
                step_starts_ns=tuple(at(np.array(frame.step_starts_ns, np.int64)).tolist()),
                step_ends_ns=tuple(at(np.array(frame.step_ends_ns, np.int64)).tolist()),
                optimizer_starts_ns=at(frame.optimizer_starts_ns),
                host={n: moved(i) for n, i in frame.host.items()},
                passes=replace(moved(frame.passes), recompute=moved(frame.passes.recompute)),
                layers=moved(frame.layers),
                optimizer=moved(frame.optimizer),
            ),
        ),
    )


def _together(ranks: Sequence[Rebuilt], first: I64) -> Rebuilt:
    """All ranks' tasks, one rank after the other."""

    def columns(of: Sequence[Rebuilt | TaskGraph], names: Sequence[str]) -> dict[str, Any]:
        return {name: np.concatenate([getattr(one, name) for one in of]) for name in names}

    edges = [r.graph.edges for r in ranks]
    counts = np.concatenate([np.diff(e.first) for e in edges])
    together = Edges(
        first=np.concatenate(([0], np.cumsum(counts))),
        source=np.concatenate([e.source + offset for e, offset in zip(edges, first, strict=False)]),
        lag_ns=np.concatenate([e.lag_ns for e in edges]),
        kind=np.concatenate([e.kind for e in edges]),
    )
    return Rebuilt(
        graph=TaskGraph(**columns([r.graph for r in ranks], OF_GRAPH), edges=together),
        **columns(ranks, OF_TASK),
        ranks=tuple(r.ranks[0] for r in ranks),
    )


def _with_meetings(whole: Rebuilt, task: I64, collective: I64, may_leave: Bool) -> Rebuilt | None:
    """Split each member's task into its arrival and its transfer, with one meeting between all of them."""
    graph, count = whole.graph, len(whole.start_ns)
    members, which = np.unique(collective, return_inverse=True)
    meetings = len(members)
    arrival = count + np.arange(len(task))
    meeting = count + len(task) + np.arange(meetings)
    last_ns = np.full(meetings, NO_RELEASE, np.int64)
    np.maximum.at(last_ns, which, whole.start_ns[task])
    own_ns = whole.end_ns[task] - last_ns[which]
    waits = ~may_leave | (own_ns >= 0)
    transfer_ns = np.where(waits, np.maximum(own_ns, 0), graph.duration_ns[task])

    arrives_as = np.arange(count)
    arrives_as[task] = arrival
    old, new = graph.edges, 2 * len(task)
    edges = Edges.of(
        np.concatenate((old.source, arrival, np.where(waits, meeting[which], arrival))),
        np.concatenate((arrives_as[old.target], meeting[which], task)),
        np.append(old.lag_ns, np.zeros(new, np.int64)),
        np.append(old.kind, np.full(new, EdgeKind.COLLECTIVE, np.int8)),
        count + len(task) + meetings,
    )
    duration = graph.duration_ns.copy()
    duration[task] = transfer_ns
    release = graph.release_ns.copy()
    release[task] = NO_RELEASE
    start = whole.start_ns.copy()
    start[task] = np.where(waits, np.minimum(last_ns[which], whole.end_ns[task]), start[task])
    some = task[np.unique(which, return_index=True)[1]] if meetings else task

    def more(column: Any, of_arrival: Any, of_meeting: Any) -> Any:
        parts = (np.broadcast_to(of_arrival, len(task)), np.broadcast_to(of_meeting, meetings))
        return np.concatenate((column, *parts)).astype(column.dtype)

    arrived = whole.start_ns[task]
    own: dict[str, Any] = {name: more(getattr(whole, name), NONE, NONE) for name in OF_TASK}
    own |= {
        "start_ns": more(start, arrived, last_ns),
        "end_ns": more(whole.end_ns, arrived, last_ns),
        "launch_ns": more(whole.launch_ns, whole.launch_ns[task], NONE),
        "dimension": more(whole.dimension, whole.dimension[task], whole.dimension[some]),
        "reduces": more(whole.reduces, 0, 0),
    }
    of_graph: dict[str, Any] = {
        "duration_ns": more(duration, 0, 0),
        "release_ns": more(release, graph.release_ns[task], NO_RELEASE),
        "kind": more(graph.kind, int(TaskKind.ARRIVAL), int(TaskKind.MEETING)),
        "rank": more(graph.rank, graph.rank[task], graph.rank[some]),
        "resource": more(graph.resource, graph.resource[task], NONE),
        "row": more(graph.row, graph.row[task], NONE),
    }
    nothing = GraphBuilder().edges(count + len(task) + meetings)
    made = Rebuilt(graph=TaskGraph(**of_graph, edges=nothing), **own, ranks=whole.ranks)
    return with_edges(made, edges)
