"""The rank that the waiting in a window is for, recurrent or not, and what it does meanwhile."""

from __future__ import annotations

import numpy as np
import pytest

from perfdoc.analyzers.clocks.alignment import align_clocks
from perfdoc.analyzers.instances.rough import NO_OUTLINE, Outline
from perfdoc.analyzers.matching.collectives import match_collectives
from perfdoc.analyzers.skew.late_rank import Doing
from perfdoc.analyzers.skew.waiting import measure_skew
from perfdoc.results.ranks import LEAVES
from perfdoc.results.waits import LateRank
from perfdoc.traces.job_facts import JobFacts
from tests.analyzers.planted_ranks import Job

MS = 1_000_000


def late_of(job: Job, doing: list[Doing] | None = None, pp: int | None = None) -> LateRank | None:
    ranks = job.columns(sequences=True)
    matches = match_collectives(ranks, JobFacts())
    return measure_skew(ranks, matches, align_clocks(matches, ranks), doing or [], pp)[0].latest


def all_wait_once(late: int, ranks: int = 4, rounds: int = 6) -> Job:
    """All-reduces 20 ms apart to which all come together; to the last `late` comes 8 ms after them."""
    job = Job(ranks=ranks)
    for i in range(rounds):
        came = {r: 20 * MS * i + 8 * MS * (r == late and i == rounds - 1) for r in range(ranks)}
        job.collective("dp", came, 500_000)
    return job


def drawn(start_ns: int, end_ns: int, leaf: str) -> Outline:
    columns = (np.array([v], np.int64) for v in (start_ns, end_ns, LEAVES.index(leaf)))
    start, end, code = columns
    return Outline(start_ns=start, end_ns=end, code=code, closed_ns=0)


@pytest.mark.parametrize(
    ("window_start", "leaf", "span", "said"),
    [
        (0, "idle.host", (100 * MS, 105 * MS), ("idle.host", 5 * MS)),
        (0, "compute", (95 * MS, 108 * MS), ("compute", 8 * MS)),
        (0, "idle.gc", (100 * MS, 103 * MS), ("communication", 5 * MS)),  # the rest, which no outline shows
        (106 * MS, "compute", (106 * MS, 108 * MS), ("before", 6 * MS)),
    ],
)
def test_one_long_wait_names_its_rank_and_what_that_does(
    window_start: int, leaf: str, span: tuple[int, int], said: tuple[str, int]
) -> None:
    """The first comes at 100 ms, rank 2 at 108."""
    doing = [Doing(window_start_ns=0, outline=NO_OUTLINE) for _ in range(4)]
    doing[2] = Doing(window_start_ns=window_start, outline=drawn(*span, leaf))
    found = late_of(all_wait_once(2), doing)
    assert found is not None
    assert (found.rank, found.wait_frac, found.behind_ns, found.operation) == (2, 1.0, 8 * MS, "all_reduce")
    assert (found.doing, found.doing_ns) == said


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
