"""The rank that the waiting in a window is for, recurrent or not, and why."""

from __future__ import annotations

import numpy as np
import pytest

from perfdoc.analyzers.clocks.alignment import align_clocks
from perfdoc.analyzers.instances.rough import NO_OUTLINE, Outline
from perfdoc.analyzers.matching.collectives import match_collectives
from perfdoc.analyzers.skew.causes import RankTime
from perfdoc.analyzers.skew.waiting import measure_skew
from perfdoc.results.ranks import LEAVES
from perfdoc.results.waits import LateRank
from perfdoc.traces.job_facts import JobFacts
from tests.analyzers.planted_ranks import Job

MS = 1_000_000


def late_of(job: Job, spent: list[RankTime] | None = None, pp: int | None = None) -> LateRank | None:
    ranks = job.columns(sequences=True)
    matches = match_collectives(ranks, JobFacts())
    return measure_skew(ranks, matches, align_clocks(matches, ranks), spent or [], pp)[0].latest


def all_wait_once(late: int, ranks: int = 4, rounds: int = 6) -> Job:
    """All-reduces 20 ms apart to which all come together; to the last `late` comes 8 ms after them."""
    job = Job(ranks=ranks)
    for i in range(rounds):
        came = {r: 20 * MS * i + 8 * MS * (r == late and i == rounds - 1) for r in range(ranks)}
        job.collective("dp", came, 500_000)
    return job


def drawn(*stretches: tuple[str, int, int]) -> Outline:
    """(leaf, begin, end) in ms."""
    return Outline(
        start_ns=np.array([begin * MS for _, begin, _ in stretches], np.int64),
        end_ns=np.array([end * MS for _, _, end in stretches], np.int64),
        code=np.array([LEAVES.index(leaf) for leaf, _, _ in stretches], np.int8),
    )


@pytest.mark.parametrize(
    ("window_start", "computes", "idle", "why"),
    [
        (0, (), (("idle.host", 100, 105),), ("host", 5 * MS)),
        (0, ((95, 108),), (), ("compute", 13 * MS)),
        (0, (), (("idle.gc", 100, 103),), ("other", None)),  # of 8 ms three are known
        (6, (), (("idle.gc", 100, 103),), ("before", 6 * MS)),
        (0, ((10, 14),), (("idle.data", 30, 35), ("idle.data", 106, 120)), ("data", 7 * MS)),
    ],
)
def test_one_long_wait_names_its_rank_and_what_takes_that_longer(
    window_start: int,
    computes: tuple[tuple[int, int], ...],
    idle: tuple[tuple[str, int, int], ...],
    why: tuple[str, int | None],
) -> None:
    """The first comes at 100 ms, rank 2 at 108, whatever it did before."""
    spent = [RankTime(window_start_ns=0, outline=NO_OUTLINE) for _ in range(4)]
    spent[2] = RankTime(window_start_ns=window_start * MS, outline=drawn(*idle))
    job = all_wait_once(2)
    for begin, end in computes:
        job.compute(2, begin * MS, end * MS)
    found = late_of(job, spent)
    assert found is not None
    assert (found.rank, found.wait_frac, found.lateness_ns) == (2, 1.0, 8 * MS)
    assert (found.cause, found.cause_ns) == why


def test_what_takes_long_on_all_ranks_is_no_cause() -> None:
    """All four collect garbage for 7 ms, rank 2 for 8 ms: of its 8 ms that explains one."""
    spent = [
        RankTime(window_start_ns=0, outline=drawn(("idle.gc", 50, 58 if rank == 2 else 57)))
        for rank in range(4)
    ]
    found = late_of(all_wait_once(2), spent)
    assert (found and found.cause) == "other"


def test_one_stop_does_not_explain_a_habit() -> None:
    """Rank 1 is 2 ms late to each of 20, 40 ms in all, since it computes longer; 10 ms of garbage collection
    before one of them are most of that one and little of all."""
    job = Job(ranks=2)
    for i in range(20):
        late = 2 * MS + 8 * MS * (i == 10)
        job.compute(1, 20 * MS * i - 2 * MS, 20 * MS * i)
        job.collective("dp", {0: 20 * MS * i, 1: 20 * MS * i + late}, 500_000)
    spent = [
        RankTime(window_start_ns=0, outline=drawn(("idle.gc", 200, 200 + 10 * rank))) for rank in range(2)
    ]
    found = late_of(job, spent)
    assert found is not None
    assert (found.rank, found.cause, found.cause_ns, found.lateness_ns) == (1, "compute", 40 * MS, 40 * MS)


def test_nobody_is_named_where_lateness_goes_round() -> None:
    job = Job(ranks=4)
    for i in range(40):
        job.collective("dp", {r: 20 * MS * i + 3 * MS * (r == i % 4) for r in range(4)}, 500_000)
    assert late_of(job) is None
    # Of two ranks one is waited for half of the time anyway; three times in four tells.
    for every, named in ((2, None), (4, 1)):
        pair = Job(ranks=2)
        for i in range(40):
            pair.collective(
                "dp", {r: 20 * MS * i + 3 * MS * (r == (i % every > 0)) for r in range(2)}, 500_000
            )
        found = late_of(pair)
        assert (found and found.rank) == named


def test_messages_of_a_pipeline_are_no_lateness() -> None:
    job = Job(ranks=4)
    for i in range(8):
        job.collective("pp", {r: 20 * MS * i + 8 * MS * (r == 2) for r in range(4)}, 500_000)
    assert late_of(job) is None


@pytest.mark.parametrize(
    ("dimension", "pp", "named"),
    [("unknown", 2, None), ("unknown", 1, 2), ("unknown", None, 2), ("other", 2, None), ("dp", 2, 2)],
)
def test_groups_that_may_join_stages_are_no_lateness(
    dimension: str, pp: int | None, named: int | None
) -> None:
    job = Job(ranks=4)
    for i in range(8):
        job.collective(dimension, {r: 20 * MS * i + 8 * MS * (r == 2) for r in range(4)}, 500_000)
    found = late_of(job, pp=pp)
    assert (found and found.rank) == named
