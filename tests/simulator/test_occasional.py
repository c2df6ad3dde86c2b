"""Collections that a short window happens to hold are gained as often as the run makes them."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from perfdoc.analyzers.request import AnalysisRequest
from perfdoc.analyzers.steps.log import LoggedSteps
from perfdoc.diagnose.diagnosis import diagnose
from perfdoc.diagnose.measuring import measure_all
from perfdoc.profiling.logs import StepRecord
from perfdoc.profiling.step_log import StepLog
from perfdoc.reports.advice import MINUS
from perfdoc.reports.opportunities import opportunities
from perfdoc.reports.outlook import gain_together
from perfdoc.results import Diagnosis, Prediction
from perfdoc.results.replay import Gain
from perfdoc.simulator.replay.basis import Counted, collections_of, in_window, occasional
from perfdoc.simulator.replay.rebuilt import rebuild_rank
from perfdoc.simulator.replay.whole import free_lengths
from perfdoc.traces.job_facts import JobFacts
from tests.analyzers.device_views import views_of
from tests.analyzers.tiny import trace_of
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import TimelineBuilder

US = 1_000
STEP_US, DATA_US, GC_US = 1_000, 100, 600


def window(collecting: tuple[int, ...], steps: int = 3) -> TimelineBuilder:
    """Steps 10 and on of a CPU rank, 1000 us each: data 100 and compute 900. Those of `collecting` end with
    600 us of collection."""
    builder = TimelineBuilder()
    main = builder.process(pid=77).thread(tid=77)
    main.range("perfdoc.rank 0 world=1 device=cpu", 0, 0)
    at = 0
    for step in range(10, 10 + steps):
        end = at + STEP_US + (GC_US if step in collecting else 0)
        main.range(f"perfdoc.step {step}", at * US, end * US)
        main.range("perfdoc.data", at * US, (at + DATA_US) * US)
        main.range("perfdoc.forward", (at + DATA_US) * US, (at + STEP_US) * US)
        if end > at + STEP_US:
            main.range("perfdoc.gc generation=2", (at + STEP_US) * US, end * US)
        at = end
    return builder


def log(run: Path, every: int, steps: int = 36) -> None:
    """Steps 1 and on, of which 10 to 12 are profiled. One of so many collects: 300 us, profiled 600."""
    (run / "steps").mkdir(parents=True)
    lines = StepLog(run / "steps" / "rank0.jsonl")
    for step in range(1, steps + 1):
        profiled = step in (10, 11, 12)
        garbage = 0 if step % every else GC_US if profiled else GC_US // 2
        lines.write(
            StepRecord(
                step=step,
                start_ns=step,
                duration_ns=(STEP_US + garbage) * US,
                tokens=1,
                data_ns=DATA_US * US,
                garbage_ns=garbage * US,
                profiled=profiled,
            )
        )
    lines.close()


def found(folder: Path, *, every: int | None) -> Diagnosis:
    """What is said of a window whose step 12 collects; every: as the log has it, if there is one."""
    if every is not None:
        log(folder / "run", every)
    path = write_nsys_sqlite(window((12,)).build(), folder / "rank0.sqlite", force=True)
    given = JobFacts() if every is None else JobFacts(run_directory=folder / "run")
    request = AnalysisRequest(captures=[path], given=given)
    return diagnose(measure_all(request).captures)


def of(diagnosis: Diagnosis, key: str) -> Prediction:
    return next(p for p in diagnosis.analyses.gains.predictions if p.key == key)


def set_of(diagnosis: Diagnosis, *keys: str) -> Gain:
    assert diagnosis.combined is not None
    return next(s.gain for s in diagnosis.combined.sets if s.keys == list(keys))  # type: ignore[return-value]


def test_one_of_three_here_and_one_of_twelve_in_the_log(tmp_path: Path) -> None:
    """The log: 3 of 36 steps collect, for 300 us without the profiler. The window: 1 of 3, so that it
    stands for a quarter of a step of the run; 300 us less in it are 100 us a step, at least 84 and at most
    116 (15 %, and 1 us). A collection every 100 steps stays, 3 % of the window's one. Gained are
    100 x (25 % - 3 %) = 22, which is 300 / 12 - 300 / 100; at most 116 x 22 %; at least, had the log
    2 of 36, 84 x (16.667 % - 3 %)."""
    diagnosis = found(tmp_path, every=12)
    gc = of(diagnosis, "without_gc")
    assert (gc.low_ns, gc.mid_ns, gc.high_ns) == (11_480, 22_000, 25_520)
    # Of a step of the run, 1000 + 300 / 12 us, and not of the window's 1200.
    assert gc.step_ns == 1_025_000
    assert gc.mid_frac == pytest.approx(22 / 1025)
    assert "3 of 36 logged steps, in 1 of 3 captured" in gc.gain.assumptions[-2]
    assert gc.gain.assumptions[-1] == "one collection every 100 steps remains"
    # Data are loaded in all steps alike, whichever collect.
    assert of(diagnosis, "without_data").mid_ns == 100_000
    both = set_of(diagnosis, "without_gc", "without_data")
    assert both.mid_ms == pytest.approx(0.122)
    # The rule, the box and the sentence say the same.
    (rule,) = [r for r in diagnosis.rules if r.code == "PD202"]
    assert (rule.state, rule.gain) == ("fires", gc.gain)
    assert rule.gain_frac == pytest.approx(22 / 1025)
    (box,) = [o for o in opportunities(diagnosis) if o.ranked.rule.code == "PD202"]
    assert (box.ranked.row.gain, box.choice) == (gc.gain, 0)
    assert "2 changes together" in gain_together(diagnosis)
    said = f"{MINUS}122 µs per step (96.7 µs to 127 µs), 11.9 % of the unprofiled step (1.02 ms)"
    assert said in gain_together(diagnosis)


def test_what_every_step_has_is_gained_in_every_step(tmp_path: Path) -> None:
    """All 36 steps collect, and of the window one of three: 3 times as many as it shows. 300 us a step, less
    one in 100 steps."""
    gc = of(found(tmp_path, every=1), "without_gc")
    assert gc.mid_ns == 297_000
    assert gc.low_ns == round(84_000 * 2.97)


def test_without_a_log_the_band_reaches_down_to_one_fewer(tmp_path: Path) -> None:
    """600 us in 3 steps are 200 a step, which is all there is; and what none would give is nothing, so
    that it is in no set."""
    diagnosis = found(tmp_path, every=None)
    gc = of(diagnosis, "without_gc")
    assert (gc.low_ns, gc.mid_ns, gc.high_ns) == (0, 200_000, 200_000)
    assert "in 1 of 3 steps of the window; no step log" in gc.gain.assumptions[-1]
    assert diagnosis.combined is not None
    assert diagnosis.combined.accepted == ["without_data"]


def test_a_window_that_collects_in_every_step_needs_no_log(tmp_path: Path) -> None:
    (view,) = views_of(trace_of(window((10, 11)), tmp_path))
    some = rebuild_rank(view)
    assert in_window(some) == Counted(collect=2, steps=3)
    half = occasional(some, None)
    assert half is not None
    assert (half.least, half.usual, half.stays) == (0.5, 1.0, 0.0)
    (view,) = views_of(trace_of(window((10, 11, 12)), tmp_path))
    assert occasional(rebuild_rank(view), None) is None
    (view,) = views_of(trace_of(window(()), tmp_path))
    assert occasional(rebuild_rank(view), Counted(collect=3, steps=36)) is None


def logged(garbage_ms: list[int], data_ms: list[int], profiled: tuple[int, ...]) -> LoggedSteps:
    """Steps 1 and on that take 1 s besides."""
    step = np.arange(1, len(garbage_ms) + 1)
    garbage, data = np.array(garbage_ms) * 1_000_000, np.array(data_ms) * 1_000_000
    return LoggedSteps(
        step=step,
        duration_ns=10**9 + garbage + data,
        data_ns=data,
        garbage_ns=garbage,
        profiled=np.isin(step, profiled),
    )


def test_ranks_that_collect_in_turn_are_counted_by_step(tmp_path: Path) -> None:
    """Of ten steps the first rank collects in 2 and 6, the second in 4 and 6: three steps of the job, four of
    twenty of a rank. Without the profiler they take 100 and 200 ms, in step 6 under it 100 and 600: the
    longest of a step are 150 in the mean against 600."""
    first = logged([0, 100, 0, 0, 0, 100, 0, 0, 0, 0], [10] * 10, (6,))
    second = logged([0, 0, 0, 200, 0, 600, 0, 0, 0, 0], [10] * 10, (6,))
    job, rank = collections_of({0: first, 1: second})
    assert (job, rank) == (Counted(collect=3, steps=10), Counted(collect=4, steps=20))
    assert free_lengths({0: first, 1: second}).gc_frac == pytest.approx(0.25)
    assert collections_of({0: logged([0] * 10, [10] * 10, (6,))}) == (None, None)
    assert collections_of({0: logged([5] * 4, [10] * 4, (2,))}) == (None, None)  # two steps are too few
    assert collections_of({}) == (None, None)


def test_one_slow_batch_counts_as_often_as_the_run_has_it(tmp_path: Path) -> None:
    """Batches take 10 ms, one of the 17 without the profiler (21 steps less 3, and the one after) 230: 390 ms
    over 17. Of the three under the profiler one takes 610: 630 over 3."""
    data = [10] * 21
    data[2], data[14] = 610, 230
    free = free_lengths({0: logged([0] * 21, data, (2, 3, 4))})
    assert free.data_frac == pytest.approx((16 * 10 + 230) / 17 / 210)


def test_the_weighed_gain_lies_between_those_of_the_two_windows(tmp_path: Path) -> None:
    """Whatever the three gains are; the middle is their mean by weights, and the band holds it."""
    (view,) = views_of(trace_of(window((12,)), tmp_path))
    rebuilt = rebuild_rank(view)
    chance = random.Random(5)

    def gain() -> Gain:
        low, mid, high = sorted(chance.uniform(-5, 50) for _ in range(3))
        return Gain(low_ms=low, mid_ms=mid, high_ms=high, method="replay", assumptions=[])

    for _ in range(200):
        steps = chance.randint(4, 400)
        part = occasional(rebuilt, Counted(collect=chance.randint(1, steps), steps=steps))
        assert part is not None
        whole, others, calm = gain(), gain(), gain()
        mean = part.mean(whole, others, calm)
        assert (mean.low_ms or 0) <= (mean.mid_ms or 0) <= (mean.high_ms or 0)
        if part.usual <= 1:
            mids = [g.mid_ms or 0 for g in (whole, others, calm)]
            assert min(mids) - 1e-6 <= (mean.mid_ms or 0) <= max(mids) + 1e-6
