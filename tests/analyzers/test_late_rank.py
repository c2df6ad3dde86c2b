"""The rank that the waiting in a window is for, recurrent or not, and why."""

from __future__ import annotations

import numpy as np
import pytest

from perfdoc.analyzers.skew.causes import RankTime, explain
from perfdoc.results.ranks import LEAVES
from perfdoc.results.waits import LateRank
from perfdoc.traces.job_facts import JobFacts
from tests.analyzers.planted_ranks import Job, analyse_skew

MS = 1_000_000


def late_of(job: Job, spent: list[RankTime] | None = None, pp: int | None = None) -> LateRank | None:
    found = analyse_skew(job.columns(sequences=True), JobFacts(), spent or job.spent(), pp)
    return found.latest


def all_wait_once(late: int, ranks: int = 4, rounds: int = 6) -> Job:
    """All-reduces 20 ms apart to which all come together; to the last `late` comes 8 ms after them."""
    job = Job(ranks=ranks)
    for i in range(rounds):
        came = {r: 20 * MS * i + 8 * MS * (r == late and i == rounds - 1) for r in range(ranks)}
        job.collective("dp", came, 500_000)
    return job


@pytest.mark.parametrize(
    ("begins", "computes", "idle", "why"),
    [
        (0, (), (("host", 5),), ("host", 5)),
        (0, ((95, 108),), (), ("compute", 8)),
        (0, (), (("gc", 3),), ("other", None)),  # of 8 ms three are known
        (6, (), (("gc", 2),), ("before", 6)),
        (0, ((10, 12),), (("data", 6),), ("data", 6)),
    ],
)
def test_one_long_wait_names_its_rank_and_what_takes_that_longer(
    begins: int,
    computes: tuple[tuple[int, int], ...],
    idle: tuple[tuple[str, int], ...],
    why: tuple[str, int | None],
) -> None:
    """The first comes at 100 ms, rank 2 at 108, for what it did before; no cause exceeds its lateness."""
    job = all_wait_once(2)
    for begin, end in computes:
        job.compute(2, begin * MS, end * MS)
    spent = job.spent({2: [(cause, ns * MS) for cause, ns in idle]}, {2: begins * MS})
    found = late_of(job, spent)
    assert found is not None
    assert (found.rank, found.wait_frac, found.lateness_ns) == (2, 1.0, 8 * MS)
    assert (found.cause, found.cause_ns) == (why[0], None if why[1] is None else why[1] * MS)
    assert sum(found.causes_ns.values()) == 8 * MS


def test_what_takes_long_on_all_ranks_is_no_cause() -> None:
    """All four collect garbage for 7 ms, rank 2 for 8 ms: of its 8 ms that explains one."""
    job = all_wait_once(2)
    found = late_of(job, job.spent({rank: [("gc", 8 * MS if rank == 2 else 7 * MS)] for rank in range(4)}))
    assert found is not None
    assert (found.cause, found.causes_ns) == ("other", {"other": 7 * MS, "gc": MS})


def test_one_stop_does_not_explain_a_habit() -> None:
    """Rank 1 is 2 ms late to each of 20, since it computes longer; 8 ms of garbage collection before one of
    them are most of that one and little of all."""
    job = Job(ranks=2)
    for i in range(20):
        late = 2 * MS + 8 * MS * (i == 10)
        job.compute(1, 20 * MS * i - 2 * MS, 20 * MS * i)
        job.collective("dp", {0: 20 * MS * i, 1: 20 * MS * i + late}, 500_000)
    found = late_of(job, job.spent({1: [("gc", 8 * MS)]}))
    assert found is not None
    assert (found.rank, found.cause, found.lateness_ns) == (1, "compute", 48 * MS)
    assert found.causes_ns == {"compute": 40 * MS, "gc": 8 * MS}


def of_steps(*steps: dict[str, int]) -> RankTime:
    table = np.array([[step.get(leaf, 0) for leaf in LEAVES] for step in steps], np.int64)
    return RankTime(steps=tuple(f"step {i}" for i in range(len(steps))), leaf_ns=table)


def test_lateness_is_that_of_the_steps_in_which_the_others_waited() -> None:
    """In step 0 rank 0 computes 6 longer, and is idle 2 less; in step 1 rank 1 is the late one, by 30. Ranks
    1 and 2 wait 3 and 5 longer than rank 0: 4 in the mean, all of it for compute."""
    waits = "exposed_comm.dp"
    spent = [
        of_steps({"compute": 16, "idle.host": 0, waits: 1}, {"compute": 10, waits: 31}),
        of_steps({"compute": 10, "idle.host": 3, waits: 4}, {"compute": 40, waits: 1}),
        of_steps({"compute": 10, "idle.host": 1, waits: 6}, {"compute": 10, waits: 31}),
    ]
    found = explain(spent, 0, [0, 1, 2], "dp")
    assert (found.lateness_ns, found.cause, found.cause_ns) == (4, "compute", 4)
    assert found.causes_ns == {"compute": 4}
    assert (found.compute_ns, found.elsewhere_ns) == (6, None)
    # Against rank 2 alone, which begins 2 later than rank 1 does: nothing of its own makes rank 1 late.
    begun = [spent[1], of_steps({"compute": 10, "idle.host": 1, waits: 8}, {"compute": 40, waits: 1})]
    found = explain(begun, 0, [1], "dp")
    assert (found.lateness_ns, found.causes_ns) == (4, {"host": 2, "before": 2})


@pytest.mark.parametrize(
    ("dimension", "steps", "is_sure"),
    [("dp", 1, False), ("dp", 2, True), ("ep", 1, False), ("tp", 1, None), ("cp", 2, None), ("pp", 2, None)],
)
def test_one_step_may_be_uneven_data_but_of_ranks_that_share_them(
    dimension: str, steps: int, is_sure: bool | None
) -> None:
    """Rank 1 computes twice as long as rank 0 in each step."""
    waits = f"exposed_comm.{dimension}"
    one, two = {"compute": 100, waits: 110}, {"compute": 200, waits: 10}
    found = explain([of_steps(*[one] * steps), of_steps(*[two] * steps)], 1, [0], dimension)
    assert (found.cause, found.compute_is_sure) == ("compute", is_sure)


def test_every_rank_that_a_tenth_is_waited_for_is_named() -> None:
    """Of 20 all-reduces of eight ranks three are last in 10, 7 and 3, by 1 ms: 50, 35 and 15 %, which is near
    an eighth."""
    job = Job(ranks=8)
    for i, last in enumerate([0] * 10 + [6] * 7 + [3] * 3):
        job.collective("tp", {r: 10 * MS * i + MS * (r == last) for r in range(8)}, 100_000)
    found = analyse_skew(job.columns(sequences=True), JobFacts(), job.spent())
    assert found.latest is not None
    assert [(late.rank, late.wait_frac) for late in (found.latest, *found.also_late)] == [(0, 0.5), (6, 0.35)]


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
