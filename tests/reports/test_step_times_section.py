"""What the section of step times says of a log beside the window: overhead, levels, warm-up, outliers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from perfdoc.analyzers.steps.figures import distribution
from perfdoc.reports.sections.step_times import build
from perfdoc.results.step_times import LogAgreement, OutlierStep, ProfilerOverhead, StepLevel, WarmUp
from tests.reports import jobs

MS = 1_000_000


def said(**more: Any) -> list[str]:
    made = jobs.job("data")
    times = replace(made.analyses.step_times, outliers=[], outliers_left_out=0, **more)
    section = build(replace(made, analyses=replace(made.analyses, step_times=times)))
    assert section is not None
    return [sentence.replace("\N{NO-BREAK SPACE}", " ") for sentence in section.sentences]


@pytest.mark.parametrize(
    ("frac", "low", "high", "words"),
    [
        (0.1, 0.05, 0.15, ("overhead: 10.0 %", "5.0 % to 15.0 %", "3 profiled against 20 other")),
        (0.1, None, None, ("overhead: 10.0 %",)),
        (0.01, -0.02, 0.04, ("within noise: 1.0 %",)),
        (-0.1, -0.15, -0.05, ("10.0 % shorter",)),
    ],
)
def test_overhead(frac: float, low: float | None, high: float | None, words: tuple[str, ...]) -> None:
    found = ProfilerOverhead(
        state="measured",
        reason="",
        remedy="",
        frac=frac,
        low_frac=low,
        high_frac=high,
        profiled_steps=3,
        unprofiled_steps=20,
    )
    (sentence,) = (s for s in said(overhead=found) if "rofil" in s and "other steps" in s)
    assert all(word in sentence for word in words), sentence


@pytest.mark.parametrize(("now_ms", "captured", "words"), [(102, 0, "as the last"), (150, 0, "not typical")])
def test_captured_steps_are_held_against_the_last_ones(now_ms: int, captured: int, words: str) -> None:
    """The capture lies in the level of 100 ms; 3 % is the bar for steps that are alike."""
    levels = [
        StepLevel(first_step=1, steps=40, median_ns=100 * MS),
        StepLevel(first_step=41, steps=40, median_ns=now_ms * MS),
    ]
    (sentence,) = (s for s in said(levels=levels, captured_level=captured) if s.startswith("Captured"))
    assert words in sentence
    assert "step 41" in sentence
    assert ("150.000 ms" in sentence) is (now_ms == 150)


def test_warm_up_and_a_log_that_disagrees() -> None:
    warmup = WarmUp(state="measured", reason="", remedy="", steps=5, last_step=5, excess_ns=80 * MS)
    log = LogAgreement(
        state="measured",
        reason="",
        remedy="",
        steps=3,
        median_frac=-0.08,
        total_frac=-0.08,
        worst_frac=-0.09,
        bar_frac=0.02,
        agrees=False,
    )
    sentences = said(warmup=warmup, agreement=log)
    assert any("first 5 steps" in s and "80.000 ms" in s for s in sentences)
    assert any("8.0 % shorter" in s and "2.0 %" in s for s in sentences)
    assert not any("than logged" in s for s in said(agreement=replace(log, agrees=True)))


def test_the_worst_outlier_is_named_with_what_grew() -> None:
    """Two shown and one left out are three; the step of 60 ms over the median leads."""
    spread = distribution(np.array([10, 10, 11], np.int64) * MS)
    step = OutlierStep(
        source="analysed",
        step="step 7",
        duration_ns=30 * MS,
        excess_ns=20 * MS,
        ranks=1,
        label="rank 3",
        leaf="idle.gc",
        leaf_growth_ns=15 * MS,
        growth=[],
        reason="",
    )
    logged = replace(
        step,
        source="logged",
        step="9",
        excess_ns=60 * MS,
        label=None,
        leaf=None,
        leaf_growth_ns=None,
        reason="the log has no leaves",
    )
    made = jobs.job("data")
    times = replace(made.analyses.step_times, unprofiled=spread, outliers=[step, logged], outliers_left_out=1)
    section = build(replace(made, analyses=replace(made.analyses, step_times=times)))
    assert section is not None
    assert any("3 outlier steps" in s and "`9`" in s and "60.000 ms" in s for s in section.sentences)
    grid = next(g for g in section.grids if g.caption == "Outlier steps")
    first, second = ([cell.text for cell in row] for row in grid.rows)
    assert first[:2] == ["9", "the log"]
    assert first[-1] == "the log has no leaves"
    assert second[:2] == ["step 7", "the window"]
    assert grid.left_out == 1
