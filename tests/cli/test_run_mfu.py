"""MFU of a run on a CPU, from the stored ceiling to the gate, against one worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from perfdoc.peak.store import Setting, stored_path
from perfdoc.profiling.measured import MeasuredCeilings, Rate
from perfdoc.profiling.run_directory import RunDirectory
from tests.cli.running import SMALL, needs_training
from tests.command import perfdoc

RANKS = 2
PEAK = 50e9
FLOPS_A_TOKEN = 6 * (4 * (32 * (2 * 32 + 2 * 16) + 32 * 32 + 3 * 32 * 32) + 32 * 384)
"""Four layers: projections of 4 heads of 8 over 2 groups, scores over 32 tokens, SwiGLU of 32; 384 logits."""
FLOPS = 32 * 32 * FLOPS_A_TOKEN
"""32 sequences of 32 tokens."""


def remember(best: float) -> None:
    """As if two ranks of one thread had been measured here before."""
    path = stored_path(Setting(kind="cpu", ranks=RANKS))
    assert path is not None
    path.parent.mkdir(parents=True, exist_ok=True)
    rate = Rate(best=best, spread_frac=0.01, repeats=8, what="GEMM of 256 x 256 x 256")
    found = MeasuredCeilings(
        device="a CPU",
        kind="cpu",
        ranks=RANKS,
        threads=1,
        flops={"fp32": rate, "bf16": msgspec.structs.replace(rate, best=1.0)},
        memory={},
        collectives={},
        missing={},
        versions={},
        measured_utc="2026-11-23T09:00:00Z",
    )
    path.write_bytes(msgspec.json.encode(found))


@pytest.fixture
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_training()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PERFDOC_STATE", str(tmp_path / "state"))


@pytest.mark.slow
@pytest.mark.usefixtures("quiet")
def test_mfu_is_known_on_a_cpu_from_the_ceiling_to_the_gate(tmp_path: Path) -> None:
    remember(PEAK)
    profiled = ("--profiler", "torch", "--profile-start", "30", "--profile-steps", "2")
    done = perfdoc("run", *SMALL, "train_iters=34", *profiled, "-o", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "measuring" not in done.stderr, "it was measured before"
    run = RunDirectory.open(tmp_path / "out")
    hardware = run.manifest().hardware
    assert (hardware.peak_flops_per_second, hardware.peak_kind) == (PEAK, "measured")
    assert hardware.measured is not None
    assert run.manifest().flops.per_step == FLOPS
    mfu = json.loads((tmp_path / "out" / "report" / "diagnosis.json").read_text())["mfu"]
    by_hand = FLOPS / (mfu["step_time_ns"] * 1e-9 * RANKS * PEAK)
    assert mfu["value"] == pytest.approx(by_hand, rel=1e-6)
    assert (mfu["peak_kind"], mfu["peak_flops"]) == ("measured", PEAK)
    assert mfu["waterfall"][0]["frac"] == mfu["value"]
    assert "measured peak" in " ".join(done.stdout.split())
    # The trainer's own line is of its own step, all of which outlast the profiled ones' shares.
    lines = [line for line in done.stderr.splitlines() if line.startswith("step 1/")]
    assert lines
    assert "MFU" in lines[0]
    # The gate needs no option: the run says its peak.
    floor = f"mfu_min={by_hand / 100:.6f}"
    passed = perfdoc("gate", "check", "out", "--floor", floor, cwd=tmp_path)
    assert "PASS         mfu_min" in passed.stdout
    assert "measured peak" in passed.stdout
    failed = perfdoc("gate", "check", "out", "--floor", "mfu_min=0.99", cwd=tmp_path)
    assert failed.returncode == 1


@pytest.mark.slow
@pytest.mark.usefixtures("quiet")
def test_a_peak_that_is_too_low_is_no_mfu_above_100_per_cent(tmp_path: Path) -> None:
    """At 1 MFLOP/s a step's FLOPs would take minutes."""
    remember(1e6)
    profiled = ("--profiler", "torch", "--profile-start", "5", "--profile-steps", "2")
    done = perfdoc("run", *SMALL, "train_iters=8", *profiled, "-o", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "MFU above 100 %" in done.stderr
    mfu = json.loads((tmp_path / "out" / "report" / "diagnosis.json").read_text())["mfu"]
    assert mfu["value"] is None
    assert "measured peak is too low" in mfu["reason"]
    assert "perfdoc peak --again" in mfu["remedy"]
