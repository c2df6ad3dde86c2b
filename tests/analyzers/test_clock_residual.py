"""What is said of how far clocks may be apart, against how far they are: random jobs, random clocks."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from perfdoc.analyzers.clocks.alignment import ClockAlignment, align_clocks
from perfdoc.analyzers.clocks.solve import reach_ns
from perfdoc.analyzers.communication.matches import Matches
from perfdoc.analyzers.matching.collectives import match_collectives
from perfdoc.traces.job_facts import JobFacts
from tests.amount import some
from tests.analyzers.planted_ranks import Clock, Job

SECOND = 1_000_000_000
DIMENSIONS = ("dp", "tp", "cp", "ep", "other", "pp")
ROUNDING_NS = 4
"""Every clock's time, offset and alignment are rounded to a ns."""


def random_job(rng: np.random.Generator, late_ns: float) -> Job:
    """Up to five groups of random ranks, each with 1 to 40 collectives, some in a part of the time only; ends
    that are late by up to some multiple of late_ns."""
    ranks = int(rng.integers(2, 8))
    groups: dict[tuple[int, ...], tuple[str, float, float, float]] = {}
    for dimension in DIMENSIONS[: int(rng.integers(1, 6))]:
        size = int(rng.integers(2, min(ranks, 5) + 1))
        members = tuple(sorted(rng.choice(ranks, size, replace=False).tolist()))
        first, last = sorted(rng.random(2)) if rng.random() < 0.4 else (0.0, 1.0)
        often = int(rng.choice([1, 2, 3, 5, 6, 8, 12, 24, 40])) / 40
        groups.setdefault(members, (dimension, often, first, last))
    job, at, every = Job(ranks=ranks), 1_000_000, int(10 ** rng.uniform(5.5, 7.5))
    for i in range(40):
        at += int(rng.integers(every, 3 * every))
        for members, (dimension, often, first, last) in groups.items():
            if first <= i / 40 <= last and rng.random() <= often:
                came = {r: at + int(rng.exponential(10 ** rng.uniform(2, 6))) for r in members}
                late = {r: int(rng.exponential(late_ns)) for r in members}
                end = job.collective(dimension, came, int(rng.integers(5_000, 60_000)), jitter=late)
                at = end + int(12 * late_ns) + 1_000
    for rank in set(range(ranks)) - set(job.calls):
        job.collective("tp", {rank: at}, 1_000)
    return job


def random_clocks(rng: np.random.Generator, job: Job) -> list[Clock]:
    """Offsets to 5 ms, drifts to 50 ppm; some clocks set well."""
    middle = max(calls[-1].end_ns for calls in job.calls.values()) // 2
    return [
        Clock(
            offset_ns=int(rng.integers(-5_000_000, 5_000_000) if rng.random() < 0.8 else rng.integers(2_000)),
            drift=float(rng.uniform(-50e-6, 50e-6)) if rng.random() < 0.7 else 0.0,
            middle_ns=middle,
            zero_ns=int(rng.integers(-SECOND, SECOND)),
        )
        for _ in range(job.ranks)
    ]


def apart_ns(clocks: ClockAlignment, planted: list[Clock], one: int, other: int, true_ns: int) -> int:
    """How far apart one instant lies on two aligned clocks."""
    seen = [int(clocks.aligned(r, np.array([planted[r].local(true_ns)]))[0]) for r in (one, other)]
    return abs(seen[0] - seen[1])


def check(job: Job, planted: list[Clock], matches: Matches, clocks: ClockAlignment) -> int:
    """Every two ranks and every group; how many comparisons that were."""
    compared = 0
    for one, other in combinations(range(job.ranks), 2):
        said = clocks.resolution_between([one, other])
        same = clocks.clocks[one].component == clocks.clocks[other].component
        assert (said is not None) == same
        if said is None:
            continue
        assert said <= (clocks.resolution_ns or 0)
        both = job.calls[one], job.calls[other]
        begin, end = max(c[0].start_ns for c in both), min(c[-1].end_ns for c in both)
        for true in (begin, (begin + end) // 2, end) if begin <= end else ():
            assert apart_ns(clocks, planted, one, other, true) <= said + ROUNDING_NS
            compared += 1
    for group, said in zip(matches.groups, clocks.group_resolution_ns, strict=True):
        if said is None or not group.matched_by:
            continue
        own = [c for c in job.calls[group.members[0]] if c.group[1] == group.members]
        for (one, other), call in ((p, c) for p in combinations(group.members, 2) for c in own):
            assert apart_ns(clocks, planted, one, other, call.end_ns) <= said + ROUNDING_NS
            compared += 1
    return compared


@pytest.mark.parametrize("late_ns", some([0.0, 100.0, 3_000.0, 30_000.0], [3_000.0]))
def test_no_two_clocks_are_further_apart_than_is_said(late_ns: float) -> None:
    compared = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        job = random_job(rng, late_ns)
        planted = random_clocks(rng, job)
        columns = job.columns(planted, sequences=bool(rng.random() < 0.7), utc=bool(rng.random() < 0.8))
        matches = match_collectives(columns, JobFacts())
        compared += check(job, planted, matches, align_clocks(matches, columns))
    assert compared > 5_000


def test_groups_of_several_are_as_far_apart_as_their_outermost() -> None:
    # Clocks drift by -20, 0, 0 and +20 ppm over ten all-reduces in 90 ms: 45 ms from the middle the outermost
    # lie 1.8 us apart, though each lies only 1.2 us from the mean of the others.
    job = Job(ranks=4)
    for i in range(10):
        job.collective("dp", dict.fromkeys(range(4), 10_000_000 * i), 20_000)
    planted = [Clock(drift=d * 1e-6, middle_ns=45_000_000) for d in (-20, 0, 0, 20)]
    columns = job.columns(planted, sequences=True)
    matches = match_collectives(columns, JobFacts())
    clocks = align_clocks(matches, columns)
    assert 1_700 <= apart_ns(clocks, planted, 0, 3, 0) <= 1_900
    assert (clocks.residual_ns or 0) <= 1_200
    assert (clocks.group_resolution_ns[0] or 0) >= 1_800


def test_few_ends_leave_more_in_doubt() -> None:
    # Five ends: 24 / 5 times the widest. Forty: 1.25 times the tenths between which nine tenths lie.
    assert reach_ns(np.array([1.0, -2.0, 0.0, 1.0, 0.5])) == pytest.approx(2 * 24 / 5)
    many = np.linspace(-100, 100, 401)
    assert reach_ns(many) == pytest.approx(1.25 * 90)
    assert reach_ns(np.empty(0)) == 0.0
