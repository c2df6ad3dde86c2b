from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perfdoc.analyzers.ledger.steps import StepLedgers
from perfdoc.analyzers.steps.figures import RankSteps, distribution, median_range, warmup_steps
from perfdoc.analyzers.steps.log import LoggedSteps, logged_steps, read_logged_steps
from perfdoc.analyzers.steps.times import measure_step_times
from perfdoc.profiling.logs import StepRecord
from perfdoc.profiling.run_directory import RunDirectory
from perfdoc.profiling.step_log import StepLog
from perfdoc.results.quality import MEASURED
from perfdoc.results.ranks import LEAVES
from perfdoc.traces import TraceError

MS = 1_000_000


def record(step: int, ms: float, *, profiled: bool = False, **parts: int) -> StepRecord:
    duration = round(ms * MS)
    return StepRecord(step=step, start_ns=step, duration_ns=duration, tokens=1, profiled=profiled, **parts)


def log(times_ms: Sequence[float], profiled: Sequence[int] = ()) -> LoggedSteps:
    """Steps from 1 on."""
    return logged_steps([record(i, ms, profiled=i in profiled) for i, ms in enumerate(times_ms, 1)])


def device(rank: int | None, steps: Sequence[dict[str, int]], *, first: int = 1) -> RankSteps:
    """Steps given by their leaves in milliseconds; the rest of LEAVES is 0."""
    leaf_ns = {leaf: np.array([s.get(leaf, 0) * MS for s in steps], np.int64) for leaf in LEAVES}
    duration = np.sum(list(leaf_ns.values()), axis=0)
    ledgers = StepLedgers(
        **MEASURED,
        names=[f"perfdoc.step {first + i}" for i in range(len(steps))],
        start_ns=np.cumsum(duration) - duration,
        duration_ns=duration,
        leaf_ns=leaf_ns,
    )
    return RankSteps(rank=rank, label=f"rank {rank}", ledgers=ledgers)


def test_distribution() -> None:
    # 10, 20, .., 110: median 60, tenths at 20 and 100; the deviations' mean square is 1000.
    found = distribution(np.arange(10, 120, 10) * MS)
    assert found is not None
    assert (found.count, found.median_ns, found.p10_ns, found.p90_ns) == (11, 60 * MS, 20 * MS, 100 * MS)
    assert (found.min_ns, found.max_ns) == (10 * MS, 110 * MS)
    assert found.variation_frac == pytest.approx(math.sqrt(1000) / 60)
    assert distribution(np.empty(0, np.int64)) is None


@pytest.mark.parametrize(
    ("times", "steps"),
    [
        ([90, 40, 11, 10, 10, 10, 10, 10, 30, 10], 3),
        ([10, 10, 10, 10, 10, 10, 10, 10], 0),
        ([50, 10, 40, 30, 10, 10, 10, 10, 10, 10, 10, 10], 4),  # one quick step does not end it
        ([10, 10, 10, 50, 10, 10, 10, 10, 10, 10], 0),  # a slow one later on is no warm-up
        ([10.1, 10, 10, 10, 10, 10, 10, 10], 0),  # within 2 %
        ([13, 9, 11, 10, 8, 12, 10, 9, 11, 10], 0),  # within the noise of the others
        ([9, 8, 7, 6, 5, 4, 3, 2], 0),  # nothing is steady: the second half varies as much
        ([90, 10, 10, 10, 10, 10, 10], None),
    ],
)
def test_warmup(times: list[float], steps: int | None) -> None:
    assert warmup_steps(np.array([round(t * MS) for t in times], np.int64)) == steps


def test_the_range_of_the_median_has_the_confidence_that_it_claims() -> None:
    # Exactly, by counting: of n values the number below the median is binomial.
    for n in (5, 8, 20, 51, 200):
        low, high = median_range(np.arange(1, n + 1, dtype=np.int64))

        def outside(k: int, n: int = n) -> float:
            return 2 * sum(math.comb(n, i) for i in range(k)) / 2**n

        assert low + high == n + 1
        assert outside(low) <= 0.1
        assert outside(low + 1) > 0.1
    assert median_range(np.array([5, 1, 9], np.int64)) == (1, 9)
    low, high = median_range(np.arange(1, 1001, dtype=np.int64))
    assert low + high == 1001
    assert low == pytest.approx(500 - 0.8225 * math.sqrt(1000), abs=1)


def test_overhead_is_profiled_over_steady_unprofiled() -> None:
    # Warm-up 300, 150; profiled 110, 112, 114: 12 % over 100. The step of 900 after them waits for traces to
    # be written and belongs to neither.
    times = [300.0, 150, *[100] * 6, 110, 112, 114, 900, 98, 102, *[100] * 7]
    found = measure_step_times([], {0: log(times, profiled=(9, 10, 11))})
    assert (found.warmup.steps, found.warmup.last_step, found.warmup.excess_ns) == (2, 2, 250 * MS)
    assert (found.overhead.profiled_steps, found.overhead.unprofiled_steps) == (3, 15)
    assert found.overhead.frac == pytest.approx(0.12)
    # Of 15 steady steps the fifth and the eleventh bound the median: all 100. Of 3 the extremes do.
    assert found.overhead.low_frac == pytest.approx(0.10)
    assert found.overhead.high_frac == pytest.approx(0.14)
    assert found.overhead.reason.startswith("Few steps")
    assert found.profiled is not None
    assert found.unprofiled is not None
    assert (found.profiled.count, found.unprofiled.count) == (3, 15)
    assert found.unprofiled.max_ns == 102 * MS


def test_a_step_that_any_rank_profiled_is_profiled() -> None:
    # Only rank 0 is profiled; rank 1 waits for it, and its times are none of an unprofiled job.
    times = [*[100.0] * 8, 110, 112, 114, *[100] * 8]
    found = measure_step_times([], {0: log(times, profiled=(9, 10, 11)), 1: log(times)}).overhead
    assert (found.profiled_steps, found.unprofiled_steps) == (3, 15)
    assert found.frac == pytest.approx(0.12)


@pytest.mark.parametrize(("profiled", "count"), [((5, 6), 30), ((2, 3, 4), 5)])
def test_too_few_steps_give_no_overhead(profiled: tuple[int, ...], count: int) -> None:
    found = measure_step_times([], {0: log([100.0] * count, profiled=profiled)}).overhead
    assert (found.state, found.frac, found.low_frac) == ("not_measured", None, None)
    assert "3 of each" in found.reason


def test_a_steps_time_is_the_median_over_ranks() -> None:
    # A rank that ends one step late begins the next one late: maxima would count both.
    logs = {rank: log([100.0] * 10) for rank in range(3)}
    logs[2] = log([100.0, 140, 60, *[100.0] * 7])
    found = measure_step_times([], logs)
    assert found.unprofiled is not None
    assert (found.unprofiled.max_ns, found.unprofiled.min_ns) == (100 * MS, 100 * MS)
    assert [r.label for r in found.ranks] == ["rank 0", "rank 1", "rank 2"]
    assert found.ranks[2].unprofiled is not None
    assert found.ranks[2].unprofiled.max_ns == 140 * MS
    # Likewise of analysed steps.
    devices = [device(rank, [{"compute": ms}] * 2) for rank, ms in enumerate((100, 110, 190))]
    analysed = measure_step_times(devices, {}).analysed
    assert analysed is not None
    assert (analysed.count, analysed.median_ns) == (2, 110 * MS)


def test_an_outlier_is_explained_by_the_leaf_that_grew_on_the_rank_to_blame() -> None:
    # Step 4: rank 1 collects garbage for 30 ms; rank 0 waits for it in a collective. Both take 130.
    usual = {"compute": 80, "exposed_comm.dp": 15, "idle.host": 5}
    waits = {**usual, "exposed_comm.dp": 45}
    collects = {**usual, "idle.gc": 29, "idle.host": 6}
    steps = [usual] * 3 + [waits] + [usual] * 3
    other = [usual] * 3 + [collects] + [usual] * 3
    found = measure_step_times([device(0, steps), device(1, other)], {})
    (outlier,) = found.outliers
    assert (outlier.source, outlier.step, outlier.ranks) == ("analysed", "perfdoc.step 4", 2)
    assert (outlier.duration_ns, outlier.excess_ns) == (130 * MS, 30 * MS)
    assert (outlier.label, outlier.leaf, outlier.leaf_growth_ns) == ("rank 1", "idle.gc", 29 * MS)
    assert [(g.leaf, g.growth_ns) for g in outlier.growth] == [("idle.gc", 29 * MS)]
    assert outlier.reason == ""
    assert found.analysed is not None
    assert (found.analysed.count, found.analysed.max_ns) == (7, 130 * MS)


def test_of_two_ranks_that_grew_the_one_with_the_largest_leaf_is_to_blame() -> None:
    usual = {"compute": 80, "idle.host": 5, "exposed_comm.dp": 15}
    first = {**usual, "idle.gc": 17, "idle.data": 10, "exposed_comm.dp": 18}
    second = {**usual, "idle.host": 20, "exposed_comm.dp": 30}
    devices = [device(i, [usual] * 6 + [late]) for i, late in enumerate((first, second))]
    (outlier,) = measure_step_times(devices, {}).outliers
    assert (outlier.label, outlier.leaf, outlier.leaf_growth_ns) == ("rank 0", "idle.gc", 17 * MS)


def test_an_outlier_without_one_leaf_stays_unexplained() -> None:
    usual = {"compute": 80, "idle.host": 20}
    spread = {"compute": 90, "idle.host": 30, "exposed_memcpy": 10}
    (outlier,) = measure_step_times([device(0, [*[usual] * 5, spread])], {}).outliers
    assert (outlier.leaf, outlier.leaf_growth_ns, len(outlier.growth)) == (None, None, 3)
    assert outlier.reason


def test_a_logged_outlier_is_explained_by_what_is_logged() -> None:
    # Step 10 waits 60 ms for data, step 11 is late for reasons that nobody saw.
    records = [record(i, 100, data_ns=2 * MS, garbage_ns=0) for i in range(1, 31)]
    records[9] = record(10, 160, data_ns=60 * MS, garbage_ns=0)
    records[10] = record(11, 150, data_ns=2 * MS, garbage_ns=0)
    found = measure_step_times([], {0: logged_steps(records)}).outliers
    assert [(o.source, o.step, o.leaf, o.excess_ns) for o in found] == [
        ("logged", "10", "idle.data", 60 * MS),
        ("logged", "11", None, 50 * MS),
    ]
    assert found[0].leaf_growth_ns == 58 * MS
    assert "not profiled" in found[1].reason


def test_what_one_rank_waits_for_holds_up_the_job() -> None:
    # Step 10 takes all three ranks 160 ms: rank 1 waits 60 ms for data, rank 2 collects garbage for 7.
    logs = {}
    for rank, (data, garbage) in enumerate(((0, 0), (60, 0), (0, 7))):
        records = [record(i, 100, data_ns=2 * MS, garbage_ns=0) for i in range(1, 31)]
        records[9] = record(10, 160, data_ns=data * MS, garbage_ns=garbage * MS)
        logs[rank] = logged_steps(records)
    (slow,) = measure_step_times([], logs).outliers
    assert (slow.leaf, slow.ranks) == ("idle.data", 3)
    assert [(g.leaf, g.growth_ns) for g in slow.growth] == [("idle.data", 58 * MS), ("idle.gc", 7 * MS)]


@pytest.mark.parametrize(("late", "agrees"), [(1, True), (3, False)])
def test_analysed_times_are_held_against_the_log(late: int, agrees: bool) -> None:
    # Steps 5, 6, 7 take 100 + late ms on the device and 100 in the log; rank 1 has no log.
    steps = [{"compute": 100 + late}] * 3
    ranks = [device(0, steps, first=5), device(1, steps, first=5), device(None, steps, first=5)]
    found = measure_step_times(ranks, {0: log([100.0] * 10, profiled=(5, 6, 7))}).agreement
    assert (found.state, found.steps, found.agrees) == ("measured", 3, agrees)
    for figure in (found.median_frac, found.total_frac, found.worst_frac):
        assert figure == pytest.approx(late / 100)


def test_steps_without_numbers_cannot_be_compared() -> None:
    rank = device(0, [{"compute": 100}] * 3, first=5)
    bracketed = replace(rank, ledgers=replace(rank.ledgers, names=[f"step ({i})" for i in (5, 6, 7)]))
    assert measure_step_times([bracketed], {0: log([100.0] * 10)}).agreement.steps == 3
    rank = device(0, [{"compute": 100}] * 3, first=500)
    found = measure_step_times([rank], {0: log([100.0] * 10)}).agreement
    assert (found.state, found.agrees, found.steps) == ("not_measured", None, None)


def test_the_log_of_a_run_directory(tmp_path: Path) -> None:
    # A resumed run repeats step 2: the later line counts. One line has an impossible time.
    run = RunDirectory.create(tmp_path / "run")
    lines = StepLog(run.steps_path(3))
    for step, ms in ((1, 10), (2, 20), (2, 30), (3, 40)):
        lines.write(record(step, ms, profiled=step == 3))
    lines.write(record(4, -5))
    lines.close()
    (run.path / "steps" / "eval.jsonl").write_text("{}\n")
    found = read_logged_steps(run.path)
    assert list(found) == [3]
    assert found[3].step.tolist() == [1, 2, 3]
    assert found[3].duration_ns.tolist() == [10 * MS, 30 * MS, 40 * MS]
    assert found[3].profiled.tolist() == [False, False, True]
    assert found[3].data_ns.tolist() == [-1, -1, -1]
    assert read_logged_steps(None) == {}
    run.steps_path(4).write_text('{"step": "x"}\n')
    with pytest.raises(TraceError, match="rank4"):
        read_logged_steps(run.path)


def test_whether_the_captured_steps_are_as_the_last_ones() -> None:
    # 100 ms, from step 61 on 130; profiled were steps 20 and 21, or 80 and 81.
    times = [100.0 + i % 3 for i in range(60)] + [130.0 + i % 3 for i in range(60)]
    for profiled, level in (((20, 21), 0), ((80, 81), 1)):
        found = measure_step_times([], {0: log(times, profiled)})
        assert [(one.first_step, one.median_ns // 1_000_000) for one in found.levels] == [(1, 101), (61, 131)]
        assert found.captured_level == level
    assert len(measure_step_times([], {0: log(times[:60])}).levels) == 1
