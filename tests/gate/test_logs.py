"""A log of another trainer as a run: what it must say throughout its steady steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.compare.runs import Run, read_run
from perfdoc.traces import TraceError
from tests.gate.commands import MakeRun, megatron_log


def read(path: Path) -> Run:
    return read_run(path, label="", commit=None, peak_tflops=None)


def test_a_batch_that_grows_among_the_steady_steps_is_refused(tmp_path: Path) -> None:
    assert read(megatron_log(tmp_path / "a.log", 1000)).facts["config.global_batch_size"] == 128
    with pytest.raises(TraceError, match=r"changes its global batch size .* from 64 to 128") as caught:
        read(megatron_log(tmp_path / "b.log", 1000, batch=64, late_batch=128))
    assert "\n" not in str(caught.value)


def test_a_batch_that_no_line_says_is_unknown(tmp_path: Path) -> None:
    log = megatron_log(tmp_path / "a.log", 1000)
    log.write_text(log.read_text().replace("global batch size", "something"))
    assert read(log).facts["config.global_batch_size"] is None


@pytest.mark.parametrize("ns", [10**400, 10**30, -1])
def test_a_ledger_of_impossible_figures_is_refused(make_run: MakeRun, ns: int) -> None:
    run = make_run("a", 100, parts={"compute": 80})
    report = run / "report" / "diagnosis.json"
    report.write_text(report.read_text().replace(str(160_000_000), str(ns)))
    with pytest.raises(TraceError, match="is no diagnosis: ") as caught:
        read(run)
    assert "\n" not in str(caught.value)
