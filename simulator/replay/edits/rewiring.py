"""Edges taken away, moved and added; which tasks of a collective wait; and collectives cut into parts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.simulator.engine import EdgeKind, GraphBuilder, TaskKind
from perfdoc.simulator.engine.graph import I64, NONE
from perfdoc.simulator.replay.rank_tasks import NO_RELEASE
from perfdoc.simulator.replay.rebuilt import OF_GRAPH, OF_TASK, Rebuilt, with_edges
from perfdoc.traces.table import Bool

LAG_MAX_NS = 20_000
"""What follows something at once follows it within this; see rank_tasks."""
WAITS_FOR_NONE = "nothing waits for {} communication before the optimizer step already"
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
        self._added: list[tuple[I64, I64, I64 | int, EdgeKind]] = []

    def add(self, source: I64, target: I64, lag_ns: I64 | int, kind: EdgeKind) -> None:
        """As in GraphBuilder; a side of -1 is no edge."""
        real = (source >= 0) & (target >= 0)
        lag = np.broadcast_to(np.asarray(lag_ns, np.int64), source.shape)
        self._added.append((source[real], target[real], lag[real], kind))

    def made(self, circle: str) -> Rebuilt:
        """The same tasks with these edges. ValueError, `circle`, where they form a dependency cycle."""
        builder = GraphBuilder()
        for kind in EdgeKind:
            mine = self.kept & (self.kind == kind)
            builder.add(self.source[mine], self.target[mine], self.lag_ns[mine], kind)
        for source, target, lag, kind in self._added:
            builder.add(source, target, lag, kind)
        found = with_edges(self.rebuilt, builder)
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


def in_parts(rebuilt: Rebuilt, parts: I64, latency_ns: float) -> Rebuilt:
    """parts: by task (of a matched collective its transfer) into how many equal ones it is cut; 1 leaves it.
    The members of a collective are cut alike, into the most that any is.

    A part takes the latency, and its share of the rest. The first is ready when the whole was; what waited
    for the whole waits for the last, which the task itself stands for from here on.
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

    builder, edges = GraphBuilder(), graph.edges
    for kind in EdgeKind:
        mine = edges.kind == kind
        builder.add(edges.source[mine], edges.target[mine], edges.lag_ns[mine], kind)
    builder.add(new_arrival[met], new_meeting, 0, EdgeKind.COLLECTIVE)
    builder.add(new_meeting, new_transfer[met], 0, EdgeKind.COLLECTIVE)
    first = number == 0
    copied = np.full(count, NONE, np.int64)
    copied[arrival[transfer[first]]] = new_arrival[first]
    into = (copied[edges.target] >= 0) & (edges.kind != EdgeKind.COLLECTIVE)
    for kind in EdgeKind:
        mine = into & (edges.kind == kind)
        builder.add(edges.source[mine], copied[edges.target[mine]], edges.lag_ns[mine], kind)
    last = number == parts[transfer] - 2
    behind = np.where(last, arrival[transfer], np.append(new_arrival[1:], NONE))
    builder.add(new_transfer, behind, 0, EdgeKind.STREAM_ORDER)

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
    found = with_edges(made, builder)
    assert found is not None, "parts run in order"
    return found


def _share(
    made: Rebuilt,
    chosen: I64,
    parts: I64,
    tasks: I64,
    transfer: I64,
    number: I64,
    latency_ns: float,
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
