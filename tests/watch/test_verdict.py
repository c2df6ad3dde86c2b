"""What is said, worked out by hand: levels, restarts, logs, silent ranks, hostile rows."""

from __future__ import annotations

import math
from dataclasses import replace as with_fields

import msgspec
import numpy as np
import pytest

from perfdoc.analyzers.steps.levels import MIN_LEVEL, levels, slower
from perfdoc.profiling.logs import Began, StepRecord
from perfdoc.watch.memory import growth
from perfdoc.watch.series import FIELDS, JobSeries, RankRows, job_series
from perfdoc.watch.verdict import watched
from tests.watch.jobs import MS, Job, rank_rows


def brute_levels(values: np.ndarray, penalty: float) -> float:
    """The cost of the best segmentation, by trying every one."""
    n = len(values)

    def cost(a: int, b: int) -> float:
        return float(((values[a:b] - values[a:b].mean()) ** 2).sum())

    best = [-penalty] + [math.inf] * n
    for end in range(1, n + 1):
        for begin in range(end - MIN_LEVEL + 1):
            best[end] = min(best[end], best[begin] + cost(begin, end) + penalty)
    return best[n]


def test_levels_are_the_exact_least_squares() -> None:
    from perfdoc.analyzers.steps.levels import _segmented

    random = np.random.default_rng(3)
    for _ in range(20):
        means = np.repeat(random.uniform(0, 4, 4), random.integers(MIN_LEVEL, 30, 4))
        values = means + random.standard_normal(len(means))
        begins = _segmented(values, 8.0)
        spans = zip(begins, [*begins[1:], len(values)], strict=True)
        cost = sum(((values[a:b] - values[a:b].mean()) ** 2).sum() + 8.0 for a, b in spans) - 8.0
        assert cost == pytest.approx(brute_levels(values, 8.0))


def test_a_slow_time_that_is_over_is_no_finding() -> None:
    times = np.array([100.0] * 60 + [130.0] * 60 + [100.0] * 60) + np.arange(180) % 5
    assert levels(times) == [0, 60, 120]
    assert slower(times, levels(times)) is None
    lasts = slower(times[:120], levels(times[:120]))
    assert lasts is not None
    assert (lasts.onset, round(lasts.price), round(lasts.frac, 1)) == (60, 30, 0.3)


def test_steps_that_become_longer_in_two_stairs_count_from_the_first() -> None:
    times = np.array([100.0] * 60 + [110.0] * 60 + [125.0] * 60) + np.arange(180) % 3
    found = slower(times, levels(times))
    assert found is not None
    assert (found.onset, round(found.price)) == (60, 25)


def test_few_steps_are_too_little() -> None:
    result = watched(job_series(rank_rows(Job(ranks=2, steps=25).rows())))
    assert (result.state, result.step_ns, result.findings) == ("too_little", None, [])
    assert watched(None).state == "too_little"


def test_a_setting_that_changed_at_a_restart_is_the_cause() -> None:
    before = Job(ranks=4, steps=100, facts={"micro_batch": 4, "lr": 0.1}).rows()
    after = Job(ranks=4, steps=100, seed=1, facts={"micro_batch": 2, "lr": 0.1}).rows()
    for rank, rows in enumerate(after):
        # From a checkpoint at step 80: the steps from there on are trained again.
        before[rank] += [
            msgspec.structs.replace(row, step=row.step + 80, duration_ns=round(1.2 * row.duration_ns))
            for row in rows
        ]
    result = watched(job_series(rank_rows(before)))
    assert result.restarts == [80]
    (finding,) = result.findings
    assert finding.cause == "configuration"
    assert finding.onset_step is not None
    assert abs(finding.onset_step - 80) <= 2
    assert "micro_batch = 2, before 4" in finding.said


def test_a_rank_that_was_late_from_the_beginning_is_named() -> None:
    # 40 % of 60 ms, of a step of 130 ms.
    late = Job(ranks=4, fault="slow_rank", onset=0, culprit=2, size=1.33)
    result = watched(job_series(rank_rows(late.rows())))
    (finding,) = result.findings
    assert (finding.cause, finding.ranks, finding.onset_step) == ("slow_rank", [2], None)
    assert result.late[0].rank == 2
    # Stages of a pipeline differ, and of ranks without a role nobody knows whether they do the same.
    assert watched(job_series(rank_rows(with_fields(late, stages=2).rows()))).state == "fine"
    assert watched(job_series(rank_rows(with_fields(late, roles=False).rows()))).state == "fine"


def test_a_rank_that_writes_no_more_is_told() -> None:
    rows = Job(ranks=4).rows()
    rows[3] = rows[3][:100]
    result = watched(job_series(rank_rows(rows)))
    assert result.findings[-1].cause == "silent_rank"
    assert (result.findings[-1].ranks, result.last_step, result.ranks) == ([3], 299, 3)


def test_profiled_steps_and_the_one_after_do_not_count() -> None:
    rows = Job(ranks=2, noise=0.01).rows()
    slow = {
        s: msgspec.structs.replace(rows[0][s], profiled=s < 280, duration_ns=900 * MS)
        for s in range(200, 281)
    }
    rows[0] = [slow.get(row.step, row) for row in rows[0]]
    series = job_series(rank_rows(rows))
    assert series is not None
    assert np.flatnonzero(~series.counted).tolist() == list(range(200, 281))
    assert watched(series).state == "fine"


def test_hostile_rows_do_no_harm() -> None:
    rows = RankRows()
    for step in range(60):
        rows.add(
            StepRecord(
                step=step,
                start_ns=-(2**63) + step,
                duration_ns=(2**63 - 1, 0, -5, 10 * MS)[step % 4],
                wait_ns=-1,
                resident_bytes=2**62,
                began=Began(world_size=2**40, device="cpu") if step == 0 else None,
            )
        )
    rows.add(StepRecord(step=-1, start_ns=0, duration_ns=1))
    rows.add(StepRecord(step=2**63 - 1, start_ns=0, duration_ns=1))
    series = job_series({7: rows})
    assert series is not None
    assert len(series.step) == 60
    assert watched(series).state == "too_little"


def test_memory_that_fills_and_stops_is_no_growth() -> None:
    def series(bytes_: np.ndarray) -> JobSeries:
        values = {name: np.full((1, len(bytes_)), np.nan, np.float32) for name in FIELDS}
        values["allocated_bytes"] = bytes_[None].astype(np.float32)
        empty = np.zeros(len(bytes_), np.int64)
        return JobSeries(
            ranks=[0],
            roles=[{}],
            step=np.arange(len(bytes_)),
            start_ns=empty,
            values=values,
            counted=np.ones(len(bytes_), bool),
            starts=[],
            began=None,
        )

    mib, steps = 1 << 20, np.arange(200)
    assert growth(series(1000.0 * mib + 200 * mib * np.minimum(steps, 50) / 50), 0) is None
    assert growth(series(1000.0 * mib + 300 * mib * (steps >= 100)), 0) is None
    found = growth(series(1000.0 * mib + 2 * mib * np.maximum(steps - 99, 0)), 0)
    assert found is not None
    assert (found.onset, round(found.bytes_per_step / mib, 1)) == (100, 2.0)
