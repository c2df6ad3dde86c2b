"""Edges taken away, moved and added; and which task of a collective waits, and which are waited for."""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.simulator.engine import EdgeKind, GraphBuilder, TaskKind
from perfdoc.simulator.engine.graph import I64
from perfdoc.simulator.replay.rebuilt import Rebuilt, with_edges
from perfdoc.traces.table import Bool

LAG_MAX_NS = 20_000
"""What follows something at once follows it within this; see rank_tasks."""
_TOGETHER = (TaskKind.COMMUNICATION, TaskKind.ARRIVAL, TaskKind.MEETING)


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
        """The same tasks with these edges. ValueError, `circle`, where they wait for one another in one."""
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


def communicates(rebuilt: Rebuilt) -> Bool:
    """By task: communication, or a part of it."""
    found: Bool = np.isin(rebuilt.graph.kind, _TOGETHER)
    return found


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
