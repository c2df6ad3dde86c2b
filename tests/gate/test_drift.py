"""Losses that each pass and together count: by hand, rates of error, and through the commands."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from perfdoc.compare.baseline_files import ANCHOR_RUNS, MAX_RUNS, Baseline, Promotion, with_runs
from perfdoc.compare.decision import Verdict, decide
from perfdoc.compare.gate.drift import drift, promoted_since
from tests.amount import tries
from tests.gate.commands import MS, MakeRun, gate, record
from tests.gate.test_changed_baselines import run

T_99_7 = 2.997952
"""Student's t, 99 %, 7 degrees of freedom, from a printed table."""


def test_by_hand() -> None:
    # First five of 1000; all eight have mean 1015 and variance (5 * 225 + 3 * 625) / 7: s = 20.70.
    found = drift([1000] * 5 + [1040] * 3, [1060] * 3)
    assert found is not None
    assert found.slower_frac == pytest.approx(0.06)
    assert found.limit_frac == pytest.approx(
        T_99_7 * math.sqrt(3000 / 7) / 1000 * math.sqrt(1 / 3 + 1 / 5), rel=1e-6
    )
    assert found.beyond
    assert (found.first_runs, found.later_runs) == (5, 3)
    assert drift([1000] * 7, [2000]) is None  # three later runs are the least
    quiet = drift([100_000] * 8, [102_000])
    assert drift([100_000] * 8, [102_010]).beyond  # type: ignore[union-attr]
    assert quiet is not None
    assert (quiet.limit_frac, quiet.slower_frac) == (0.02, pytest.approx(0.02))


@pytest.mark.parametrize("runs", [8, 20])
@pytest.mark.parametrize("spread", [0.002, 0.01, 0.03])
def test_both_checks_together_keep_the_claimed_rate(runs: int, spread: float) -> None:
    random = np.random.default_rng(11)
    trials = tries(600, 2000)
    times = (1e9 * (1 + spread * random.standard_normal((trials, runs + 3)))).astype(np.int64)
    wrong = 0
    for row in times.tolist():
        found = drift(row[:runs], row[runs:])
        assert found is not None
        failed = decide(row[:runs], row[runs:]).verdict is Verdict.FAIL
        wrong += failed or found.beyond
    both = 0.013 if spread == 0.03 else 0.003
    assert wrong / trials <= both + 3 * math.sqrt(both * (1 - both) / trials)


def test_small_losses_are_refused_before_they_are_five_per_cent() -> None:
    random = np.random.default_rng(13)
    for _ in range(100):
        level = (1e9 * (1 + 0.002 * random.standard_normal(5))).astype(np.int64).tolist()
        for step in range(1, 16):
            new = [int(1e9 * (1 + 0.003 * step) * (1 + 0.002 * random.standard_normal()))]
            found = drift(level, new)
            if decide(level, new).verdict is Verdict.FAIL or (found is not None and found.beyond):
                break
            level += new
        else:
            pytest.fail("a step may grow by 4.5 % unseen")


def test_the_first_runs_of_a_level_stay() -> None:
    baseline = with_runs(None, {"x": 1}, [run(0)])
    for i in range(1, 40):
        baseline = with_runs(baseline, {"x": 1}, [run(i)])
    kept = [r.source for r in baseline.runs]
    assert len(kept) == MAX_RUNS
    assert kept[:ANCHOR_RUNS] == [f"r{i}" for i in range(ANCHOR_RUNS)]
    assert kept[ANCHOR_RUNS:] == [f"r{i}" for i in range(25, 40)]
    assert len(with_runs(None, {"x": 1}, [run(i) for i in range(30)]).runs) == MAX_RUNS
    assert isinstance(baseline, Baseline)


def test_what_promotions_cost_together_is_noted() -> None:
    steps = [
        Promotion(utc=f"2026-0{i}", reason="", before_step_ns=b, after_step_ns=b + 3, replaced_runs=3)
        for i, b in ((1, 100), (2, 103))
    ]
    assert promoted_since(steps, [106, 108]) == [
        "a step became 7.0 % slower in all with 2 promotions since 2026-01"
    ]
    assert promoted_since(steps, [101]) == []
    assert promoted_since([], [500]) == []


def test_the_commands_stop_a_drift(tmp_path: Path, make_run: MakeRun) -> None:
    baseline = record(tmp_path, make_run, (100, 100.1, 99.9, 100, 100))
    for i, ms in enumerate((100.9, 101.4, 101.8)):
        code, _, err = gate(tmp_path, "record", make_run(f"more{i}", ms))
        assert code == 0, err
    # Their mean is 100.51: 102.4 is 1.9 % above it, and 2.4 % above the first five. Their scatter is 0.77 %.
    # Drift has 2 of the 10 shares of 1 %: t(0.998, 7) = 4.207, and 4.207 * 0.77 % * sqrt(1/3 + 1/5) = 2.4 %.
    new = [make_run(f"new{i}", 102.4) for i in range(3)]
    code, out, _ = gate(tmp_path, "check", *new, "--json", "gate.json")
    found = json.loads((tmp_path / "gate.json").read_text())
    states = {c["name"]: c["state"] for c in found["checks"]}
    passed = dict.fromkeys(("step_time", "mean_step", "late_part"), "pass")
    assert (code, states) == (1, passed | {"drift": "fail"}), out
    assert found["summary"].startswith(
        "The mean step is 2.4 % slower than in the first 5 runs of this level (from 2026-11-21T00:00:00Z"
    )
    assert gate(tmp_path, "check", *new, "--drift", "warn")[0] == 0
    assert "drift" not in gate(tmp_path, "check", *new, "--drift", "off")[1]
    before = baseline.read_bytes()
    code, _, err = gate(tmp_path, "record", *new)
    assert (code, err.count("\n")) == (2, 1)
    assert "small losses that passed one by one" in err
    assert baseline.read_bytes() == before
    code, _, err = gate(tmp_path, "promote", *new, "--reason", "needed")
    assert code == 0, err
    assert json.loads(baseline.read_text())["runs"][0]["median_step_ns"] == round(102.4 * MS)
