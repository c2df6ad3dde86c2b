"""When every task runs, and what it waited for last."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from perfdoc.simulator.engine.graph import I64, NONE, TaskGraph


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Times by task."""

    start_ns: I64
    end_ns: I64
    binding: I64
    """Edge that decided the start; -1 where the release did."""


def schedule(graph: TaskGraph) -> Schedule:
    """Run the tasks: each starts at the latest of its release and, over its edges, source's end plus lag."""
    start, end, binding = _run()(
        graph.duration_ns, graph.release_ns, graph.edges.first, graph.edges.source, graph.edges.lag_ns
    )
    return Schedule(start_ns=start, end_ns=end, binding=binding)


def critical_path(graph: TaskGraph, times: Schedule, last: int | None = None) -> I64:
    """Tasks from the one that ends last (or the one given) back to one that nothing held up, in time
    order."""
    if not len(times.end_ns):
        return np.empty(0, np.int64)
    task = int(np.argmax(times.end_ns)) if last is None else last
    path = [task]
    while (edge := int(times.binding[task])) != NONE:
        task = int(graph.edges.source[edge])
        path.append(task)
    return np.array(path[::-1], np.int64)


@cache
def _run() -> Any:
    """Compiled on first use, in about half a second; four million tasks then take about 0.1 s."""
    import numba

    column = "int64[::1]"
    signature = f"UniTuple({column}, 3)({', '.join([column] * 5)})"
    return numba.njit(signature, nogil=True)(_forward)


def _forward(duration: I64, release: I64, first: I64, source: I64, lag: I64) -> tuple[I64, I64, I64]:
    n = len(duration)
    start = np.empty(n, np.int64)
    end = np.empty(n, np.int64)
    binding = np.empty(n, np.int64)
    for i in range(n):
        at = release[i]
        by = -1
        for e in range(first[i], first[i + 1]):
            t = end[source[e]] + lag[e]
            if t > at:
                at = t
                by = e
        start[i] = at
        end[i] = at + duration[i]
        binding[i] = by
    return start, end, binding
