"""The gate over real runs of the trainer: equal runs do not fail, a planted delay fails and is placed.

A delay of 5 % of a step is seen in the wait for data of the step log, also on a machine whose steps scatter
by more. That profiled steps name their leaf is shown with a delay that no machine hides.
benchmarks/gate_rates.py measures how often either goes wrong.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfdoc.compare.runs import read_run
from tests.trainer.launch import need_megatron

pytestmark = pytest.mark.slow

SETTINGS = [
    *("data_parallel_size=1", "global_batch_size=8", "micro_batch_size=4", "train_iters=26"),
    *("eval_interval=1000", "manual_gc_interval=1000"),
]
SLOW_DATA = Path(__file__).parents[2] / "benchmarks" / "slow_data"
SAMPLES = 8
"""Of a step: what slow_data delays."""


def run(folder: Path, name: str, *words: str, delay_ms: float = 0.0) -> Path:
    """One run of the trainer, its report included where it is profiled."""
    paths = [str(SLOW_DATA)] if delay_ms else []
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])]),
        "PERFDOC_DATA_DELAY_MS": str(delay_ms),
    }
    line = [sys.executable, "-m", "perfdoc", "run", "tiny", *SETTINGS, f"data_cache={folder / 'data'}"]
    done = subprocess.run(
        [*line, *words, "-o", str(folder / name)],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return folder / name


def gate(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "perfdoc", "gate", *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, timeout=120, cwd=folder)


def test_a_delay_of_5_per_cent_fails_and_equal_runs_do_not(tmp_path: Path) -> None:
    need_megatron()

    def bare(name: str, delay_ms: float = 0.0) -> Path:
        return run(tmp_path, name, "--profiler", "none", delay_ms=delay_ms)

    first = bare("first")
    step_ms = read_run(first, label="", commit=None, peak_tflops=None).figures.median_step_ns / 1e6
    baseline, same, late = [], [], []
    for i in range(3):  # in turn, so that no side has a slow stretch to itself
        baseline.append(bare(f"base{i}"))
        late.append(bare(f"late{i}", 0.05 * step_ms / SAMPLES))
        same.append(bare(f"same{i}"))
        if i < 2:
            baseline.append(bare(f"more{i}"))
    assert gate(tmp_path, "record", *baseline).returncode == 0
    equal = gate(tmp_path, "check", *same)
    assert equal.returncode in (0, 3), equal.stdout
    slow = gate(tmp_path, "check", *late)
    assert slow.returncode == 1, slow.stdout
    assert "waiting for data (step log)" in slow.stdout.splitlines()[0], slow.stdout


def test_profiled_steps_name_the_leaf(tmp_path: Path) -> None:
    need_megatron()
    baseline = [run(tmp_path, f"base{i}") for i in range(3)]
    # Runs of a machine that others use may differ by more than the limit of 5 % that two runs have.
    assert gate(tmp_path, "record", *baseline, "--practical", "0.5").returncode == 0
    # 300 ms more in a step of about 100.
    slow = gate(tmp_path, "check", run(tmp_path, "slow", delay_ms=37.5), "--practical", "0.5")
    assert slow.returncode == 1, slow.stdout
    first = slow.stdout.splitlines()[0]
    assert "Growth in profiled steps: idle.data +" in first, slow.stdout
