"""How late a rank came, where the others did not come together either."""

from __future__ import annotations

from perfdoc.analyzers.skew.waiting import analyse_skew
from perfdoc.traces.job_facts import JobFacts
from tests.analyzers.planted_ranks import Job

MS = 1_000_000


def test_lateness_is_against_the_mean_of_the_others_and_delay_against_the_second_last() -> None:
    # Ten all-reduces of 0.1 ms, to which ranks come at 0, 1 and 3 ms: rank 2 is 2.5 ms later than the others'
    # mean, and 2 ms later than the second last. They wait 3 + 2 ms for it.
    job = Job(ranks=3)
    for i in range(10):
        job.collective("dp", {0: 10 * MS * i, 1: 10 * MS * i + MS, 2: 10 * MS * i + 3 * MS}, 100_000)
    (late,) = analyse_skew(job.columns(sequences=True), JobFacts()).stragglers
    assert (late.rank, late.collectives) == (2, 10)
    assert (late.lateness_ns, late.delay_ns, late.typical_delay_ns) == (25 * MS, 20 * MS, 2 * MS)
    assert late.wait_caused_ns == 50 * MS


def test_who_is_often_last_by_next_to_nothing_is_no_straggler() -> None:
    # Rank 1 comes last to 60 of 100, by 10 us; to the others somebody else does, by 5 ms: 0.1 % of what is
    # waited for is waited for rank 1.
    job = Job(ranks=4)
    for i in range(100):
        last, by = (1, 10_000) if i % 10 < 6 else ((0, 0, 2, 3)[i % 10 - 6], 5 * MS)
        job.collective("dp", {r: 20 * MS * i + by * (r == last) for r in range(4)}, 100_000)
    skew = analyse_skew(job.columns(sequences=True), JobFacts())
    assert (skew.distinguishable, skew.stragglers_state, skew.stragglers) == (100, "none", [])


def test_five_times_are_a_habit_and_who_costs_most_comes_first() -> None:
    # Rank 3 is 1 ms late to five all-reduces of one group, rank 7 is 5 ms late to five of another.
    job = Job(ranks=8)
    for i in range(5):
        for late, by in ((3, MS), (7, 5 * MS)):
            job.collective(
                "dp", {r: 20 * MS * i + by * (r == late) for r in range(late - 3, late + 1)}, 100_000
            )
    stragglers = analyse_skew(job.columns(sequences=True), JobFacts()).stragglers
    assert [(s.rank, s.collectives, s.wait_caused_ns) for s in stragglers] == [
        (7, 5, 75 * MS),
        (3, 5, 15 * MS),
    ]
