"""benchmarks/gpu_check.py as far as a CPU allows: what it would start on GPUs is valid, and it runs here."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from perfdoc.trainer.config import resolve
from perfdoc.trainer.layout import default_world_size, plan
from tests.trainer.launch import need_megatron

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
GIB = 1 << 30
sys.path.insert(0, str(BENCHMARKS))

import gpu_check  # noqa: E402 - scripts beside the package
import gpu_runs  # noqa: E402


def test_layers_that_fit() -> None:
    """140 GiB at 88 %: 132.3 GB, less 18.9 GB of ends and 16.8 GB of logits: 17 times 5.54 GB."""
    assert gpu_runs.LAYER_PARAMETERS == 218_103_808
    assert gpu_runs.fitting_layers(140 * GIB) == (17, 8192)
    assert gpu_runs.fitting_layers(79 * GIB) == (7, 8192)
    assert gpu_runs.fitting_layers(40 * GIB) == (2, 4096)  # two layers, with a shorter sequence
    assert gpu_runs.fitting_layers(24 * GIB) == (0, 0)
    assert gpu_runs.fitting_layers(2000 * GIB) == (32, 8192)


@pytest.mark.parametrize("gpus", [1, 2])
@pytest.mark.parametrize("gib", [24, 40, 80, 140])
def test_every_planned_run_is_a_valid_configuration(gib: int, gpus: int) -> None:
    machine = gpu_runs.Machine(device="cuda", gpus=gpus, memory_bytes=gib * GIB, nsys=True)
    runs = gpu_runs.planned_runs(machine, quick=False)
    assert len({run.name for run in runs}) == len(runs)
    for run in runs:
        if gib == 24 and run.config != "tiny":
            assert run.skip == "two layers do not fit into 24 GiB"
            continue
        config = resolve(run.config, run.settings).config
        assert plan(config, default_world_size(config), "cuda").world_size <= 2
        assert run.skip or default_world_size(config) <= gpus
    told = {run.name: run.skip for run in runs if gib > 24}
    assert told.get("8b-dp2", "") == ("" if gpus == 2 or gib == 24 else "needs 2 GPUs, there are 1")


def test_the_reason_of_a_run_is_not_an_announcement() -> None:
    begin = "perfdoc: PyTorch profiler: asked for\nperfdoc: python -m perfdoc.trainer.main --out r\n"
    refused = "perfdoc: override: unknown key train.nonsense\n"
    consequence = "perfdoc: rank 1: ended because another rank did\n"
    assert gpu_check.last_word(refused, 2) == "override: unknown key train.nonsense"
    assert gpu_check.last_word(f"{begin}{consequence}perfdoc: rank 0: out of memory\n", 1) == (
        "rank 0: out of memory"
    )
    assert gpu_check.last_word(f"{begin}No module named x\n\n", 1) == "ended with code 1: No module named x"
    assert gpu_check.last_word("", -9) == "ended with code -9"


def test_what_was_not_measured_is_not_within_the_bar() -> None:
    result = gpu_check.Result(name="tiny", state="ok", reason="", settings=())
    assert gpu_check.unmeasured(result)
    assert "| not measured |" in gpu_check.table([result], [])
    assert not gpu_check.unmeasured(dataclasses.replace(result, agrees=True))
    assert not gpu_check.unmeasured(dataclasses.replace(result, state="skipped"))


@pytest.mark.slow
def test_stop_asks_again_then_kills_the_group() -> None:
    """A process that counts SIGTERM and never ends, with a child."""
    code = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('asked', flush=True))\n"
        "child = subprocess.Popen(['sleep', '300'])\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(1)\n"
    )
    line = [sys.executable, "-c", code]
    with subprocess.Popen(line, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        gpu_check.stop(process, (1.0, 1.0))
        assert process.returncode == -signal.SIGKILL
        assert process.stdout.read() == b"asked\nasked\n"  # to its end: the child that holds it too is gone


@pytest.mark.slow
def test_the_script_runs_without_a_gpu(tmp_path: Path) -> None:
    need_megatron()
    line = [sys.executable, str(BENCHMARKS / "gpu_check.py"), "--device", "cpu", "--quick", "-o", "out"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PATH": "/usr/bin:/bin"}
    env.pop("PERFDOC_NSYS", None)
    done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, env=env, timeout=400)
    rows = json.loads((tmp_path / "out" / "results.json").read_text())["runs"]
    assert [(row["name"], row["state"]) for row in rows] == [
        ("tiny", "ok"),
        ("8b", "ok"),
        ("8b-recompute", "ok"),
        ("8b-automatic-gc", "ok"),
    ], done.stderr
    assert all(row["step_ms"] > 0 and row["analysed_ms"] > 0 and row["agrees"] for row in rows)
    assert all(0 < row["mfu"] < 1 for row in rows)  # of the peak that the run measured
    assert done.returncode == 0
    assert done.stdout == (tmp_path / "out" / "table.md").read_text()
    assert len(list((tmp_path / "out").glob("*/traces/rank0.json.gz"))) == 4


def test_without_a_device_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    need_megatron()
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "-o", str(tmp_path / "out")])
    code, said = gpu_check.main(), capsys.readouterr().err
    assert (code, said.count("\n")) == (2, 1)
    assert "sees no CUDA device" in said
    assert not (tmp_path / "out").exists()
