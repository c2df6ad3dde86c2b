"""Planted faults in rows of steps of many ranks: cause, culprit, onset and price; and no word without one."""

from __future__ import annotations

import pytest

from perfdoc.watch.result import Finding, Watched
from perfdoc.watch.series import job_series
from perfdoc.watch.verdict import watched
from tests.watch.jobs import MS, Job, rank_rows

ONE_RANK = ("slow_rank", "input", "garbage", "memory_growth")
FAULTS = (*ONE_RANK, "input_all", "slow_synchronisation", "slow_stage", "uneven_data")
SEEDS = 5
WITHIN_STEPS = 3


def seen(job: Job) -> Watched:
    return watched(job_series(rank_rows(job.rows())))


def planted(fault: str, ranks: int, seed: int) -> Job:
    stages = 4 if fault == "slow_stage" else 1 + (seed % 2 == 0 and ranks > 2)
    culprit = 2 if fault == "slow_stage" else (seed * 7 + 3) % ranks
    return Job(ranks=ranks, fault=fault, seed=seed, stages=stages, culprit=culprit)


def is_found(job: Job, found: Finding) -> bool:
    if found.cause != job.fault.removesuffix("_all") or found.onset_step is None:
        return False
    if job.fault in ONE_RANK and list(found.ranks[:1]) != [job.culprit]:
        return False
    if job.fault == "slow_stage" and found.stage != job.culprit:
        return False
    return abs(found.onset_step - job.onset) <= WITHIN_STEPS


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    for seed in (0, 1):
        job = planted(fault, 8, seed)
        result = seen(job)
        assert result.state == "act"
        assert is_found(job, result.findings[0]), result.findings[0].said


@pytest.mark.parametrize("fault", ["slow_rank", "input", "slow_synchronisation", "slow_stage"])
def test_the_price_is_what_the_step_takes_without_the_fault(fault: str) -> None:
    # The same random numbers with and without it: the difference of the means is the truth.
    job = planted(fault, 8, 3)
    sound = Job(ranks=8, seed=3, stages=job.stages)

    def mean_ns(of: Job) -> float:
        return sum(row.duration_ns for row in of.rows()[0][of.onset :]) / (of.steps - of.onset)

    price_ns = seen(job).findings[0].price_ns
    assert price_ns is not None
    truth_ns = mean_ns(job) - mean_ns(sound)
    assert truth_ns > 5 * MS
    # Within 10 % of the step; rare stalls scatter the mean by less.
    assert abs(price_ns - truth_ns) < 0.02 * mean_ns(sound)


def test_nothing_is_said_of_sound_jobs() -> None:
    for seed in range(10):
        for stages in (1, 2):
            result = seen(Job(ranks=8, seed=seed, stages=stages))
            assert result.state == "fine", result.findings


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [8, 64, 256, 1024])
def test_of_forty_faults_thirty_eight_are_found(ranks: int) -> None:
    jobs = [planted(fault, ranks, seed) for fault in FAULTS for seed in range(SEEDS)]
    missed = []
    for job in jobs:
        findings = seen(job).findings
        if not findings or not is_found(job, findings[0]):
            missed.append((job.fault, job.seed, [f.said for f in findings]))
    assert len(missed) <= len(jobs) - 38, missed


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 8, 64, 1024])
def test_of_forty_sound_jobs_one_is_called_slow_at_most(ranks: int) -> None:
    said = []
    for seed in range(40):
        result = seen(Job(ranks=ranks, seed=1000 + seed, stages=1 + seed % 2 * (ranks > 2)))
        said += [finding.said for finding in result.findings[:1]]
    assert len(said) <= 1, said
