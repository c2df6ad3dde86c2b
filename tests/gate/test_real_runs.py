"""The gate over real runs of the trainer: equal runs pass, a planted delay fails and is placed.

A smoke test that holds on any machine, so its delay (three times a step against a limit of a half) says
nothing of how small a loss is seen: benchmarks/gate_rates.py measures that, with 5 %.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.launch import need_megatron

pytestmark = pytest.mark.slow

SETTINGS = [
    *("data_parallel_size=1", "global_batch_size=8", "micro_batch_size=4", "train_iters=26"),
    *("eval_interval=1000", "manual_gc_interval=1000"),
]
SLOW_DATA = Path(__file__).parents[2] / "benchmarks" / "slow_data"
DELAY_MS = 37.5


def run(folder: Path, name: str, *, slow: bool = False) -> Path:
    """One run of the trainer, its report included."""
    paths = [str(SLOW_DATA)] if slow else []
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])]),
        "PERFDOC_DATA_DELAY_MS": str(DELAY_MS),
    }
    line = [sys.executable, "-m", "perfdoc", "run", "tiny", *SETTINGS, f"data_cache={folder / 'data'}"]
    done = subprocess.run(
        [*line, "-o", str(folder / name)], capture_output=True, text=True, timeout=240, env=environment
    )
    assert done.returncode == 0, done.stderr
    return folder / name


def gate(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "perfdoc", "gate", *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, timeout=120, cwd=folder)


def test_a_planted_delay_is_found_and_placed(tmp_path: Path) -> None:
    need_megatron()
    baseline = [run(tmp_path, f"base{i}") for i in range(3)]
    assert gate(tmp_path, "record", *baseline).returncode == 0
    # On a machine that others use equal runs may be inconclusive, but hardly slower by a half.
    same = gate(tmp_path, "check", run(tmp_path, "same"), "--practical", "0.5")
    assert same.returncode in (0, 3), same.stdout
    # Eight samples a step: 300 ms more in a step of about 100.
    slow = gate(tmp_path, "check", run(tmp_path, "slow", slow=True), "--practical", "0.5")
    assert slow.returncode == 1, slow.stdout
    first = slow.stdout.splitlines()[0]
    assert "In profiled steps idle.data by" in first, slow.stdout
