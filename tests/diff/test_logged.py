"""Logged steps: medians and their interval, from the log of a run directory."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from perfdoc.compare.diff.noise import compare_logged
from perfdoc.compare.diff.sections import render_markdown, render_text
from perfdoc.compare.diff.two_sides import compare
from perfdoc.compare.side import steady_steps_ns
from perfdoc.profiling.logs import StepLog, StepRecord
from perfdoc.profiling.run_directory import RunDirectory
from tests.diff.sides import rank_of_steps, side


def test_warm_up_and_profiled_steps_do_not_count(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    log = StepLog(run.steps_path(0))
    times = [900, 500, *[100] * 10, 300, 300, 250, *[100] * 8]  # two slow, two profiled, one after them
    for i, ns in enumerate(times):
        log.write(StepRecord(step=i, start_ns=i, duration_ns=ns, tokens=1, profiled=ns == 300))
    log.close()
    assert steady_steps_ns(run.path).tolist() == [100] * 18
    assert steady_steps_ns(None).tolist() == []


def test_the_interval_and_the_way_back() -> None:
    chance = np.random.default_rng(17)
    one = chance.normal(1e6, 1e4, 40).astype(np.int64)
    two, three = one + 50_000, chance.normal(1e6, 1e4, 40).astype(np.int64)
    slower, same = compare_logged(one, two), compare_logged(one, three)
    assert slower is not None
    assert same is not None
    assert slower.median.change_ns == 50_000
    assert slower.low_ns is not None
    assert 30_000 < slower.low_ns < 50_000
    assert (slower.within_noise, same.within_noise) == (False, True)
    back = compare_logged(two, one)
    assert back is not None
    assert (back.low_ns, back.high_ns) == (-(slower.high_ns or 0), -slower.low_ns)
    still = compare_logged(one, one)
    assert still is not None
    assert still.low_ns == -(still.high_ns or 0)
    assert still.within_noise


def test_few_or_no_steps() -> None:
    few = compare_logged(np.array([10, 11, 12]), np.array([20] * 30))
    assert few is not None
    assert (few.median.before_ns, few.median.after_ns, few.low_ns, few.within_noise) == (11, 20, None, None)
    assert compare_logged(np.empty(0, np.int64), np.array([1])) is None


def test_it_is_shown() -> None:
    ranks = [rank_of_steps(0, [10, 11])]
    found = compare(side(ranks, logged_ns=np.array([100] * 12)), side(ranks, logged_ns=np.array([150] * 12)))
    said = "logged steps without the profiler: median 100 ns before, 150 ns after (+50 ns, +50.0 %), beyond"
    assert said in render_text(found)
    assert "logged steps without the profiler" in render_markdown(found)
