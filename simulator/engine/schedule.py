"""When every task runs, and what it waited for last; and an order in which tasks can be run.

The loops over tasks are plain Python. Of many tasks numba compiles the same functions, where it is installed;
where it is not, tasks of many ranks are run a level at a time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache, cached_property, partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from perfdoc.profiling.telling import in_worker
from perfdoc.records import dataclass
from perfdoc.simulator.engine.graph import I64, NO_RELEASE, NONE, Edges, TaskGraph, lasting
from perfdoc.simulator.engine.levels import fill_ends, fill_order

_MANY = 6_000_000
"""Figures of tasks and edges, over all runs together. numba takes 0.4 s and 60 MB to start, which is the time
that plain Python takes for so many: whatever is to come, that costs twice the better choice at most."""
_ran = _expected = 0
"""Of those, what was run, and what will be at least."""


def expect(graph: TaskGraph, runs: int) -> None:
    """Say that a graph will be run so often at least."""
    global _expected
    _expected += runs * (3 * len(graph.duration_ns) + 2 * len(graph.edges.source))


def topological_order(tasks: int, source: I64, target: I64) -> I64 | None:
    """Tasks in such an order; None where tasks form a dependency cycle."""
    by_source = np.argsort(source, kind="stable")
    first = np.zeros(tasks + 1, np.int64)
    np.cumsum(np.bincount(source, minlength=tasks), out=first[1:])
    waits_for = np.bincount(target, minlength=tasks).astype(np.int64)
    order = np.empty(tasks, np.int64)
    columns = (first, np.ascontiguousarray(target[by_source]))
    ordered = _run(_order_tasks, columns, (waits_for, order), lambda: fill_order(*columns, waits_for, order))
    return order if ordered == tasks else None


@dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """Times by task."""

    graph: TaskGraph
    end_ns: I64

    @cached_property
    def start_ns(self) -> I64:
        """By task."""
        return self.end_ns - self.graph.duration_ns

    @cached_property
    def binding(self) -> I64:
        """By task the edge that decided its start, the first of several; -1 where the release did."""
        edges, target = self.graph.edges, self.graph.edges.target
        held = (self.start_ns > self.graph.release_ns)[target]
        decides = (self.end_ns[edges.source] + edges.lag_ns == self.start_ns[target]) & held
        found, last_first = np.full(len(self.end_ns), NONE, np.int64), np.flatnonzero(decides)[::-1]
        found[target[last_first]] = last_first
        return found


def schedule(graph: TaskGraph) -> Schedule:
    """Run the tasks: each starts at the latest of its release and, over its edges, source's end plus lag."""
    edges, end = graph.edges, np.zeros(len(graph.duration_ns), np.int64)
    columns = (graph.duration_ns, graph.release_ns, edges.first, edges.source, edges.lag_ns)
    past_paths = partial(_fill_past_paths, graph, end)
    _run(_schedule_tasks, columns, (end,), lambda: fill_ends(graph, end), past_paths)
    return Schedule(graph=graph, end_ns=end)


def critical_path(graph: TaskGraph, times: Schedule, last: int | None = None) -> I64:
    """Tasks from the one that ends last (or the one given) back to one that nothing held up, in time
    order."""
    if not len(times.end_ns):
        return np.empty(0, np.int64)
    path = [int(np.argmax(times.end_ns)) if last is None else last]
    binding, source = times.binding.data, graph.edges.source.data
    while (edge := binding[path[-1]]) != NONE:
        path.append(source[edge])
    return np.array(path[::-1], np.int64)


def _order_tasks(first: Any, target: Any, waits_for: Any, order: Any) -> int:
    """Fills `order` and returns how many tasks it holds."""
    count = 0
    for i in range(len(waits_for)):
        if waits_for[i] == 0:
            order[count] = i
            count += 1
    at = 0
    while at < count:
        for e in range(first[order[at]], first[order[at] + 1]):
            t = target[e]
            waits_for[t] -= 1
            if waits_for[t] == 0:
                order[count] = t
                count += 1
        at += 1
    return count


def _schedule_tasks(duration: Any, release: Any, first: Any, source: Any, lag: Any, end: Any) -> int:
    """Fills the last column."""
    e = 0
    for i, (at, last) in enumerate(zip(release, first[1:])):  # noqa: B905 - numba knows no strict
        while e < last:
            t = end[source[e]] + lag[e]
            if t > at:
                at = t
            e += 1
        end[i] = at + duration[i]
    return len(end)


def _run(
    loop: Callable[..., int],
    columns: Sequence[I64],
    results: Sequence[I64],
    by_level: Callable[[], list[int] | None] = lambda: None,
    past_paths: Callable[[], bool] = lambda: False,
) -> int:
    """Run a loop over columns; it fills the results. by_level: what fills them without it, and says where
    each level begins and the last one ends; None where it does not. past_paths: what fills them with a run
    over fewer tasks, and says whether it did."""
    global _ran
    _ran += sum(map(len, columns))
    many = max(_ran, _expected) > _MANY
    if many and (compiled := _compiled(loop)) is not None:
        return int(compiled(*columns, *results))
    if (begins := by_level()) is not None:
        return begins[-1]
    if many:
        _say_that_it_is_slow()
    if past_paths():
        return len(results[0])
    lists = [v.tolist() for v in (*columns, *results)]
    returned = loop(*lists)
    for result, values in zip(results, lists[len(columns) :], strict=True):
        result[:] = values
    return returned


def _fill_past_paths(graph: TaskGraph, end: I64) -> bool:
    """Fill when each task ends. Those that wait for one other alone, without a release, end a known time
    after it: of each path of such tasks the first one is run. False where some within paths have releases."""
    duration, edges = graph.duration_ns, graph.edges
    times = duration, graph.release_ns, edges.lag_ns
    totals = tuple(int(column.sum()) for column in times)
    ran = _ran_with(edges)
    if (before := ran.get(totals)) is not None and all(map(np.array_equal, before, times)):
        end[:] = before[-1]
        return True
    paths = _paths(edges)
    if (graph.release_ns[paths.behind] != NO_RELEASE).any():
        return False
    own = duration.copy()
    own[paths.behind] += edges.lag_ns[edges.first[paths.behind]]
    passed = own[paths.order].cumsum()[paths.place]
    since = passed - passed[paths.first][paths.path]  # the end of the path's first task
    lag = edges.lag_ns[paths.edge] + since[edges.source[paths.edge]]
    columns = duration[paths.first], graph.release_ns[paths.first], lag, paths.first
    own_ns, release, lag_ns, ends = (column.tolist() for column in columns)
    _schedule_tasks(own_ns, release, paths.begins, paths.waits, lag_ns, ends)
    np.add(np.array(ends, np.int64)[paths.path], since, out=end)
    if len(ran) * sum(map(len, times)) < _MANY // 4:
        ran[totals] = [column.copy() for column in (*times, end)]
    return True


_ran_with: Callable[[Edges], dict[tuple[int, ...], list[I64]]] = lasting(lambda _edges: {})
"""By their sums: durations, releases and lags that were run, and when each task ended. Many sets of changes
come to the same."""


@dataclass(frozen=True, kw_only=True)
class _Paths:
    """Tasks of which each waits for the one before it alone, path by path; edges as rows of `Edges`."""

    behind: I64
    """Tasks behind the first of a path."""
    first: I64
    """The first tasks."""
    path: I64
    """Each task's path."""
    order: I64
    """All tasks, path by path."""
    place: I64
    """Each task's place there."""
    edge: I64
    """Edges of the first tasks."""
    waits: list[int]
    """The path that each comes from."""
    begins: list[int]
    """Where among these edges each path's begin."""


@lasting
def _paths(edges: Edges) -> _Paths:
    counts = np.diff(edges.first)
    tasks, alone = np.arange(len(counts)), np.flatnonzero(counts == 1)
    before, after = edges.source[edges.first[alone]], np.full(len(counts), NONE, np.int64)
    after[before[::-1]] = alone[::-1]  # of several that wait for it, the first one goes on
    goes_on = after[before] == alone
    behind, head = alone[goes_on], tasks.copy()
    head[behind] = before[goes_on]
    while ((further := head[head]) != head).any():
        head = further
    is_first = head == tasks
    order, place = np.argsort(head, kind="stable"), np.empty_like(tasks)
    place[order] = tasks
    path, edge = (np.cumsum(is_first) - 1)[head], np.flatnonzero(is_first[edges.target])
    return _Paths(
        behind=behind,
        first=np.flatnonzero(is_first),
        path=path,
        order=order,
        place=place,
        edge=edge,
        waits=path[edges.source[edge]].tolist(),
        begins=[0, *np.cumsum(counts[is_first]).tolist()],
    )


def is_to_compile() -> bool:
    """Whether numba is there and was not started so far: two processes would both start it."""
    return "numba" not in sys.modules and find_spec("numba") is not None


@cache
def _compiled(loop: Callable[..., int]) -> Callable[..., int] | None:
    """The loop as numba compiles it, which is kept between runs; None without numba."""
    try:
        from numba import njit
    except ImportError:
        return None
    try:
        fast: Callable[..., int] = njit(cache=True, nogil=True)(loop)
    except RuntimeError:  # no folder can be written
        fast = njit(nogil=True)(loop)
    return fast


@cache
def _say_that_it_is_slow() -> None:
    if not in_worker() and sys.stderr is not None:
        from perfdoc.profiling.installation import install_command

        command = install_command("large")
        sys.stderr.write(f"perfdoc: many tasks are replayed in plain Python; quicker: {command}\n")
