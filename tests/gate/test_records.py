"""Runs of other trainers by their rows of steps: `gate` takes a folder of record() as it takes a log."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from perfdoc.compare.damage import DamagedRunError
from perfdoc.compare.runs import read_run
from perfdoc.profiling.run_directory import RunDirectory
from perfdoc.profiling.step_log import StepLog
from perfdoc.traces import TraceError
from tests.command import perfdoc
from tests.watch.jobs import Job


def recorded(folder: Path, seed: int, *, factor: float = 1.0, steps: int = 60) -> Path:
    run = RunDirectory.join(folder)
    for rank, rows in enumerate(Job(ranks=2, steps=steps, seed=seed, facts={"micro_batch": 4}).rows()):
        log = StepLog(run.steps_path(rank))
        for row in rows:
            log.write(msgspec.structs.replace(row, duration_ns=round(factor * row.duration_ns)))
        log.close()
    return folder


def test_a_slower_run_fails_the_gate(tmp_path: Path) -> None:
    old = [recorded(tmp_path / f"old{seed}", seed) for seed in range(4)]
    same = [recorded(tmp_path / f"same{seed}", 10 + seed) for seed in range(3)]
    slow = [recorded(tmp_path / f"slow{seed}", 20 + seed, factor=1.2) for seed in range(3)]
    base = ["--baselines", str(tmp_path / "base")]
    assert perfdoc("gate", "record", *map(str, old), *base).returncode == 0
    assert perfdoc("gate", "check", *map(str, same), *base).returncode == 0
    assert perfdoc("gate", "check", *map(str, slow), *base).returncode == 1


def test_what_ran_is_what_the_rows_say(tmp_path: Path) -> None:
    run = read_run(recorded(tmp_path, 0), label="", commit=None, peak_tflops=None)
    assert run.world_size == 2
    assert (run.facts["config.micro_batch"], run.facts["trainer"], run.facts["device"]) == (
        4,
        "record",
        "cuda",
    )
    assert run.figures.logged_ns is not None
    assert set(run.figures.logged_ns) == {"data", "garbage"}


def test_a_rank_without_rows_is_a_damaged_run(tmp_path: Path) -> None:
    recorded(tmp_path, 0)
    RunDirectory(tmp_path).steps_path(1).unlink()
    with pytest.raises(DamagedRunError, match="no time at all"):
        read_run(tmp_path, label="", commit=None, peak_tflops=None)
    RunDirectory(tmp_path).steps_path(0).write_text("")
    with pytest.raises(TraceError, match="holds no step log"):
        read_run(tmp_path, label="", commit=None, peak_tflops=None)
