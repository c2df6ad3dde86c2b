"""Kill, resume, stop, crash: what a run leaves behind and what it says."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.trainer.launch import Ranks, need_megatron, run_cases, said, start
from tests.trainer.test_parity import OVERLAPS, RELATIVE, SMALL, TP2

pytestmark = pytest.mark.slow

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
    return start([*MAIN, "--out", str(folder / name), *settings], ranks, folder / name)


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
    for late in (folder / "saved").glob("step_*"):  # how far it came after the seventh step is a race
        if late.name > f"step_{SAVED_AT:08d}":
            shutil.rmtree(late)
    return folder


def test_a_resumed_run_repeats_the_uninterrupted_one_exactly(killed: Path) -> None:
    settings = _settings(killed, f"load={killed / 'saved'}")
    assert _start(killed, "resumed", settings).wait(120) == [0, 0]
    whole, resumed = _losses(killed / "whole"), _losses(killed / "resumed")
    assert sorted(resumed) == list(range(SAVED_AT + 1, ITERS + 1))
    assert resumed == {step: whole[step] for step in resumed}


def test_another_layout_resumes_the_same_run(tmp_path_factory: pytest.TempPathFactory) -> None:
    """DP2 for six steps, then one rank and TP2 with sequence parallelism: the losses of DP2 for twelve."""
    need_megatron()
    folder = tmp_path_factory.mktemp("other")
    common = [*SMALL, f"train_iters={ITERS}", f"data_cache={folder / 'data'}"]
    saving = [*common, f"save={folder / 'saved'}", "save_interval=3", "keep_checkpoints=9"]
    two = run_cases({"dp2": saving}, 2, folder)["dp2"]
    start_from = folder / "start" / f"step_{SAVED_AT:08d}"
    shutil.copytree(folder / "saved" / start_from.name, start_from)
    loading = [*common, f"load={start_from.parent}"]
    one = run_cases({"one": loading}, 1, folder / "one")["one"]
    tp2 = run_cases({"tp2": [*loading, *TP2]}, 2, folder / "tp2")["tp2"]
    for other in (one, tp2):
        assert other["loss"] == pytest.approx(two["loss"][SAVED_AT:], rel=RELATIVE)
        assert other["grad_norm"] == pytest.approx(two["grad_norm"][SAVED_AT:], rel=RELATIVE)


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
    assert [path.name for path in (tmp_path / "saved").iterdir()] == [f"step_{done:08d}"]
    assert f"stopped after step {done}, as asked" in said(tmp_path / "stopped")


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
    assert "rank 0: ended because another rank did" in said(tmp_path / "run")
    assert any((tmp_path / "saved").glob("step_????????/metadata.json"))


def test_a_crash_under_torchrun_is_told_first(tmp_path: Path) -> None:
    """Rank 1 may write 1024 bytes per file, as if its disk were full; rank 0 only loses its peer."""
    need_megatron()
    out = tmp_path / "run"
    command = shlex.join([sys.executable, *MAIN, "--out", str(out), *_settings(tmp_path)])
    limited = f'[ "$LOCAL_RANK" = 1 ] && ulimit -f 1; exec {command}'
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
    started = start([*torchrun, "bash", "-c", limited], 1, tmp_path)
    assert started.wait(90) == [1]
    lines = [line for line in said(tmp_path).splitlines() if line.startswith("perfdoc:")]
    assert "rank 1: [Errno 27] File too large" in lines[0]
    assert "rank1.jsonl" in lines[0]
    assert lines[1:] in ([], ["perfdoc: rank 0: ended because another rank did"])  # torchrun may be faster


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("text=/nowhere/at/all.txt", "data.text = /nowhere/at/all.txt: no such file"),
        ("load=/nowhere/at/all", "checkpoint.load = /nowhere/at/all: no complete checkpoint there"),
        ("save=/proc/perfdoc", "checkpoint.save: /proc/perfdoc: "),
        ("tensor_model_parallel_size=3", "1 ranks cannot be divided"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, setting: str, expected: str) -> None:
    need_megatron()
    settings = _settings(tmp_path, "train_iters=3", setting)
    codes = _start(tmp_path, "bad", settings, ranks=1).wait(60)
    assert codes[0] in (1, 2)
    lines = [line for line in said(tmp_path / "bad").splitlines() if not line.startswith("step ")]
    assert len(lines) == 1
    assert expected in lines[0]
