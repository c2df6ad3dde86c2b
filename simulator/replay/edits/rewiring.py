"""Edges taken away, moved and added; what waits for what; and collectives cut into parts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from perfdoc.analyzers.base.rows import kept
from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.records import dataclass
from perfdoc.simulator.engine import EdgeKind, Edges, GraphBuilder, TaskKind
from perfdoc.simulator.engine.graph import I8, I64, NONE
from perfdoc.simulator.replay.rank_tasks import NO_RELEASE
from perfdoc.simulator.replay.rebuilt import OF_GRAPH, OF_TASK, Rebuilt, with_edges
from perfdoc.traces.table import Bool

LAG_MAX_NS = 20_000
"""What follows something at once follows it within this; see rank_tasks."""
WAITS_FOR_NONE = "nothing waits for dp communication before the optimizer step already"
"""Why an overlap cannot be tried: it is there."""
NOT_BY_DDP = {"not by DDP": ""}
NOT_BY_ZERO = {"ZeRO stage 0": ""}
"""Words of changes that these have nothing for (see Change.words)."""


class Rewiring:
    """Edges of a graph, to be changed."""

    def __init__(self, rebuilt: Rebuilt) -> None:
        edges = rebuilt.graph.edges
        self.rebuilt = rebuilt
        self.source, self.target = edges.source.copy(), edges.target
        self.lag_ns, self.kind = edges.lag_ns.copy(), edges.kind
        self.kept = np.ones(len(self.source), bool)
        self._added: list[tuple[I64, I64, I64, I8]] = []

    def add(self, source: I64, target: I64, lag_ns: I64 | int, kind: I8 | EdgeKind) -> None:
        """More edges; a side of -1 is none."""
        real = (source >= 0) & (target >= 0)
        lag = np.broadcast_to(np.asarray(lag_ns, np.int64), source.shape)
        kinds = np.broadcast_to(np.asarray(kind, np.int8), source.shape)
        self._added.append((source[real], target[real], lag[real], kinds[real]))

    def made(self, circle: str) -> Rebuilt:
        """The same tasks with these edges. ValueError, `circle`, where they form a dependency cycle."""
        ours = kept(self.kept, self.source, self.target, self.lag_ns, self.kind)
        source, target, lag, kind = (np.concatenate(c) for c in zip(ours, *self._added, strict=True))
        edges = Edges.of(source, target, lag, kind, len(self.rebuilt.start_ns))
        found = with_edges(self.rebuilt, edges)
        if found is None:
            raise ValueError(circle)
        return found


def is_transfer(rebuilt: Rebuilt, dimension: str) -> Bool:
    """By task: whether it is communication of a dimension (of a matched collective the transfer)."""
    ours: Bool = rebuilt.graph.kind == TaskKind.COMMUNICATION
    ours &= rebuilt.dimension == DIMENSIONS.index(dimension)
    return ours


def arrivals(rebuilt: Rebuilt) -> I64:
    """The task as which each one becomes ready: itself, or its arrival where it was matched."""
    graph, edges = rebuilt.graph, rebuilt.graph.edges
    found = np.arange(len(graph.duration_ns))
    out = np.flatnonzero(graph.kind[edges.source] == TaskKind.MEETING)
    into = np.flatnonzero(graph.kind[edges.source] == TaskKind.ARRIVAL)
    leaves = graph.kind[edges.target[into]] == TaskKind.COMMUNICATION
    found[edges.target[into[leaves]]] = edges.source[into[leaves]]
    into = into[~leaves]
    ranks = len(rebuilt.ranks)
    # One member a rank in a collective: meeting and rank name it.
    key_in = edges.target[into] * ranks + graph.rank[edges.source[into]]
    key_out = edges.source[out] * ranks + graph.rank[edges.target[out]]
    order = np.argsort(key_in, kind="stable")
    at = np.searchsorted(key_in[order], key_out)
    at = np.minimum(at, max(len(order) - 1, 0))
    if len(order):
        same = key_in[order[at]] == key_out
        found[edges.target[out[same]]] = edges.source[into[order[at[same]]]]
    return found


def launching(rebuilt: Rebuilt) -> tuple[I64, I64]:
    """By task: the call (on a CPU rank the piece of the host's time) that launched it, -1 none, and how long
    after its end the work may start."""
    edges = rebuilt.graph.edges
    call, lag = np.full(len(rebuilt.start_ns), -1, np.int64), np.zeros(len(rebuilt.start_ns), np.int64)
    mine = np.flatnonzero(edges.kind == EdgeKind.LAUNCH)
    target = edges.target[mine]
    call[target], lag[target] = edges.source[mine], edges.lag_ns[mine]
    return call, lag


def usual_lag_ns(rebuilt: Rebuilt, kind: EdgeKind, into: Bool) -> int:
    """The median of the short lags of a kind of edge into some tasks; 0 where there is none."""
    edges = rebuilt.graph.edges
    mine = edges.lag_ns[(edges.kind == kind) & into[edges.target]]
    mine = mine[(mine >= 0) & (mine <= LAG_MAX_NS)]
    return int(np.median(mine)) if len(mine) else 0


def neighbours(rebuilt: Rebuilt) -> tuple[I64, I64]:
    """By task, of computations: the one launched before and the one launched behind it on its rank; -1 none.
    The last entry of each is that of task -1."""
    work, rank = rebuilt.computations, rebuilt.graph.rank
    before, behind = (np.full(len(rebuilt.start_ns) + 1, NONE, np.int64) for _ in range(2))
    same = rank[work[1:]] == rank[work[:-1]]
    before[work[1:][same]], behind[work[:-1][same]] = work[:-1][same], work[1:][same]
    return before, behind


def awaiting(rebuilt: Rebuilt, tasks: I64, kinds: tuple[EdgeKind, ...] = tuple(EdgeKind)) -> I64:
    """By task, of these: the computation launched first of those that wait for it; -1 none."""
    edges, work = rebuilt.graph.edges, rebuilt.computations
    place = np.full(len(rebuilt.start_ns), NONE, np.int64)
    place[work] = np.arange(len(work))
    chosen = np.zeros(len(place), bool)
    chosen[tasks] = True
    mine = chosen[edges.source] & (place[edges.target] >= 0) & np.isin(edges.kind, kinds)
    first = np.full(len(place), len(work), np.int64)
    np.minimum.at(first, edges.source[mine], place[edges.target[mine]])
    return np.asarray(np.append(work, NONE)[first])


@dataclass(frozen=True, kw_only=True)
class Begins:
    """When parts of messages begin: no earlier than a computation has ended; columns."""

    task: I64
    after: I64
    """-1 unknown."""
    lag_ns: I64 | int


_NOTHING = np.empty(0, np.int64)
_AS_NOW = Begins(task=_NOTHING, after=_NOTHING, lag_ns=_NOTHING)


def in_parts(
    rebuilt: Rebuilt, parts: I64, latency_ns: float, *, first: Begins = _AS_NOW, second: Begins = _AS_NOW
) -> Rebuilt:
    """parts: by task (of a matched collective its transfer) into how many equal ones it is cut; 1 leaves it.
    The members of a collective are cut alike, into the most that any is.

    A part takes the latency, and its share of the rest. The first is ready when the whole was, or as `first`
    says; the others follow it, the second as `second` says. What waited for the whole waits for the last,
    which the task itself stands for from here on, and which is not ready before the whole was.
    """
    graph, count = rebuilt.graph, len(rebuilt.start_ns)
    arrival, meeting = arrivals(rebuilt), _meetings(rebuilt)
    most = np.ones(count, np.int64)
    matched = meeting >= 0
    np.maximum.at(most, meeting[matched], parts[matched])
    parts = np.where(matched, most[meeting], parts)
    chosen = np.flatnonzero((parts > 1) & (graph.kind == TaskKind.COMMUNICATION))
    if not len(chosen):
        return rebuilt
    more = parts[chosen] - 1
    transfer = np.repeat(chosen, more)
    number = np.concatenate([np.arange(m) for m in more.tolist()])
    """Of each new transfer in its collective; the old one is the last."""
    met = np.flatnonzero(meeting[transfer] >= 0)
    keys, which = np.unique(np.stack((meeting[transfer[met]], number[met])), axis=1, return_inverse=True)
    origin = np.concatenate((np.arange(count), transfer, arrival[transfer[met]], keys[0]))
    new_transfer = count + np.arange(len(transfer))
    new_arrival = new_transfer.copy()
    new_arrival[met] = count + len(transfer) + np.arange(len(met))
    new_meeting = count + len(transfer) + len(met) + which

    wires = Rewiring(rebuilt)
    wires.add(new_arrival[met], new_meeting, 0, EdgeKind.COLLECTIVE)
    wires.add(new_meeting, new_transfer[met], 0, EdgeKind.COLLECTIVE)
    begins, ends = number == 0, number == parts[transfer] - 2
    part = np.full((2, count), NONE, np.int64)
    """By task, what its first and its second part arrive as."""
    part[0, transfer[begins]] = new_arrival[begins]
    part[1, transfer[begins & ends]] = arrival[transfer[begins & ends]]
    part[1, transfer[number == 1]] = new_arrival[number == 1]
    copied = np.full(count, NONE, np.int64)
    copied[arrival[chosen]] = part[0, chosen]
    early = np.zeros(count, bool)
    early[arrival[first.task[first.after >= 0]]] = True
    queued = (wires.kind == EdgeKind.STREAM_ORDER) & (graph.kind[wires.source] == TaskKind.COMMUNICATION)
    into = (wires.kind != EdgeKind.COLLECTIVE) & (queued | ~early[wires.target])
    wires.add(wires.source[into], copied[wires.target[into]], wires.lag_ns[into], wires.kind[into])
    behind = np.where(ends, arrival[transfer], np.append(new_arrival[1:], NONE))
    wires.add(new_transfer, behind, 0, EdgeKind.STREAM_ORDER)
    for arrives, when in zip(part, (first, second), strict=True):
        wires.add(when.after, arrives[when.task], when.lag_ns, EdgeKind.INFERRED)

    def column(values: Any) -> Any:
        return values[origin]

    made = replace(
        rebuilt,
        **{name: column(getattr(rebuilt, name)) for name in OF_TASK},
        graph=replace(
            graph,
            **{name: column(getattr(graph, name)) for name in OF_GRAPH},
            edges=GraphBuilder().edges(len(origin)),
        ),
    )
    _share(made, chosen, parts, np.concatenate((new_transfer, chosen)), transfer, number, latency_ns)
    made.graph.release_ns[new_transfer[met]] = NO_RELEASE
    wires.rebuilt = made
    return wires.made("this would create a dependency cycle (a part of a message)")


def _share(
    made: Rebuilt, chosen: I64, parts: I64, tasks: I64, transfer: I64, number: I64, latency_ns: float
) -> None:
    """Give every part its share of the whole's time and bytes."""
    whole = np.concatenate((transfer, chosen))
    of = parts[whole]
    at = np.concatenate((number, parts[chosen] - 1))
    took = made.graph.duration_ns[whole].astype(np.float64)
    fixed = np.minimum(latency_ns, took)
    made.graph.duration_ns[tasks] = np.round(fixed + (took - fixed) / of).astype(np.int64)
    start, end = made.start_ns[whole], made.end_ns[whole]
    made.start_ns[tasks] = start + (end - start) * at // of
    made.end_ns[tasks] = start + (end - start) * (at + 1) // of
    size = made.bytes[whole]
    made.bytes[tasks] = np.where(size > 0, np.maximum(size // of, 1), size)


def _meetings(rebuilt: Rebuilt) -> I64:
    """By task: the meeting that a transfer follows; -1 where it was not matched."""
    graph, edges = rebuilt.graph, rebuilt.graph.edges
    found = np.full(len(rebuilt.start_ns), NONE, np.int64)
    out = graph.kind[edges.source] == TaskKind.MEETING
    found[edges.target[out]] = edges.source[out]
    return found
