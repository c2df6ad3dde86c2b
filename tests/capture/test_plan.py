"""`perfdoc capture` before anything starts: the job's words taken apart, the line, the window."""

from __future__ import annotations

import os
import shlex
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from perfdoc.capture import prepare
from perfdoc.capture.asked import Asked
from perfdoc.capture.prepare import plan
from perfdoc.profiling.errors import UserError
from perfdoc.profiling.nsys.command import Nsys
from perfdoc.profiling.own.asked_window import VARIABLE, ask, asked
from perfdoc.run import torchrun
from perfdoc.run.torchrun import read_job
from tests.command import perfdoc

NSYS = Nsys(path=Path("/opt/nsys"), version=(2025, 1, 1))


@pytest.fixture(autouse=True)
def nsys_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(prepare, "find_nsys", lambda: NSYS)
    monkeypatch.setattr(torchrun.shutil, "which", lambda program: None)
    for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PYTHON_EXEC"):
        monkeypatch.delenv(name, raising=False)


def on(device: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = [tmp_path / "driver", tmp_path / "nvidiactl"]
    if device == "cuda":
        files[1].touch()  # a sandbox without /proc/driver
    monkeypatch.setattr(prepare, "_GPU_FILES", files)


def test_pytorch_knows_of_a_gpu_whose_driver_shows_no_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    on("cpu", monkeypatch, tmp_path)
    assert prepare._device() == "cpu"
    monkeypatch.setattr(prepare, "installed", lambda name: "2.11.0+cu130")
    sees = types.SimpleNamespace(cuda=types.SimpleNamespace(is_available=lambda: True))
    monkeypatch.setitem(sys.modules, "torch", sees)
    assert prepare._device() == "cuda"


@pytest.mark.parametrize(
    ("line", "launcher", "program", "ranks"),
    [
        ("torchrun --nproc-per-node 8 t.py -x", "torchrun --nproc-per-node 8", "python -u t.py -x", 8),
        ("torchrun --nproc-per-node=2 -m a.b -x", "torchrun --nproc-per-node=2", "python -u -m a.b -x", 2),
        ("/x/torchrun --no-python bash go.sh", "/x/torchrun", "bash go.sh", 1),
        ("torchrun --nnodes 2 --nproc-per-node 8 t.py", "torchrun --nnodes 2 --nproc-per-node 8",
         "python -u t.py", None),
        ("python -m torch.distributed.run --nproc-per-node gpu t.py",
         "python -m torch.distributed.run --nproc-per-node gpu", "python -u t.py", None),
        ("python t.py --steps 3", "", "python t.py --steps 3", 1),
    ],
)  # fmt: skip
def test_a_job_is_taken_apart(
    needs_torch: None, line: str, launcher: str, program: str, ranks: int | None
) -> None:
    job = read_job(line.split())
    assert (" ".join(job.launcher), " ".join(job.program), job.ranks_here) == (launcher, program, ranks)


def test_what_torchrun_refuses_is_refused(needs_torch: None) -> None:
    with pytest.raises(UserError):
        read_job(["torchrun", "--no-such-option", "t.py"])
    with pytest.raises(UserError, match="no command"):
        read_job([])


def test_each_rank_is_under_an_nsys_of_its_own(
    needs_torch: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    on("cuda", monkeypatch, tmp_path)
    words = ["torchrun", "--nproc-per-node", "8", "t.py"]
    planned = plan(Asked(words=words, steps="10:14", ranks="0,5", output=Path("out"), scheduler=False))
    line = planned.command
    assert line[:4] == ["torchrun", "--nproc-per-node", "8", "--no-python"]
    assert line[4:8] == [sys.executable, "-m", "perfdoc.profiling.nsys.rank", "0,5"]
    count = int(line[9])
    under = line[10 : 10 + count]
    assert under[0] == "/opt/nsys"
    assert {"--capture-range=cudaProfilerApi", "--cuda-graph-trace=node", "--trace=cuda,nvtx"} <= set(under)
    assert f"--output={tmp_path / 'out' / 'traces' / '.part-nsys' / 'rank%q{RANK}'}" in under
    assert under[-2:] == ["-m", "perfdoc.profiling.nsys.begun"]
    assert line[10 + count :] == ["python", "-u", "t.py"]
    assert planned.window is not None
    assert (planned.window.start, planned.window.steps, planned.window.ranks) == (10, 4, (0, 5))
    environment: dict[str, str] = {}
    ask(planned.window, environment)
    assert asked(environment) == planned.window
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("more", "there", "not_there"),
    [
        ({}, set(), {"--capture-range=cudaProfilerApi"}),
        ({"own_range": True}, {"--capture-range=cudaProfilerApi"}, set()),
        ({"delay_s": 60.0, "duration_s": 9.5}, {"--delay=60", "--duration=10"},
         {"--capture-range=cudaProfilerApi"}),
        ({"gpu_metrics": True}, {"--gpu-metrics-devices={LOCAL_RANK}"}, set()),
    ],
)  # fmt: skip
def test_the_window_of_a_script_without_marks(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    more: dict[str, float],
    there: set[str],
    not_there: set[str],
) -> None:
    on("cuda", monkeypatch, tmp_path)
    planned = plan(Asked(words=["python", "t.py"], scheduler=False, **more))  # type: ignore[arg-type]
    assert there <= set(planned.command)
    assert not not_there & set(planned.command)
    assert planned.window is None


def test_the_scheduler_is_traced_where_it_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    for said, option in ((prepare._SCHEDULER_OK, "process-tree"), ("(process-tree): Fail", "none")):
        monkeypatch.setattr(prepare, "_status", lambda nsys, said=said: said)
        planned = plan(Asked(words=["python", "t.py"]))
        assert [w for w in planned.command if w.startswith("--cpuctxsw")] == [f"--cpuctxsw={option}"]
        assert any("scheduler" in note for note in planned.notes) == (option == "none")


def test_behind_another_launcher_each_rank_is_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "3")
    monkeypatch.setenv("SLURM_NTASKS", "8")
    make: Callable[..., prepare.Plan] = lambda **more: plan(  # noqa: E731
        Asked(words=["python", "t.py"], steps="1:2", scheduler=False, **more)
    )
    planned = make(output=Path("out"), ranks="0,3")
    assert (planned.rank, planned.one_of_several, planned.left_out) == (3, True, False)
    assert any(word.endswith("rank3") for word in planned.command)
    assert make(output=Path("out"), ranks="0").left_out
    with pytest.raises(UserError, match="-o"):
        make()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"steps": "10"}, "FIRST:END"),
        ({"steps": "4:4"}, "4:4"),
        ({"ranks": "a"}, "--ranks"),
        ({"steps": "1:2", "duration_s": 5.0}, "one window"),
        ({"profiler": "torch"}, "--steps"),
        ({"profiler": "torch", "steps": "1:2", "duration_s": 5.0}, "of nsys"),
        ({"words": ["srun", "python", "t.py"]}, "in front: srun …"),
        ({"words": ["accelerate", "launch", "t.py"]}, "accelerate launch --no_python …"),
        ({"words": ["/x/deepspeed", "t.py"]}, "deepspeed --no_python --no_local_rank …"),
        ({"words": ["python", "-m", "accelerate.commands.launch", "t.py"]}, "accelerate launch --no_python"),
        ({"words": ["python", "-m", "torch.distributed.launch", "t.py"]}, "use torchrun"),
    ],
)
def test_what_cannot_be_is_one_line(options: dict[str, object], word: str) -> None:
    with pytest.raises(ValueError, match=word) as caught:
        plan(Asked(**{"words": ["python", "t.py"], **options}))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_counters_are_of_a_gpu_that_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    on("cuda", monkeypatch, tmp_path)
    monkeypatch.setenv("PMI_RANK", "3")
    monkeypatch.setenv("PMI_SIZE", "8")
    words = Asked(words=["python", "t.py"], output=Path("out"), gpu_metrics=True, scheduler=False)
    with pytest.raises(UserError, match="LOCAL_RANK"):
        plan(words)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert plan(words).rank == 3


def test_without_nsys_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "find_nsys", lambda: None)
    ended = perfdoc("capture", "--", "python", "t.py", env={**os.environ, "COLUMNS": "80"})
    assert ended.returncode == 2
    assert "developer.nvidia.com" in ended.stderr
    assert "--profiler torch" in ended.stderr


def test_a_dry_run_prints_the_line_and_makes_nothing(tmp_path: Path) -> None:
    ended = perfdoc(
        "capture", "--dry-run", "-o", "out", "--duration", "5", "--", "python", "t.py", cwd=tmp_path
    )
    assert ended.returncode == 0
    assert shlex.split(ended.stdout)[-2:] == ["python", "t.py"]
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "x").touch()
    with pytest.raises(UserError, match="not empty"):
        plan(Asked(words=["python", "t.py"], output=tmp_path / "out"))


def test_a_window_that_nobody_can_read_is_no_window() -> None:
    from perfdoc.profiling.errors import TraceError

    assert asked({}) is None
    for text in (
        "{",
        '{"start": 1}',
        '{"start":1,"steps":0,"ranks":null,"profiler":"nsys","device":"cpu","folder":"/x"}',
    ):
        with pytest.raises(TraceError, match=VARIABLE):
            asked({VARIABLE: text})


def test_on_a_cpu_nsys_captures_the_whole_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    on("cpu", monkeypatch, tmp_path)
    planned = plan(Asked(words=["python", "t.py"], steps="1:3", scheduler=False))
    assert "whole job" in planned.notes[-1]
    assert "steps 1 to 2" in planned.notes[-1]
