"""Kill, resume, stop, crash: what a run leaves behind and what it says."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from perfdoc.profiling.run_directory import RunDirectory
from tests.trainer.launch import Ranks, need_megatron, run_cases, said, start
from tests.trainer.test_parity import OVERLAPS, RELATIVE, SMALL, TP2

MAIN = ["-m", "perfdoc.trainer.main", "--config", "tiny"]
ITERS = 12
KILLED_AFTER = 7
SAVED_AT = 6


def _losses(out: Path, rank: int = 0) -> dict[int, float]:
    lines = (out / "steps" / f"rank{rank}.jsonl").read_text().splitlines()
    return {record["step"]: record["loss"] for record in map(json.loads, lines)}


def _settings(folder: Path, *more: str) -> list[str]:
    # Dropout makes the random states matter: without them the resumed losses would differ.
    return [
        *SMALL,
        *OVERLAPS,
        f"train_iters={ITERS}",
        f"data_cache={folder / 'data'}",
        "hidden_dropout=0.1",
        "attention_dropout=0.1",
        *more,
    ]


def _start(folder: Path, name: str, settings: list[str], ranks: int = 2) -> Ranks:
    return start([*MAIN, "--out", str(folder / name), *settings], ranks, folder / f"{name}-said")


def _wait_for(ready: object, timeout_s: float = 90.0) -> None:
    limit = time.monotonic() + timeout_s
    while not ready():  # type: ignore[operator]
        if time.monotonic() > limit:
            raise TimeoutError
        time.sleep(0.02)


def _steps_done(out: Path) -> int:
    path = out / "steps" / "rank0.jsonl"
    return len(path.read_text().splitlines()) if path.is_file() else 0


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run `whole`, and a run `killed` that lost both ranks after KILLED_AFTER steps."""
    need_megatron()
    folder = tmp_path_factory.mktemp("kill")
    assert _start(folder, "whole", _settings(folder)).wait(120) == [0, 0]
    settings = _settings(folder, f"save={folder / 'saved'}", "save_interval=3", "keep_checkpoints=9")
    ranks = _start(folder, "killed", settings)
    try:
        _wait_for(lambda: _steps_done(folder / "killed") >= KILLED_AFTER)
    finally:
        ranks.kill()
    return folder


def test_a_resumed_run_repeats_the_uninterrupted_one_exactly(killed: Path) -> None:
    # How far the run came after the seventh step is a race; the checkpoint is one that it surely had.
    settings = _settings(killed, f"load={killed / 'saved'}", f"load_step={SAVED_AT}")
    assert _start(killed, "resumed", settings).wait(120) == [0, 0]
    whole, resumed = _losses(killed / "whole"), _losses(killed / "resumed")
    assert sorted(resumed) == list(range(SAVED_AT + 1, ITERS + 1))
    assert resumed == {step: whole[step] for step in resumed}


@pytest.mark.slow
def test_another_layout_resumes_the_same_run(tmp_path_factory: pytest.TempPathFactory) -> None:
    """DP2 for six steps, then one rank and TP2 with sequence parallelism: the losses of DP2 for twelve."""
    need_megatron()
    folder = tmp_path_factory.mktemp("other")
    common = [*SMALL, f"train_iters={ITERS}", f"data_cache={folder / 'data'}"]
    saving = [*common, f"save={folder / 'saved'}", "save_interval=3", "keep_checkpoints=9"]
    two = run_cases({"dp2": saving}, 2, folder)["dp2"]
    loading = [*common, f"load={folder / 'saved'}", f"load_step={SAVED_AT}"]
    one = run_cases({"one": loading}, 1, folder / "one")["one"]
    tp2 = run_cases({"tp2": [*loading, *TP2]}, 2, folder / "tp2")["tp2"]
    for other in (one, tp2):
        assert other["loss"] == pytest.approx(two["loss"][SAVED_AT:], rel=RELATIVE)
        assert other["grad_norm"] == pytest.approx(two["grad_norm"][SAVED_AT:], rel=RELATIVE)


KINDS = {
    "all_reduce": ["use_distributed_optimizer=false"],
    "bf16": ["params_dtype=bf16"],
    "fp16": ["params_dtype=fp16"],
    "experts": ["num_moe_experts=4", "moe_ffn_hidden_size=32", "expert_model_parallel_size=2"],
    "vpp2": [
        "pipeline_model_parallel_size=2",
        "virtual_pipeline_model_parallel_size=2",
        "overlap_p2p_comm=true",
    ],
}


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Each kind of optimizer, format and pipeline, trained for six steps and again from its third."""
    need_megatron()
    folder = tmp_path_factory.mktemp("kinds")
    cases = {}
    for name, overrides in KINDS.items():
        saved = folder / f"{name}-saved"
        common = [*SMALL, "hidden_dropout=0.1", f"data_cache={folder / 'data'}", *overrides]
        cases[name] = [*common, f"save={saved}", "save_interval=3"]
        cases[f"{name}-again"] = [*common, f"load={saved}", "load_step=3"]
    return run_cases(cases, 2, folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_every_kind_resumes_exactly(kinds: dict[str, Any], name: str) -> None:
    whole, again = kinds[name], kinds[f"{name}-again"]
    assert again["steps"] == [4, 5, 6]
    assert again["loss"] == whole["loss"][3:]
    assert again["grad_norm"] == whole["grad_norm"][3:]
    assert whole["loss"][-1] < whole["loss"][0]


@pytest.mark.slow
def test_sigterm_ends_the_step_saves_and_leaves(tmp_path: Path) -> None:
    need_megatron()
    settings = _settings(tmp_path, "train_iters=100000", f"save={tmp_path / 'saved'}")
    ranks = _start(tmp_path, "stopped", settings)
    try:
        _wait_for(lambda: _steps_done(tmp_path / "stopped") >= 3)
        ranks.processes[1].send_signal(signal.SIGTERM)  # one rank is told; all of them stop
        assert ranks.wait(60) == [130, 130]
    finally:
        ranks.kill()
    done = max(_losses(tmp_path / "stopped"))
    assert [path.name for path in (tmp_path / "saved").glob("step_*")] == [f"step_{done:08d}"]
    assert f"stopped after step {done}, as asked" in said(tmp_path / "stopped-said")
    manifest = RunDirectory.open(tmp_path / "stopped").manifest()
    assert (manifest.status, manifest.end_reason) == ("stopped", f"stopped after step {done}, as asked")


@pytest.mark.slow
def test_a_killed_rank_ends_the_others(tmp_path: Path) -> None:
    need_megatron()
    settings = _settings(tmp_path, "train_iters=100000", f"save={tmp_path / 'saved'}", "save_interval=2")
    ranks = _start(tmp_path, "run", settings)
    try:
        _wait_for(lambda: _steps_done(tmp_path / "run") >= 5)
        os.killpg(ranks.processes[1].pid, signal.SIGKILL)
        codes = ranks.wait(60)
    finally:
        ranks.kill()
    assert codes[1] == -signal.SIGKILL
    assert codes[0] == 1
    assert "rank 0: ended because another rank did" in said(tmp_path / "run-said")
    assert any((tmp_path / "saved").glob("step_????????/metadata.json"))


@pytest.mark.slow
def test_a_crash_under_torchrun_is_told_first(tmp_path: Path) -> None:
    """Rank 1 may write 1024 bytes per file, as if its disk were full.

    Step records wait for a disk that has room again; a checkpoint that cannot be written ends the run.
    """
    need_megatron()
    out, saving = tmp_path / "run", [f"save={tmp_path / 'saved'}", "save_interval=6"]
    command = shlex.join([sys.executable, *MAIN, "--out", str(out), *_settings(tmp_path, *saving)])
    limited = f'[ "$LOCAL_RANK" = 1 ] && ulimit -f 1; exec {command}'
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
    started = start([*torchrun, "bash", "-c", limited], 1, tmp_path / "said")
    assert started.wait(90) == [1]
    lines = [line for line in said(tmp_path / "said").splitlines() if line.startswith("perfdoc:")]
    assert "run/steps/rank1.jsonl: cannot be written: File too large" in lines[0]
    assert lines[1].startswith("perfdoc: rank 0: checkpoint.save: ")  # rank 0 gathers what failed anywhere
    assert "could not be written by rank 1 " in lines[1]
    assert lines[1].endswith("File too large")
    assert lines[2:] in ([], ["perfdoc: rank 1: ended because another rank did"])  # torchrun may be faster


LIMITED = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
runpy.run_module("perfdoc.trainer.main", run_name="__main__", alter_sys=True)
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of four steps with its checkpoint, and its data indexed for six."""
    need_megatron()
    folder = tmp_path_factory.mktemp("saved")
    common = [*SMALL, f"data_cache={folder / 'data'}"]
    run_cases({"data": common, "four": [*common, "train_iters=4", f"save={folder / 'saved'}"]}, 1, folder)
    return folder


@pytest.mark.slow
def test_a_full_disk_leaves_the_last_checkpoint(saved: Path) -> None:
    """No file may grow beyond 60 kB, as if the disk were full: the weights alone are more."""
    folders = [f"save={saved / 'saved'}", f"load={saved / 'saved'}"]
    arguments = [*MAIN[2:], "--out", str(saved / "full"), *SMALL, f"data_cache={saved / 'data'}", *folders]
    assert start(["-c", LIMITED, *arguments], 1, saved / "full-said").wait(90) == [1]
    lines = [line for line in said(saved / "full-said").splitlines() if not line.startswith("step ")]
    assert len(lines) == 1
    assert "checkpoint.save: " in lines[0]
    assert "could not be written" in lines[0]
    manifest = RunDirectory.open(saved / "full").manifest()
    assert manifest.status == "failed"
    assert "could not be written" in manifest.end_reason
    again = [*SMALL, f"data_cache={saved / 'data'}", f"load={saved / 'saved'}"]
    assert run_cases({"again": again}, 1, saved / "again")["again"]["steps"] == [5, 6]


@pytest.mark.slow
def test_a_checkpoint_of_another_model_is_one_line(saved: Path) -> None:
    settings = [*SMALL, "hidden_size=64", f"data_cache={saved / 'data'}", f"load={saved / 'saved'}"]
    assert start([*MAIN, *settings], 1, saved / "other-said").wait(60) == [2]
    lines = said(saved / "other-said").splitlines()
    assert len(lines) == 1
    assert "step_00000004 cannot be read, or is of another model: " in lines[0]


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("text=/nowhere/at/all.txt", "data.text = /nowhere/at/all.txt: no such file"),
        ("load=/nowhere/at/all", "checkpoint.load = /nowhere/at/all: no complete checkpoint there"),
        ("load_step=3", "checkpoint.load_step = 3: needs checkpoint.load"),
        ("save=/proc/perfdoc", "checkpoint.save: /proc/perfdoc: "),
        ("tensor_model_parallel_size=3", "1 ranks cannot be divided"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, setting: str, expected: str) -> None:
    need_megatron()
    settings = _settings(tmp_path, "train_iters=3", setting)
    codes = _start(tmp_path, "bad", settings, ranks=1).wait(60)
    assert codes[0] in (1, 2)
    lines = [line for line in said(tmp_path / "bad-said").splitlines() if not line.startswith("step ")]
    assert len(lines) == 1
    assert expected in lines[0]
