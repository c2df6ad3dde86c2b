"""How late a rank came, where the others did not come together either."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest

from perfdoc.analyzers.base.binomial import at_least
from perfdoc.results.waits import Straggler
from perfdoc.traces.job_facts import JobFacts
from tests.analyzers.planted_ranks import Job, analyse_skew

MS = 1_000_000


def test_lateness_is_against_the_mean_of_the_others_and_delay_against_the_second_last() -> None:
    # Ten all-reduces of 0.1 ms, to which ranks come at 0, 1 and 3 ms: rank 2 is 2.5 ms later than the others'
    # mean, and 2 ms later than the second last. They wait 3 + 2 ms for it.
    job = Job(ranks=3)
    for i in range(10):
        job.collective("dp", {0: 10 * MS * i, 1: 10 * MS * i + MS, 2: 10 * MS * i + 3 * MS}, 100_000)
    (late,) = analyse_skew(job.columns(sequences=True), JobFacts(), job.spent()).stragglers
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


def _last_in(order: str) -> list[Straggler]:
    """Eight ranks, one all-reduce a letter, to which the rank of that number comes 1 ms after the others."""
    job = Job(ranks=8)
    for i, last in enumerate(map(int, order)):
        job.collective("dp", {r: 10 * MS * i + MS * (r == last) for r in range(8)}, 100_000)
    return analyse_skew(job.columns(sequences=True), JobFacts()).stragglers


def test_five_of_eight_is_no_chance_and_four_of_eight_may_be() -> None:
    # P(5 or more of 8 at 1/8), for each of 8 ranks. Of four it is 8 · 70·7⁴ / 8⁸ more: 0.09.
    five = 8 * (56 * 7**3 + 28 * 7**2 + 8 * 7 + 1) / 8**8
    assert five == pytest.approx(0.0098, abs=5e-5)
    (late,) = _last_in("30313323")
    assert (late.rank, late.recurrence_frac, late.chance_frac) == (3, 5 / 8, 1 / 8)
    assert late.chance_probability == pytest.approx(five)
    assert not _last_in("30313423")


def test_what_one_stretch_alone_shows_is_not_borne_out() -> None:
    # Rank 1 is last in 20 of 40, all of them in the first half; rank 2 in as many, all over the capture.
    (early,) = _last_in("1" * 20 + "02345670" * 2 + "2345")
    (always,) = _last_in("20212324" * 5)
    assert (early.rank, early.recurrence_frac, early.borne_out) == (1, 0.5, False)
    assert (always.rank, always.recurrence_frac, always.borne_out) == (2, 0.5, True)


def test_who_is_often_last_and_mostly_early_computes_no_longer_for_a_microsecond() -> None:
    """Rank 2 is last in 15 of 40, by 1 ms, and waits in 25. The others are last in 25 / 7 in the mean: they
    wait 15 - 25 / 7 ms longer than it. It computes 1 us longer."""
    job = Job(ranks=8)
    for i, last in enumerate(map(int, "20212345" * 5)):
        job.collective("dp", {r: 10 * MS * i + MS * (r == last) for r in range(8)}, 100_000)
    job.compute(2, -1_000, 0)
    (late,) = analyse_skew(job.columns(sequences=True), JobFacts(), job.spent()).stragglers
    assert (late.rank, late.extra_compute_ns, late.cause, late.cause_ns) == (2, 1_000, "other", None)
    assert late.lateness_ns == round(15 * MS - 25 * MS / 7)
    assert sum(late.causes_ns.values()) == late.lateness_ns
    assert late.causes_ns["compute"] <= 1_000


@pytest.mark.parametrize(("of", "chance"), [(8, 0.125), (23, 0.5), (40, 0.3)])
def test_the_binomial_is_exact(of: int, chance: float) -> None:
    terms = [math.comb(of, k) * chance**k * (1 - chance) ** (of - k) for k in range(of + 1)]
    for count in range(of + 1):
        assert at_least(count, of, chance) == pytest.approx(math.fsum(terms[count:]), rel=1e-10)
    assert at_least(of + 1, of, chance) == 0
    assert at_least(50_500, 100_000, 0.5) == pytest.approx(
        NormalDist().cdf(-499.5 / math.sqrt(25_000)), rel=0.01
    )
