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
    assert (result.state, result.step_ns, list(result.findings)) == ("too_little", None, [])
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


@pytest.mark.parametrize("fault", ["slow_rank", "input", "slow_synchronisation", ""])
def test_parts_that_are_unknown_in_a_few_steps_change_no_verdict(fault: str) -> None:
    """As where the device was behind, or had too many waits; here one step in ten, another on each rank."""
    job = Job(ranks=4, fault=fault, culprit=2, onset=150 if fault else 0, size=1.5)
    rows = job.rows()
    whole = watched(job_series(rank_rows(rows)))
    for rank, of_rank in enumerate(rows):
        for step in range(20 + rank, len(of_rank), 10):
            of_rank[step] = msgspec.structs.replace(of_rank[step], wait_ns=None, data_ns=None)
    holed = watched(job_series(rank_rows(rows)))
    assert [(f.cause, f.ranks) for f in holed.findings] == [(f.cause, f.ranks) for f in whole.findings]
    for one, other in zip(holed.findings, whole.findings, strict=True):
        # The first step of it may be one that a rank does not know.
        assert abs((one.onset_step or 0) - (other.onset_step or 0)) <= 1
    assert bool(fault) == bool(holed.findings)


def test_a_rank_that_was_late_from_the_beginning_has_a_price_with_unknown_parts() -> None:
    rows = Job(ranks=4, fault="slow_rank", onset=0, culprit=2, size=1.33).rows()
    rows[1][250] = msgspec.structs.replace(rows[1][250], wait_ns=None)
    (finding,) = watched(job_series(rank_rows(rows))).findings
    assert (finding.cause, finding.ranks) == ("slow_rank", [2])
    # 40 % of 60 ms more than the latest of three others, in whose work scatter lies.
    assert finding.price_ns == pytest.approx(22 * MS, rel=0.15)


def test_ranks_without_a_row_are_no_alarm() -> None:
    """The others could not train without them: they are not that far, or write on a disk of their own."""
    rows = Job(ranks=4).rows()
    result = watched(job_series(rank_rows(rows[:2])))
    assert (result.state, result.silent_ranks) == ("fine", [])
    assert any("2 ranks" in note for note in result.notes)
    first = watched(job_series(rank_rows([rows[0][:1]])))
    assert (first.state, first.silent_ranks) == ("too_little", [])


def test_ranks_that_a_smaller_job_no_longer_has_are_not_missed() -> None:
    rows = Job(ranks=4).rows()
    begins = Began(world_size=2, device="cuda")
    for rank in (0, 1):
        rows[rank][150] = msgspec.structs.replace(rows[rank][150], began=begins)
    rows[2:] = [of_rank[:150] for of_rank in rows[2:]]
    result = watched(job_series(rank_rows(rows)))
    assert (result.silent_ranks, result.ranks) == ([], 2)
    assert not any(finding.cause == "silent_rank" for finding in result.findings)


def test_steps_that_train_more_tokens_are_no_alarm() -> None:
    """A batch that ramps up from 1 to 1.5 of its size; the same times with the same tokens are told."""
    rows = Job(ranks=2).rows()
    longer = dict.fromkeys(("duration_ns", "forward_ns", "backward_ns", "wait_ns", "rank_tokens"), 1.5)

    def ramped(names: dict[str, float]) -> list[list[StepRecord]]:
        def more(row: StepRecord) -> StepRecord:
            return msgspec.structs.replace(row, **{n: round(getattr(row, n) * f) for n, f in names.items()})

        return [[more(row) if row.step >= 150 else row for row in of_rank] for of_rank in rows]

    result = watched(job_series(rank_rows(ramped(longer))))
    assert (result.state, len(result.levels)) == ("fine", 2)
    assert any("more tokens" in note for note in result.notes)
    del longer["rank_tokens"]
    assert watched(job_series(rank_rows(ramped(longer)))).state == "act"


def test_two_pauses_do_not_hide_that_all_other_steps_are_longer() -> None:
    """All ranks wait 15 ms more for data from step 150 on, two of them 900 ms, by one rank."""
    rows = Job(ranks=2, fault="input_all").rows()
    for step in (270, 285):
        for rank, field in ((0, "data_ns"), (1, "wait_ns")):
            old = rows[rank][step]
            longer = {"duration_ns": old.duration_ns + 900 * MS, field: (getattr(old, field) or 0) + 900 * MS}
            rows[rank][step] = msgspec.structs.replace(old, **longer)
    found = watched(job_series(rank_rows(rows))).findings[0]
    assert (found.cause, list(found.ranks), found.onset_step) == ("input", [], 150)
    assert found.price_ns == pytest.approx(15 * MS, rel=0.15)


def test_what_every_second_step_pays_is_priced_whole() -> None:
    """Rank 0 collects for 1.5 s in every second step from step 150 on: 750 ms of a mean step."""
    job = Job(ranks=2)
    rows = job.rows()
    sound_ns = watched(job_series(rank_rows(rows))).step_ns
    for step in range(150, job.steps, 2):
        for rank, field in ((0, "garbage_ns"), (1, "wait_ns")):
            old = rows[rank][step]
            longer = {
                "duration_ns": old.duration_ns + 1500 * MS,
                field: (getattr(old, field) or 0) + 1500 * MS,
            }
            rows[rank][step] = msgspec.structs.replace(old, **longer)
    result = watched(job_series(rank_rows(rows)))
    found = result.findings[0]
    assert (found.cause, found.onset_step) == ("garbage", 150)
    assert found.price_ns == pytest.approx(750 * MS, rel=0.05)
    assert result.step_ns is not None
    assert sound_ns is not None
    assert result.step_ns - sound_ns == pytest.approx(750 * MS, rel=0.05)


def test_memory_grows_by_steps_and_not_by_rows() -> None:
    """Rows of means hold 16 steps each: 100 of them, then 100 single steps; 2 MiB a step."""
    step = np.concatenate((np.arange(1, 101) * 16, 1600 + np.arange(1, 101)))
    values = {name: np.full((1, 200), np.nan, np.float32) for name in FIELDS}
    values["allocated_bytes"] = (float(1 << 30) + 2.0 * (1 << 20) * step)[None].astype(np.float32)
    found = growth(
        JobSeries(
            ranks=[0],
            roles=[{}],
            step=step,
            start_ns=step,
            values=values,
            counted=np.ones(200, bool),
            starts=[],
            began=None,
        ),
        0,
    )
    assert found is not None
    assert (found.onset, found.bytes_per_step) == (1, pytest.approx(2 << 20, rel=0.01))


def test_a_job_of_srun_is_captured_by_a_line_of_srun() -> None:
    late = Job(ranks=4, fault="slow_rank", culprit=2, size=1.33)
    command = ("srun", "--ntasks", "4", "--", "python", "train.py", "--my")
    (finding,) = watched(job_series(rank_rows(late.rows())), command=command).findings
    assert finding.capture.startswith("srun --ntasks 4 perfdoc capture --steps 319:321 --ranks 2,")
    assert finding.capture.endswith(" -o capture -- python train.py --my")
