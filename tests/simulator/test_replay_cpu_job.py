"""Two CPU ranks in one graph: who waits for whom, and until when, by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from perfdoc.results.replay import Replay
from perfdoc.simulator.engine import TaskKind, schedule
from perfdoc.simulator.replay.edits.edit import with_durations
from perfdoc.simulator.replay.rebuilt import Rebuilt
from perfdoc.traces.job_facts import JobFacts
from tests.analyzers.device_views import views_of
from tests.analyzers.tiny import trace_of
from tests.captures.timeline import TimelineBuilder
from tests.simulator.rebuilt_of import job_of
from tests.simulator.scaled import scaled_communication

US = 1_000
Span = tuple[str, int, int]


def collective(operation: str, seq: int, issue: int, done: int, waits: tuple[int, int]) -> list[Span]:
    """The three ranges of one: issued in 10 us at `issue`, complete at `done`, waited for meanwhile."""
    facts = f"{operation} group=DATA_PARALLEL_GROUP pg=1 bytes=4096 seq={seq}"
    return [
        (f"perfdoc.comm.issue {facts}", issue, issue + 10),
        (f"perfdoc.comm.wait {facts}", *waits),
        (f"perfdoc.comm.run {facts}", issue, done),
    ]


def job(folder: Path, *ranks: Sequence[Span]) -> tuple[Replay, Rebuilt]:
    """Ranks of one machine, whose clock is one; every rank's step is [0, 1000) us."""
    builder = TimelineBuilder()
    for rank, spans in enumerate(ranks):
        process = builder.process(pid=70 + rank)
        main, backend = process.thread(tid=770 + 10 * rank), process.thread(tid=771 + 10 * rank)
        main.range(f"perfdoc.rank {rank} world={len(ranks)} device=cpu", 0, 0)
        main.range(f"perfdoc.group group=DATA_PARALLEL_GROUP pg=1 ranks=0-{len(ranks) - 1}", 0, 0)
        main.range("perfdoc.step 0", 0, 1000 * US)
        for name, start, end in spans:
            run = name.startswith("perfdoc.comm.run")
            thread = backend if run else main
            thread.range(name, start * US, end * US, kind="start_end" if run else "push_pop")
    facts = JobFacts(world_size=len(ranks), dp=len(ranks))
    found, rebuilt = job_of(views_of(trace_of(builder, folder), facts), facts)
    assert rebuilt is not None, found.reason
    return found, rebuilt


def ends_us(rebuilt: Rebuilt) -> list[int]:
    """When each rank is through."""
    times = schedule(rebuilt.graph)
    return [ns // US for ns in rebuilt.spans(times.end_ns)]


def test_members_of_one_collective_are_done_at_different_times(tmp_path: Path) -> None:
    """A gather that rank 0 issues at 100 and rank 1 at 200: rank 0 has all at 260, rank 1 at 400. So they
    transfer for 60 and 200 us from 200 on. Then both compute until 600 and 700 and reduce until 750, 50 us
    from the later arrival on. In half the time: 230 and 300; computing to 570 and 600; reduced at 625; 250 us
    more make 875."""
    rank0 = [
        ("perfdoc.forward", 0, 100),
        *collective("all_gather", 0, 100, 260, (110, 260)),
        ("perfdoc.backward", 260, 600),
        *collective("all_reduce", 1, 600, 750, (610, 750)),
        ("perfdoc.optimizer", 750, 1000),
    ]
    rank1 = [
        ("perfdoc.forward", 0, 200),
        *collective("all_gather", 0, 200, 400, (210, 400)),
        ("perfdoc.backward", 400, 700),
        *collective("all_reduce", 1, 700, 750, (710, 750)),
        ("perfdoc.optimizer", 750, 1000),
    ]
    found, rebuilt = job(tmp_path, rank0, rank1)
    assert int((rebuilt.graph.kind == TaskKind.MEETING).sum()) == 2
    assert found.error_frac == 0
    assert found.worst_error_frac == 0
    transfers = rebuilt.graph.kind == TaskKind.COMMUNICATION
    order = np.lexsort((rebuilt.graph.rank[transfers], rebuilt.start_ns[transfers]))
    assert (rebuilt.graph.duration_ns[transfers][order] // US).tolist() == [60, 200, 50, 50]
    assert ends_us(scaled_communication("dp", 0.5).apply(rebuilt)) == [875, 875]


def test_the_root_of_a_broadcast_goes_on(tmp_path: Path) -> None:
    """Both reduce until 30. Rank 0 sends at 100 and is done at 120, before rank 1 comes at 300 and has it at
    350: rank 0 waited for nobody. With 150 us less to compute before, rank 1 comes at 150, has it at 200 and
    is through at 850; with rank 0 at 400 in place of 100 it has to wait for it: 400 + 50 + 650."""
    agreed = collective("all_reduce", 0, 10, 30, (20, 30))
    rank0 = [
        *agreed,
        ("perfdoc.forward", 30, 100),
        *collective("broadcast", 1, 100, 120, (110, 120)),
        ("perfdoc.backward", 120, 1000),
    ]
    rank1 = [
        *agreed,
        ("perfdoc.forward", 30, 300),
        *collective("broadcast", 1, 300, 350, (310, 350)),
        ("perfdoc.backward", 350, 1000),
    ]
    found, rebuilt = job(tmp_path, rank0, rank1)
    assert int((rebuilt.graph.kind == TaskKind.MEETING).sum()) == 2
    assert ends_us(rebuilt) == [1000, 1000]
    assert found.error_frac == 0
    first = [
        int(np.flatnonzero((rebuilt.graph.rank == i) & (rebuilt.graph.kind == TaskKind.COMPUTE))[0])
        for i in (0, 1)
    ]
    duration = rebuilt.graph.duration_ns.copy()
    duration[first[1]] -= 150 * US
    assert ends_us(with_durations(rebuilt, duration)) == [1000, 850]
    duration = rebuilt.graph.duration_ns.copy()
    duration[first[0]] += 300 * US
    assert ends_us(with_durations(rebuilt, duration)) == [1300, 1100]


def test_a_thread_that_is_late_after_its_wait(tmp_path: Path) -> None:
    """An all-reduce from 100 to 300, whose wait returns at 305 on rank 0, but at 500 on rank 1, whose core
    was taken: 195 us of its own time. With reductions of half the length it is done at 200 and rank 1 back at
    400. It comes to the second at 700 in place of 800, where rank 0 waits; that takes 25 us and not 50, the
    return 5 us, the rest 145: 875."""

    def rank(back: int, again: int) -> list[Span]:
        return [
            ("perfdoc.forward", 0, 100),
            *collective("all_reduce", 0, 100, 300, (110, back)),
            ("perfdoc.backward", back, again),
            *collective("all_reduce", 1, again, 850, (again + 10, 855)),
            ("perfdoc.optimizer", 855, 1000),
        ]

    found, rebuilt = job(tmp_path, rank(305, 700), rank(500, 800))
    assert found.error_frac == 0
    assert [r.unexplained_ns // US for r in found.ranks] == [0, 195]
    assert ends_us(scaled_communication("dp", 0.5).apply(rebuilt)) == [875, 875]
