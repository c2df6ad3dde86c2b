"""How `perfdoc run` ends when it is stopped, or something breaks: what it says, leaves, and clears away."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from perfdoc.profiling.run_directory import RunDirectory
from tests.cli.running import ENDLESS, PLANT, SMALL, Running, needs_training
from tests.command import perfdoc

pytestmark = pytest.mark.slow

SAVING = ("save=saved", "save_interval=10")


def saved(folder: Path) -> list[int]:
    """Steps of the complete checkpoints."""
    return sorted(
        int(path.parent.name[5:]) for path in (folder / "saved").glob("step_????????/metadata.json")
    )


def manifest(folder: Path) -> tuple[str, str]:
    found = RunDirectory.open(folder / "out").manifest()
    return found.status, found.end_reason


def resumed(folder: Path, *more: str) -> int:
    """The first step of a run that goes on from the last checkpoint; it has to train."""
    last = saved(folder)[-1]
    arguments = (*SMALL, f"train_iters={last + 2}", "load=saved", "--profiler", "none", *more)
    assert Running.start(folder, *arguments, out="again", name="again").end().code == 0
    lines = (folder / "again" / "steps" / "rank0.jsonl").read_text().splitlines()
    return int(json.loads(lines[0])["step"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name)
def test_a_stop_saves_and_says_so(tmp_path: Path, number: signal.Signals) -> None:
    needs_training()
    run = Running.start(tmp_path, *ENDLESS, "save=saved", "--profiler", "none")
    run.wait_for_steps(3)
    run.process.send_signal(number)  # to perfdoc alone, not to its group
    assert run.survivors() == []
    ended = run.end()
    assert ended.code == 130
    (done,) = saved(tmp_path)
    assert ended.lines == [
        "perfdoc: no profiler: asked for",
        "perfdoc: stopping after this step; a second signal ends it at once",
        f"stopped after step {done}, as asked",
        f"perfdoc: stopped: last checkpoint saved/step_{done:08d}",
    ]
    assert manifest(tmp_path) == ("stopped", f"stopped after step {done}, as asked")


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    needs_training()
    # A step of minutes: the first signal alone would wait for its end.
    long = (*SMALL, "train_iters=2", "lr_warmup_iters=1", "global_batch_size=80000")
    run = Running.start(tmp_path, *long, "--profiler", "none")
    run.wait_for(lambda: (tmp_path / "out" / "run.json").exists())
    run.process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        run.process.wait(timeout=2)
    run.process.send_signal(signal.SIGINT)
    run.process.wait(timeout=120)
    assert run.survivors() == []
    ended = run.end()
    assert ended.code == 130
    assert ended.lines[1:] == [
        "perfdoc: stopping after this step; a second signal ends it at once",
        "perfdoc: stopped: no checkpoint",
    ]
    assert manifest(tmp_path) == ("failed", "ended at once by a second signal")


def test_a_killed_rank_is_one_line(tmp_path: Path) -> None:
    needs_training()
    run = Running.start(tmp_path, *ENDLESS, *SAVING, "--profiler", "none")
    run.wait_for_steps(25)
    os.kill(run.rank_pid(1), signal.SIGKILL)
    assert run.survivors() == []  # not even the checkpoint's server process, which nobody else would end
    ended = run.end()
    assert ended.code == 1
    why = "rank 1 was killed (SIGKILL); often by the system, out of memory"
    last = saved(tmp_path)[-1]
    assert ended.lines[1:] == [
        f"perfdoc: {why}",
        f"perfdoc: training failed: last checkpoint saved/step_{last:08d}",
    ]
    assert manifest(tmp_path) == ("failed", why)
    assert resumed(tmp_path) == last + 1


def test_a_rank_that_raises_is_told_first(tmp_path: Path) -> None:
    needs_training()
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(PLANT)
    run = Running.start(tmp_path, *ENDLESS, *SAVING, "--profiler", "none", PYTHONPATH=str(tmp_path / "site"))
    run.wait_for_steps(15)
    os.kill(run.rank_pid(1), signal.SIGUSR1)
    assert run.survivors() == []
    ended = run.end()
    assert ended.code == 1
    last = saved(tmp_path)[-1]
    assert ended.lines[1:] == [
        "perfdoc: rank 1: RuntimeError: planted error in two lines",
        "perfdoc: training failed: traceback in out/errors/rank1.json; "
        f"last checkpoint saved/step_{last:08d}",
    ]
    details = json.loads((tmp_path / "out" / "errors" / "rank1.json").read_text())
    assert "planted error" in details["traceback"]
    assert manifest(tmp_path) == ("failed", "rank 1: planted error in two lines")


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("text=/nowhere/at/all.txt", "data.text = /nowhere/at/all.txt: no such file"),
        ("data_path=[/nowhere/set]", "data.data_path: /nowhere/set.bin: no such file"),
        (
            "data_cache=/proc/cache",
            "data.data_cache: /proc/cache: cannot be written: No such file or directory",
        ),
        ("load=/nowhere", "checkpoint.load = /nowhere: no complete checkpoint there"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(tmp_path: Path, setting: str, line: str) -> None:
    needs_training()
    ended = Running.start(tmp_path, *SMALL, "train_iters=4", setting, "--profiler", "none").end()
    # Files that are not there are missed before a process starts, and before the profiler is told.
    told = [each for each in ended.lines if each != "perfdoc: no profiler: asked for"]
    assert (ended.code, told) == (2, [f"perfdoc: {line}"])
    assert not (tmp_path / "out").exists()  # the same command may be given again


def test_a_fresh_run_leaves_other_checkpoints_alone(tmp_path: Path) -> None:
    needs_training()
    (tmp_path / "saved" / "step_00000007").mkdir(parents=True)
    (tmp_path / "saved" / "step_00000007" / "metadata.json").write_text("{}")
    done = perfdoc("run", *SMALL, "save=saved", "--profiler", "none", "-o", "out", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == (
        "perfdoc: checkpoint.save = saved: holds checkpoints of another run (up to step 7). "
        "Give another folder, or go on from there with checkpoint.load=saved.\n"
    )
    assert not (tmp_path / "out").exists()


def test_ranks_end_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    needs_training()
    run = Running.start(tmp_path, *ENDLESS, *SAVING, "--profiler", "none")
    run.wait_for_steps(12)
    os.kill(run.launcher_pid(), signal.SIGKILL)
    assert run.survivors() == []
    ended = run.end()
    assert ended.code not in (0, 130)
    assert "perfdoc: the launcher was killed, so its ranks end" in ended.lines
    assert manifest(tmp_path)[0] == "failed"
    last = saved(tmp_path)[-1]
    assert ended.lines[-1].endswith(f"last checkpoint saved/step_{last:08d}")
    assert resumed(tmp_path) == last + 1


def test_a_run_that_is_killed_stops_as_if_asked_to(tmp_path: Path) -> None:
    needs_training()
    run = Running.start(tmp_path, *ENDLESS, "save=saved", "--profiler", "none")
    run.wait_for_steps(3)
    os.kill(run.process.pid, signal.SIGKILL)
    assert run.survivors(wait_s=60) == []
    assert run.end().lines[1:3] == [
        "perfdoc: perfdoc run was killed",
        "perfdoc: stopping after this step; a second signal ends it at once",
    ]
    (done,) = saved(tmp_path)
    assert resumed(tmp_path) == done + 1
