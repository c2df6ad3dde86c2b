"""Take a straggler's delay away: between collectives it computes for as long as the others of its group."""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.simulator.engine import TaskKind
from perfdoc.simulator.engine.graph import I64
from perfdoc.simulator.replay.edits.edit import Edit, with_durations
from perfdoc.simulator.replay.rebuilt import Rebuilt

_UNCERTAINTY_FRAC = 0.15
"""The others may have less to do (uneven data, uneven stages), so that not all of it is a delay."""


def without_straggler(rank: int, dimension: str) -> Edit:
    """Between its matched collectives of a dimension, a rank (its index in the job) computes no longer than
    the median of the other members did between the same two.

    ValueError for a name that is no dimension.
    """
    if dimension not in DIMENSIONS:
        raise ValueError(f"without_straggler: {dimension!r} is none of {', '.join(DIMENSIONS)}")

    def apply(rebuilt: Rebuilt) -> Rebuilt:
        meetings = _meetings(rebuilt, DIMENSIONS.index(dimension))
        mine = meetings[rank] if 0 <= rank < len(meetings) else np.empty((0, 2), np.int64)
        if not len(mine):
            raise ValueError(f"rank {rank} has no matched {dimension} collective")
        which, own_ns = _between(rebuilt, rank, mine[:, 1])
        segments = len(mine) + 1
        total = np.bincount(which, own_ns, segments)
        peers = []
        for i, other in enumerate(meetings):
            if i != rank and np.array_equal(other[:, 0], mine[:, 0]):
                peers.append(np.bincount(*_between(rebuilt, i, other[:, 1]), segments))
        if not peers:
            raise ValueError(f"no rank has all {dimension} collectives in common with rank {rank}")
        usual = np.median(np.stack(peers), axis=0)
        factor = np.where(total > usual, usual / np.maximum(total, 1), 1.0)
        duration: I64 = rebuilt.graph.duration_ns.copy()
        rows = _compute_of(rebuilt, rank)
        duration[rows] = np.round(duration[rows] * factor[which]).astype(np.int64)
        return with_durations(rebuilt, duration)

    return Edit(
        name=f"rank {rank} as fast as its {dimension} peers",
        apply=apply,
        uncertainty_frac=_UNCERTAINTY_FRAC,
        leaves=("exposed_comm", "compute"),
        assumptions=("the ranks of the group have the same work to do",),
    )


def last_to_arrive(rebuilt: Rebuilt, dimension: str) -> int | None:
    """The rank (index) that the others of its matched collectives of a dimension waited for longest in all;
    None where there are none."""
    graph, edges = rebuilt.graph, rebuilt.graph.edges
    into = (graph.kind[edges.source] == TaskKind.ARRIVAL) & (graph.kind[edges.target] == TaskKind.MEETING)
    into &= rebuilt.dimension[edges.source] == DIMENSIONS.index(dimension)
    arrival, meeting = edges.source[into], edges.target[into]
    if not len(arrival):
        return None
    order = np.lexsort((rebuilt.start_ns[arrival], meeting))
    arrival, meeting = arrival[order], meeting[order]
    last = np.append(meeting[1:] != meeting[:-1], True)
    which = np.cumsum(np.concatenate(([0], last[:-1])))
    at = rebuilt.start_ns[arrival]
    waited = np.bincount(which, at[last][which] - at)
    caused = np.bincount(graph.rank[arrival[last]], waited, len(rebuilt.ranks))
    return int(np.argmax(caused))


def _meetings(rebuilt: Rebuilt, dimension: int) -> list[I64]:
    """By rank: (meeting, measured arrival) of its matched collectives of a dimension, by arrival."""
    graph = rebuilt.graph
    edges = graph.edges
    into = (graph.kind[edges.source] == TaskKind.ARRIVAL) & (graph.kind[edges.target] == TaskKind.MEETING)
    into &= rebuilt.dimension[edges.source] == dimension
    arrival, meeting = edges.source[into], edges.target[into]
    found = []
    for i in range(len(rebuilt.ranks)):
        mine = np.flatnonzero(graph.rank[arrival] == i)
        at = rebuilt.start_ns[arrival[mine]]
        order = np.argsort(at, kind="stable")
        found.append(np.stack((meeting[mine[order]], at[order]), axis=1))
    return found


def _compute_of(rebuilt: Rebuilt, rank: int) -> I64:
    return np.flatnonzero((rebuilt.graph.kind == TaskKind.COMPUTE) & (rebuilt.graph.rank == rank))


def _between(rebuilt: Rebuilt, rank: int, arrivals_ns: I64) -> tuple[I64, I64]:
    """Of each computation of a rank: how many of these arrivals came before it began, and its duration."""
    rows = _compute_of(rebuilt, rank)
    return np.searchsorted(arrivals_ns, rebuilt.start_ns[rows], "right"), rebuilt.graph.duration_ns[rows]
