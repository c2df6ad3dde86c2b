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

DELAY_S = 0.15
SETTINGS = [
    *("data_parallel_size=1", "global_batch_size=8", "micro_batch_size=4", "train_iters=26"),
    *("eval_interval=1000", "manual_gc_interval=1000"),
]
PLANT = f"""
import importlib.abc, importlib.util, sys, time

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "perfdoc.trainer.data":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module
        def late(module):
            run(module)
            batches = module.batches
            def slow(*arguments, **named):
                for batch in batches(*arguments, **named):
                    time.sleep({DELAY_S})
                    yield batch
            module.batches = slow
        spec.loader.exec_module = late
        return spec

sys.meta_path.insert(0, Finder())
"""


def run(folder: Path, name: str, plant: Path | None = None) -> Path:
    """One run of the trainer, its report included."""
    paths = [str(plant)] if plant else []
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])
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
    (tmp_path / "plant").mkdir()
    (tmp_path / "plant" / "sitecustomize.py").write_text(PLANT)
    # Two micro-batches a step: 300 ms more in a step of about 100.
    slow = gate(tmp_path, "check", run(tmp_path, "slow", tmp_path / "plant"), "--practical", "0.5")
    assert slow.returncode == 1, slow.stdout
    first = slow.stdout.splitlines()[0]
    assert "In profiled steps idle.data by" in first, slow.stdout
