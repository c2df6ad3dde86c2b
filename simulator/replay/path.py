"""What the critical path is made of: the chain of tasks, each held up by the one before, that ends last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.activity import DIMENSIONS
from perfdoc.simulator.engine import EdgeKind, Schedule, TaskGraph, TaskKind, critical_path
from perfdoc.simulator.engine.graph import I64
from perfdoc.simulator.replay.rank_tasks import RankTasks

_TASK_NAMES: Mapping[TaskKind, str] = {
    TaskKind.HOST: "host_call",
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


@dataclass(frozen=True, kw_only=True)
class PathPart:
    """Time of the critical path by what it was spent on."""

    name: str
    """compute, communication.<dimension>, copy, host_call (inside CUDA calls), host (between them),
    launch_latency, dependency, host_return, collective (waiting for other ranks), before (nothing is known to
    hold up the first task)."""
    total_ns: int


def path_parts(
    graph: TaskGraph, times: Schedule, from_ns: int, dimension: I64
) -> tuple[I64, tuple[PathPart, ...]]:
    """The path's tasks in time order, and its time from from_ns to its end by part; the parts sum to it
    exactly.

    dimension: index into DIMENSIONS of each task, for those that communicate.
    """
    path = critical_path(graph, times, last_on_device(graph, times))
    if not len(path):
        return path, ()
    totals: dict[str, int] = {"before": int(times.start_ns[path[0]]) - from_ns}
    until = np.append(times.start_ns[path[1:]], times.end_ns[path[-1]])
    spent = until - times.start_ns[path]
    own = np.minimum(spent, graph.duration_ns[path])
    lag = spent - own
    for name, mine in _by_task(graph, path, dimension):
        totals[name] = totals.get(name, 0) + int(own[mine].sum())
    edge_kind = graph.edges.kind[times.binding[path[1:]]]
    for kind in EdgeKind:
        mine = edge_kind == kind
        if mine.any():
            name = _EDGE_NAMES[kind]
            totals[name] = totals.get(name, 0) + int(lag[:-1][mine].sum())
    assert sum(totals.values()) == int(times.end_ns[path[-1]]) - from_ns
    parts = (PathPart(name=n, total_ns=t) for n, t in totals.items() if t)
    return path, tuple(sorted(parts, key=lambda p: (-p.total_ns, p.name)))


def last_on_device(graph: TaskGraph, times: Schedule) -> int:
    """The device's task that ends last; the host's, where there is none on a device."""
    rows = np.flatnonzero(graph.kind != TaskKind.HOST)
    rows = rows if len(rows) else np.arange(len(graph.kind))
    return int(rows[np.argmax(times.end_ns[rows])])


def task_dimensions(tasks: RankTasks, dimension: I64, comm_rows: I64) -> I64:
    """Dimension of every task; `unknown` for those that do not communicate.

    dimension: of each communication of the activity; comm_rows: their rows in the activity's columns.
    """
    found = np.full(len(tasks.start_ns), DIMENSIONS.index("unknown"), np.int64)
    at = tasks.activity_task[comm_rows]
    found[at[at >= 0]] = dimension[at >= 0]
    return found


def _by_task(graph: TaskGraph, path: I64, dimension: I64) -> list[tuple[str, np.ndarray]]:
    kind = graph.kind[path]
    named = [(name, kind == k) for k, name in _TASK_NAMES.items()]
    communicates = kind == TaskKind.COMMUNICATION
    for i, text in enumerate(DIMENSIONS):
        named.append((f"communication.{text}", communicates & (dimension[path] == i)))
    return [(name, mine) for name, mine in named if mine.any()]
