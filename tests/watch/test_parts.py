"""Parts of a step judged by themselves: found where whole steps scatter by more, and priced as ranks wait."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from perfdoc.analyzers.steps.levels import clipped, joined, levels, slower
from perfdoc.profiling.logs import StepRecord
from perfdoc.watch.parts import alone
from perfdoc.watch.series import job_series
from perfdoc.watch.verdict import _part, _steady, watched
from tests.watch.jobs import MS, Job, rank_rows


def with_more(row: StepRecord, **more_ms: float) -> StepRecord:
    """A row with so much more in some fields."""
    changed = {name: (getattr(row, name) or 0) + round(ms * MS) for name, ms in more_ms.items()}
    return msgspec.structs.replace(row, **changed)


@pytest.mark.parametrize(
    ("fault", "size", "cause", "ranks"),
    [
        ("input", 0.9, "input", [1]),
        ("input_all", 0.7, "input", []),
        ("uneven_data", 1.0, "uneven_data", []),
        ("slow_synchronisation", 0.9, "slow_synchronisation", []),
    ],
)
def test_what_whole_steps_do_not_show_is_found_by_its_own_series(
    fault: str, size: float, cause: str, ranks: list[int]
) -> None:
    """Forward and backward scatter by more than half; what comes from step 60 on costs a twelfth of that."""
    for seed in range(4):
        job = Job(ranks=2, fault=fault, culprit=1, size=size, noise=0.6, seed=seed, steps=140, onset=60)
        series = job_series(rank_rows(job.rows()))
        assert series is not None
        part = _part(series, _steady(series))
        times = np.asarray(part.time_ns, np.float64)
        proposed = levels(times)
        assert slower(times, joined(times, proposed)) is None
        assert slower(clipped(times), proposed) is None
        found = watched(series).findings[0]
        assert (found.cause, list(found.ranks)) == (cause, ranks)
        assert found.onset_step is not None
        assert abs(found.onset_step - 60) <= 3


def test_scatter_alone_says_nothing() -> None:
    for seed in range(10):
        assert (
            watched(job_series(rank_rows(Job(ranks=2, noise=0.6, seed=seed, steps=140).rows()))).state
            == "fine"
        )


def test_data_that_comes_later_to_a_rank_that_others_keep_waiting_costs_nothing() -> None:
    """Rank 3 has 25 ms less to compute than others; from step 150 on it waits 15 ms for its data instead of
    for them, which nobody pays. From 35 ms on somebody does: the step takes 10 ms more."""
    rows = Job(ranks=4, noise=0.002).rows()
    rows[3] = [with_more(row, backward_ns=-25, wait_ns=25) for row in rows[3]]
    late = rows[3][:150] + [with_more(row, data_ns=15, wait_ns=-15) for row in rows[3][150:]]
    assert watched(job_series(rank_rows([*rows[:3], late]))).state == "fine"
    waits = [[with_more(row, duration_ns=10, wait_ns=10) for row in of_rank[150:]] for of_rank in rows[:3]]
    others = [of_rank[:150] + longer for of_rank, longer in zip(rows[:3], waits, strict=True)]
    late = rows[3][:150] + [with_more(r, duration_ns=10, data_ns=35, wait_ns=-25) for r in rows[3][150:]]
    (found,) = watched(job_series(rank_rows([*others, late]))).findings
    assert (found.cause, list(found.ranks), found.onset_step) == ("input", [3], 150)
    assert found.price_ns == pytest.approx(10 * MS, rel=0.1)


def test_a_rank_alone_varies_by_one_part_and_others_wait_for_it() -> None:
    """Two ranks of 10 ms own work, in the last half of which rank 1's backward takes 4 ms more."""
    rows = [
        [
            StepRecord(
                step=s,
                start_ns=s,
                duration_ns=(12 + 4 * (s >= 50)) * MS,
                data_ns=0,
                forward_ns=3 * MS,
                backward_ns=(7 + 4 * (rank == 1 and s >= 50)) * MS,
                optimizer_ns=0,
                wait_ns=(2 + 4 * (rank == 0 and s >= 50)) * MS,
            )
            for s in range(100)
        ]
        for rank in (0, 1)
    ]
    series = job_series(rank_rows(rows))
    assert series is not None
    assert alone(series, "data_ns") is None
    assert alone(series, "rank_tokens") is None
    job = alone(series, "backward_ns")
    assert job is not None
    # Mean own work is 10 and 12 ms: rank 1 has 10 and then 14, rank 0 has 10.
    assert np.ptp(job.time_ns) == pytest.approx(4 * MS, rel=1e-3)
    assert np.allclose(job.own_ns[1, [0, 99]], [10 * MS, 14 * MS], rtol=1e-3)
    assert np.allclose(job.values["forward_ns"], 3 * MS)


def test_steps_that_go_up_and_down_without_a_cause_are_no_finding() -> None:
    """102, 122, 102 and 117 ms, as where others use the same machines; and 102, then 117, which is new."""

    def said(*levels_ms: float) -> str:
        rows = Job(ranks=2, noise=0.01).rows()
        longer = [
            [
                with_more(
                    row, duration_ns=levels_ms[row.step // 75], forward_ns=levels_ms[row.step // 75] / 2
                )
                for row in of_rank
            ]
            for of_rank in rows
        ]
        return watched(job_series(rank_rows(longer))).state

    assert said(0, 20, 0, 15) == "fine"
    assert said(0, 0, 0, 15) == "act"


def test_a_slow_stage_costs_what_the_pipeline_makes_of_it() -> None:
    job = Job(ranks=8, stages=4, fault="slow_stage", culprit=2, seed=5)
    sound = replace(job, fault="")
    mean = [np.mean([r.duration_ns for r in of.rows()[0][150:]]) for of in (job, sound)]
    found = watched(job_series(rank_rows(job.rows()))).findings[0]
    assert found.price_ns == pytest.approx(mean[0] - mean[1], rel=0.12)
