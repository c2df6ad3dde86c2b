"""When every task runs, and what it waited for last; and an order in which tasks can be run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from perfdoc.simulator.engine.graph import I64, NONE, TaskGraph
from perfdoc.simulator.engine.loops import are_there, run_loop

_FEW_TASKS = 50_000
"""Tasks and edges that plain Python goes through in the time that the compiler takes to load."""


def topological_order(tasks: int, source: I64, target: I64) -> I64 | None:
    """Tasks in such an order; None where tasks form a dependency cycle."""
    by_source = np.argsort(source, kind="stable")
    first = np.zeros(tasks + 1, np.int64)
    np.cumsum(np.bincount(source, minlength=tasks), out=first[1:])
    waits_for = np.bincount(target, minlength=tasks).astype(np.int64)
    columns = (first, np.ascontiguousarray(target[by_source]), waits_for)
    if tasks + len(source) <= _FEW_TASKS and not are_there():
        plain: list[Any] = [*(c.tolist() for c in columns), [0] * tasks]
        return np.array(plain[-1], np.int64) if _ready_first(*plain) == tasks else None
    order = np.empty(tasks, np.int64)
    return order if run_loop("ready_first", tasks, *columns, order) == tasks else None


def _ready_first(first: Any, target: Any, waits_for: Any, order: Any) -> int:
    """Fills `order` and returns how many tasks it holds; all are arrays, or all are lists."""
    n = len(waits_for)
    found = 0
    for i in range(n):
        if waits_for[i] == 0:
            order[found] = i
            found += 1
    at = 0
    while at < found:
        for e in range(first[order[at]], first[order[at] + 1]):
            t = target[e]
            waits_for[t] -= 1
            if waits_for[t] == 0:
                order[found] = t
                found += 1
        at += 1
    return found


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Times by task."""

    start_ns: I64
    end_ns: I64
    binding: I64
    """Edge that decided the start; -1 where the release did."""


def schedule(graph: TaskGraph) -> Schedule:
    """Run the tasks: each starts at the latest of its release and, over its edges, source's end plus lag."""
    edges = graph.edges
    columns = (graph.duration_ns, graph.release_ns, edges.first, edges.source, edges.lag_ns)
    count = len(graph.duration_ns)
    start, end, binding = (np.empty(count, np.int64) for _ in range(3))
    if count + len(edges.source) > _FEW_TASKS or are_there():
        run_loop("forward", count, *columns, start, end, binding)
        return Schedule(start_ns=start, end_ns=end, binding=binding)
    found = ([0] * count, [0] * count, [0] * count)
    arguments: list[Any] = [*(c.tolist() for c in columns), *found]
    _forward(*arguments)
    return Schedule(**{n: np.array(c, np.int64) for n, c in zip(_COLUMNS, found, strict=True)})


_COLUMNS = ("start_ns", "end_ns", "binding")


def critical_path(graph: TaskGraph, times: Schedule, last: int | None = None) -> I64:
    """Tasks from the one that ends last (or the one given) back to one that nothing held up, in time
    order."""
    if not len(times.end_ns):
        return np.empty(0, np.int64)
    task = int(np.argmax(times.end_ns)) if last is None else last
    if are_there():
        path = np.empty(len(times.end_ns), np.int64)
        columns = (times.binding, graph.edges.source, np.array([task], np.int64), path)
        return path[run_loop("back", len(path), *columns) :].copy()
    found = [0] * len(times.end_ns)
    return np.array(found[_back(times.binding, graph.edges.source, task, found) :], np.int64)


def _back(binding: Any, source: Any, task: int, path: Any) -> int:
    """Fills the path from its end, and returns where it begins."""
    at = len(path) - 1
    path[at] = task
    while binding[task] != NONE:
        task = source[binding[task]]
        at -= 1
        path[at] = task
    return at


def _forward(
    duration: Any, release: Any, first: Any, source: Any, lag: Any, start: Any, end: Any, binding: Any
) -> None:
    """Fills the last three columns; all are arrays, or all are lists."""
    for i in range(len(duration)):
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
