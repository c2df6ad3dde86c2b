"""What the critical path is made of: the chain of tasks, each held up by the one before, that ends last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.simulator.engine import EdgeKind, Schedule, TaskKind, critical_path
from perfdoc.simulator.engine.graph import I64
from perfdoc.simulator.replay.rebuilt import Rebuilt
from perfdoc.traces.table import Bool

_TASK_NAMES: Mapping[TaskKind, str] = {
    TaskKind.COMPUTE: "compute",
    TaskKind.COPY: "copy",
    TaskKind.ARRIVAL: "collective",
    TaskKind.MEETING: "collective",
}
_EDGE_NAMES: Mapping[EdgeKind, str] = {
    EdgeKind.HOST_ORDER: "host",
    EdgeKind.HOST_HANDOVER: "host",
    EdgeKind.LAUNCH: "launch_latency",
    EdgeKind.STREAM_ORDER: "launch_latency",
    EdgeKind.EVENT: "dependency",
    EdgeKind.INFERRED: "dependency",
    EdgeKind.HOST_SYNC: "host_return",
    EdgeKind.COLLECTIVE: "collective",
}
_BETWEEN_CALLS = (EdgeKind.HOST_ORDER, EdgeKind.HOST_HANDOVER)


@dataclass(frozen=True, kw_only=True)
class PathPart:
    """Time of the critical path by what it was spent on, and on which rank."""

    rank: int
    """Index into Rebuilt.ranks."""
    name: str
    """compute, communication.<dimension>, copy, host_call (inside CUDA calls), host (other work of it), gc,
    data, launch_latency, dependency, host_return, collective (waiting for other ranks), before (nothing is
    known to hold up the first task)."""
    total_ns: int


def path_parts(rebuilt: Rebuilt, times: Schedule) -> tuple[I64, tuple[PathPart, ...]]:
    """The path's tasks in time order, and its time from the window's start to its end by rank and part; they
    sum to it exactly. Between two tasks it is the later one's rank that time is spent on."""
    graph = rebuilt.graph
    path = critical_path(graph, times, last_task(rebuilt, times))
    rank = graph.rank[path]
    from_ns = min(r.window_start_ns for r in rebuilt.ranks)
    totals: dict[tuple[int, str], int] = {(int(rank[0]), "before"): int(times.start_ns[path[0]]) - from_ns}
    until = np.append(times.start_ns[path[1:]], times.end_ns[path[-1]])
    spent = until - times.start_ns[path]
    own = np.minimum(spent, graph.duration_ns[path])
    lag = (spent - own)[:-1]

    def add(name: str, total_ns: I64, of_rank: I64) -> None:
        for i in np.unique(of_rank).tolist():
            totals[i, name] = totals.get((i, name), 0) + int(total_ns[of_rank == i].sum())

    for name, mine in _by_task(rebuilt, path):
        add(name, own[mine], rank[mine])
    edge_kind = graph.edges.kind[times.binding[path[1:]]]
    for kind in EdgeKind:
        mine = edge_kind == kind
        add(_EDGE_NAMES[kind], lag[mine], rank[1:][mine])
    on_host = rebuilt.on_host[path] & (graph.kind[path] == TaskKind.HOST)
    between = np.isin(edge_kind, _BETWEEN_CALLS)
    for i, frame in enumerate(rebuilt.ranks):
        inside, gap = on_host & (rank == i), between & (rank[1:] == i)
        for name, known in frame.host.items():
            if not len(known):
                continue
            covered = known.covered_within(rebuilt.start_ns[path], rebuilt.end_ns[path])
            part = int(np.minimum(covered, own)[inside].sum())
            covered = known.covered_within(rebuilt.end_ns[path[:-1]], rebuilt.start_ns[path[1:]])
            part += int(np.minimum(covered, lag)[gap].sum())
            for of, moved in ((name, part), ("host", -part)):
                totals[i, of] = totals.get((i, of), 0) + moved
    assert sum(totals.values()) == int(times.end_ns[path[-1]]) - from_ns
    parts = (PathPart(rank=i, name=n, total_ns=t) for (i, n), t in totals.items() if t)
    return path, tuple(sorted(parts, key=lambda p: (-p.total_ns, p.name, p.rank)))


def last_task(rebuilt: Rebuilt, times: Schedule) -> int:
    """What ends last on any device; of ranks that train on the CPU, on the host. There must be some."""
    rows = np.flatnonzero(rebuilt.on_host | (rebuilt.graph.kind != TaskKind.HOST))
    return int(rows[np.argmax(times.end_ns[rows])])


def _by_task(rebuilt: Rebuilt, path: I64) -> Iterator[tuple[str, Bool]]:
    kind = rebuilt.graph.kind[path]
    for k, name in _TASK_NAMES.items():
        yield name, kind == k
    is_host = kind == TaskKind.HOST
    yield "host", is_host & rebuilt.on_host[path]
    yield "host_call", is_host & ~rebuilt.on_host[path]
    for i, text in enumerate(DIMENSIONS):
        communicates = kind == TaskKind.COMMUNICATION
        yield f"communication.{text}", communicates & (rebuilt.dimension[path] == i)
