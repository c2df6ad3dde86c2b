"""The engine against a count by hand and against brute force."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfdoc.simulator.engine import (
    EdgeKind,
    Edges,
    GraphBuilder,
    TaskGraph,
    TaskKind,
    critical_path,
    levels,
    schedule,
)
from perfdoc.simulator.engine.schedule import topological_order

engine = importlib.import_module("perfdoc.simulator.engine.schedule")
"""The package has a function of that name."""
NO_RELEASE = np.iinfo(np.int64).min


def graph(durations: list[int], edges: list[tuple[int, int, int]], releases: dict[int, int]) -> TaskGraph:
    """edges: (source, target, lag)."""
    builder = GraphBuilder()
    columns = np.array(edges, np.int64).reshape(-1, 3)
    builder.add(columns[:, 0], columns[:, 1], columns[:, 2], EdgeKind.STREAM_ORDER)
    count = len(durations)
    release = np.full(count, NO_RELEASE, np.int64)
    for task, at in releases.items():
        release[task] = at
    zero = np.zeros(count, np.int64)
    return TaskGraph(
        duration_ns=np.array(durations, np.int64),
        release_ns=release,
        kind=np.full(count, TaskKind.COMPUTE, np.int8),
        rank=zero,
        resource=zero,
        row=zero - 1,
        edges=builder.edges(count),
    )


def test_two_branches_meet_and_the_longer_one_is_the_path() -> None:
    """a [0,10) → b at 12 (lag 2) [12,17); a → c at 10 [10,40); d after both, 5 after b, at once after c:
    max(22, 40) = 40, [40,43). The path is a, c, d."""
    made = graph([10, 5, 30, 3], [(0, 1, 2), (0, 2, 0), (1, 3, 5), (2, 3, 0)], {0: 0})
    times = schedule(made)
    assert times.start_ns.tolist() == [0, 12, 10, 40]
    assert times.end_ns.tolist() == [10, 17, 40, 43]
    assert critical_path(made, times).tolist() == [0, 2, 3]


def test_a_collective_starts_for_all_when_the_last_has_arrived() -> None:
    """Ranks ready at 5 and 30: both transfer [30,34), and the path is the late one's."""
    made = graph([5, 30, 0, 4, 4], [(0, 2, 0), (1, 2, 0), (2, 3, 0), (2, 4, 0)], {0: 0, 1: 0})
    times = schedule(made)
    assert times.end_ns.tolist()[3:] == [34, 34]
    assert critical_path(made, times)[:2].tolist() == [1, 2]


def test_a_negative_lag_lets_work_begin_inside_its_launch() -> None:
    """A call [0,10) launches what starts 4 after the call's start: lag -6."""
    made = graph([10, 7], [(0, 1, -6)], {0: 0})
    assert schedule(made).start_ns.tolist() == [0, 4]


def test_nothing_to_do() -> None:
    made = graph([], [], {})
    assert critical_path(made, schedule(made)).tolist() == []


@given(st.data())
def test_every_start_is_the_latest_of_what_is_waited_for(data: st.DataObject) -> None:
    """Times, and the decisive edge, against a plain loop."""
    count = data.draw(st.integers(1, 12))
    durations = data.draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    pairs = [(s, t) for t in range(count) for s in range(t)]
    chosen = data.draw(st.lists(st.sampled_from(pairs), max_size=20)) if pairs else []
    edges = [(s, t, data.draw(st.integers(-5, 5))) for s, t in chosen]
    releases = {i: data.draw(st.integers(0, 20)) for i in range(count)}
    made = graph(durations, edges, releases)
    times = schedule(made)
    ends: list[int] = []
    for task in range(count):
        reasons = [releases[task], *(ends[s] + lag for s, t, lag in edges if t == task)]
        start = max(reasons)
        assert times.start_ns[task] == start
        edge = int(times.binding[task])
        if edge >= 0:
            source = int(made.edges.source[edge])
            assert ends[source] + int(made.edges.lag_ns[edge]) == start
        else:
            assert releases[task] == start
        ends.append(start + durations[task])
    assert times.end_ns.tolist() == ends


def test_edges_lie_by_waiting_task_in_the_order_in_which_they_were_added() -> None:
    """Task 2 waits for 0 twice and for 1, task 3 for 1 and 0; task 1 cannot wait for 3, which comes later."""
    builder = GraphBuilder()
    for kind, edges in {
        EdgeKind.LAUNCH: [(0, 2, 5), (1, 3, 6), (-1, 3, 4), (0, 2, 7)],
        EdgeKind.STREAM_ORDER: [(1, 2, 8), (0, 3, 9)],
        EdgeKind.EVENT: [(3, 1, 1)],
    }.items():
        source, target, lag = np.array(edges, np.int64).T
        builder.add(source, target, lag, kind)
    made, impossible = builder.possible_edges(4)
    assert impossible == 1
    assert made.first.tolist() == [0, 0, 0, 3, 5]
    assert made.source.tolist() == [0, 0, 1, 1, 0]
    assert made.lag_ns.tolist() == [5, 7, 8, 6, 9]
    launch, order = EdgeKind.LAUNCH, EdgeKind.STREAM_ORDER
    assert made.kind.tolist() == [launch, launch, order, launch, order]
    mixed = np.array([4, 2, 0, 3, 1])
    target = np.array([2, 2, 2, 3, 3])[mixed]
    again = Edges.of(made.source[mixed], target, made.lag_ns[mixed], made.kind[mixed], 4)
    assert again.first.tolist() == [0, 0, 0, 3, 5]
    assert (again.lag_ns.tolist(), again.kind.tolist()) == ([5, 7, 8, 6, 9], made.kind.tolist())


@pytest.mark.parametrize("how", ["compiled", "levels", "paths"])
@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_quick_ways_do_what_plain_python_does(how: str, data: st.DataObject) -> None:
    """However few tasks there are: times and decisive edges, the way back from each task, and an order of the
    tasks numbered at random, which has no circle; with other lags the same edges are asked for again."""
    if how == "compiled":
        pytest.importorskip("numba")
    count = data.draw(st.integers(1, 12))
    pairs = [(s, t) for t in range(count) for s in range(t)]
    chosen = data.draw(st.lists(st.sampled_from(pairs), max_size=20)) if pairs else []
    edges = [(s, t, data.draw(st.integers(-5, 5))) for s, t in chosen]
    held = set(range(count)).difference(t for _, t in chosen) if how == "paths" else range(count)
    releases = {i: data.draw(st.integers(0, 20)) for i in held}
    made = graph(data.draw(st.lists(st.integers(0, 9), min_size=count, max_size=count)), edges, releases)
    number = np.array(data.draw(st.permutations(range(count))), np.int64)
    source, target = (number[np.array([e[i] for e in edges], np.int64)] for i in (0, 1))

    longer = replace(made, edges=replace(made.edges, lag_ns=made.edges.lag_ns + 3))

    def results() -> list[list[int]]:
        times = schedule(made)
        later = schedule(longer).end_ns
        paths = [critical_path(made, times, last) for last in range(count)]
        order = topological_order(count, source, target)
        assert order is not None
        return [c.tolist() for c in (times.start_ns, times.end_ns, times.binding, *paths, order, later)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_MANY", -1 if how == "compiled" else 10**9)
        for name in ("_FEW", "_WIDE"):
            patch.setattr(levels, name, 0 if how == "levels" else 10**9)
        fast = results()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_MANY", 10**9)
        patch.setattr(engine, "_fill_past_paths", lambda *_: False)
        assert results() == fast


def test_times_that_were_run_are_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last of three tasks waits 5 behind the first: of 1, 2 and 3 it ends at 1 + 5 + 3; of 2, 1 and 3,
    whose sum is the same, at 10."""
    made = graph([1, 2, 3], [(0, 2, 5), (1, 2, 0)], {0: 0, 1: 0})
    turned, loop, runs = replace(made, duration_ns=np.array([2, 1, 3])), engine._schedule_tasks, list[int]()
    monkeypatch.setattr(engine, "_MANY", 10**9)
    monkeypatch.setattr(engine, "_schedule_tasks", lambda *lists: runs.append(loop(*lists)))
    ends = [schedule(replace(one)).end_ns.tolist() for one in (made, made, turned, turned)]
    assert ends == [[1, 2, 9], [1, 2, 9], [2, 1, 10], [2, 1, 10]]
    assert len(runs) == 2


def test_of_many_ranks_a_level_runs_at_once_and_a_narrow_graph_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """500 ranks of 50 tasks of 2 in a chain, the i-th rank's from i on: it ends at i + 100. A chain of as
    many tasks has levels of one; a circle behind the chains has no order."""
    monkeypatch.setattr(engine, "_MANY", 10**9)
    ranks, tasks = 500, 25_000
    task = np.arange(tasks - ranks)
    chains = graph([2] * tasks, [(i, i + ranks, 0) for i in task.tolist()], {i: i for i in range(ranks)})
    ends = np.empty(tasks, np.int64)
    assert levels.fill_ends(chains, ends) == list(range(0, tasks + 1, ranks))
    assert ends[-ranks:].tolist() == [i + 100 for i in range(ranks)]
    assert schedule(chains).end_ns.tolist() == ends.tolist()
    chain = graph([2] * tasks, [(i, i + 1, 0) for i in range(tasks - 1)], {0: 0})
    assert levels.fill_ends(chain, ends) is None
    assert schedule(chain).end_ns[-1] == 2 * tasks
    source, target = np.append(task, [tasks, tasks + 1]), np.append(task + ranks, [tasks + 1, tasks])
    assert topological_order(tasks + 2, source, target) is None
    order = topological_order(tasks, task, task + ranks)
    assert order is not None
    assert order.tolist() == list(range(tasks))


def test_tasks_numbered_anew_have_the_edges_of_a_graph_built_so() -> None:
    """Task 3 waits for 0 by an event and for 1 by another and on its stream, task 2 for 0; 3 goes in front of
    2 and 1 in front of 0. Of a task's edges kinds come in their order, and of a kind those added first."""
    builder = GraphBuilder()
    builder.add(np.array([0, 1]), np.array([3, 3]), np.array([7, 5]), EdgeKind.EVENT)
    builder.add(np.array([1, 0]), np.array([3, 2]), np.array([8, 9]), EdgeKind.STREAM_ORDER)
    edges = builder.edges(4).renumbered(np.array([1, 0, 3, 2]))
    assert edges.first.tolist() == [0, 0, 0, 3, 4]
    assert edges.source.tolist() == [0, 1, 0, 1]
    assert edges.lag_ns.tolist() == [8, 7, 5, 9]
    stream, event = int(EdgeKind.STREAM_ORDER), int(EdgeKind.EVENT)
    assert edges.kind.tolist() == [stream, event, event, stream]


def test_edges_of_other_lags_are_sound_and_others_are_looked_at_again() -> None:
    """Task 2 waits for 0, then with a lag of 4; one that waits for itself is refused all the same."""
    made = graph([1, 1, 1], [(0, 2, 0)], {0: 0})
    assert schedule(replace(made, edges=replace(made.edges, lag_ns=made.edges.lag_ns + 4))).end_ns[2] == 6
    with pytest.raises(AssertionError, match="lower numbers"):
        replace(made, edges=replace(made.edges, source=np.array([2])))


def test_without_numba_many_tasks_run_all_the_same_and_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A chain of 30,001 tasks of 2, each waiting for the one before: the last ends at 60,002. A run
    goes through 150,003 figures, so the second is the first for which compiling is tried."""
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.setattr(engine, "_MANY", 200_000)
    monkeypatch.setattr(engine, "_ran", 0)
    monkeypatch.setattr(engine, "_expected", 0)
    for cached in (engine._compiled, engine._say_that_it_is_slow):
        monkeypatch.setattr(engine, cached.__name__, cache(cached.__wrapped__))
    count = 30_001
    made = graph([2] * count, [(i, i + 1, 0) for i in range(count - 1)], {0: 0})
    times = schedule(made)
    assert times.start_ns.tolist() == list(range(0, 60_002, 2))
    assert capsys.readouterr().err == ""
    assert schedule(made).end_ns.tolist() == times.end_ns.tolist()
    assert critical_path(made, times).tolist() == list(range(count))
    said = capsys.readouterr().err
    assert "plain Python" in said
    assert "[large]" in said
    assert said.count("\n") == 1


def test_runs_that_are_sure_to_come_count_from_the_first_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A task and no edge are three figures, so four runs twelve: more than ten, which one run is not."""
    monkeypatch.setitem(sys.modules, "numba", None)
    for name, value in (("_MANY", 10), ("_ran", 0), ("_expected", 0)):
        monkeypatch.setattr(engine, name, value)
    for cached in (engine._compiled, engine._say_that_it_is_slow):
        monkeypatch.setattr(engine, cached.__name__, cache(cached.__wrapped__))
    made = graph([4], [], {0: 0})
    assert schedule(made).end_ns.tolist() == [4]
    assert capsys.readouterr().err == ""
    engine.expect(made, 4)
    assert schedule(made).end_ns.tolist() == [4]
    assert "plain Python" in capsys.readouterr().err


def test_an_order_of_few_tasks_and_of_many_and_none_of_a_circle(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain from the last task to the first: few are ordered in plain Python, many compiled."""
    monkeypatch.setattr(engine, "_MANY", 10_000)
    monkeypatch.setattr(engine, "_ran", 0)
    monkeypatch.setattr(engine, "_expected", 0)
    for count in (30, 30_001):
        tasks = np.arange(count, dtype=np.int64)
        order = topological_order(count, tasks[1:], tasks[:-1])
        assert order is not None
        assert order.tolist() == list(range(count - 1, -1, -1))
        assert topological_order(count, tasks, np.roll(tasks, 1)) is None


def test_of_tasks_behind_one_other_the_first_of_each_path_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """0, 1 and 2 are a path, 3 begins another 2 before the end of 0, 4 waits for both: three of five run.
    1 starts at 5 + 1, 2 at 13, 3 at 5 - 2, 4 at 15; with 20 for 1 what is behind it ends 13 later, with 20
    for 0 3 starts at 18. A release within the path, at 40, holds 2: all are run."""
    monkeypatch.setattr(engine, "_MANY", 10**9)
    ran: list[int] = []
    loop = engine._schedule_tasks
    monkeypatch.setattr(engine, "_schedule_tasks", lambda d, *more: ran.append(len(d)) or loop(d, *more))
    edges = [(0, 1, 1), (1, 2, 0), (0, 3, -2), (2, 4, 0), (3, 4, 0)]
    first = graph([5, 7, 2, 4, 1], edges, {0: 0})
    later, longer = (replace(first, duration_ns=np.array(d)) for d in ([5, 20, 2, 4, 1], [20, 1, 1, 9, 1]))
    assert schedule(first).end_ns.tolist() == [5, 13, 15, 7, 16]
    assert schedule(later).end_ns.tolist() == [5, 26, 28, 7, 29]
    assert schedule(longer).end_ns.tolist() == [20, 22, 23, 27, 28]
    assert ran == [3, 3, 3]
    held = replace(first, release_ns=first.release_ns.copy())
    held.release_ns[2] = 40  # times may change in place
    assert schedule(held).end_ns.tolist() == [5, 13, 42, 7, 43]
    assert ran[3:] == [5]
    schedule(graph([4], [], {0: 0}))
    assert schedule(first).end_ns.tolist() == [5, 13, 15, 7, 16]
