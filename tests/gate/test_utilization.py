"""MFU of a run: possible, or unknown with a note."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from perfdoc.compare.runs import mfu, read_run
from tests.gate.commands import MakeRun, megatron_log


@pytest.mark.parametrize(
    ("flops", "peak", "found", "noted"),
    [
        (4e14, 1e15, 0.4, False),
        (1e15, 1e15, 1.0, False),
        (None, 1e15, None, False),
        (4e14, None, None, False),
        (1.01e15, 1e15, None, True),
        (4e14, math.inf, None, True),
        (4e14, math.nan, None, True),
        (math.inf, 1e15, None, True),
        (-1.0, 1e15, None, True),
        (4e14, -1e15, None, True),
    ],
)
def test_only_what_is_possible(
    flops: float | None, peak: float | None, found: float | None, noted: bool
) -> None:
    value, notes = mfu(flops, peak)
    assert (value, bool(notes)) == (found, noted)


def test_a_peak_that_is_too_small_is_noted(tmp_path: Path, make_run: MakeRun) -> None:
    # 1e12 FLOPs a step of 0.1 s on 2 ranks are 5 TFLOP/s each.
    for peak, value in ((10.0, 0.5), (4.0, None)):
        run = read_run(make_run(f"run{peak}", 100), label="", commit=None, peak_tflops=peak)
        assert run.figures.mfu_frac == value
        assert any("125 %" in note for note in run.notes) is (value is None)
    # A log that counts 400 TFLOP/s.
    log = read_run(megatron_log(tmp_path / "a.log", 900), label="", commit=None, peak_tflops=320)
    assert (log.figures.mfu_frac, log.figures.tflops_per_gpu) == (None, 400)
    assert any("125 %" in note for note in log.notes)
