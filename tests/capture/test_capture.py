"""`perfdoc capture` end to end: real jobs on the CPU, the PyTorch profiler, a real nsys where one is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from perfdoc.profiling.nsys.command import find_nsys, nvtx_trouble
from tests.profiling.own.traces import counted, names_in

JOB = str(Path(__file__).with_name("job.py"))
ASKED = {"perfdoc.step 2": 1, "perfdoc.step 3": 1}
"""Of --steps 2:4, and how often."""
SLEEPER = "import time; print('begins', flush=True); time.sleep({})"


@pytest.fixture
def nsys(needs_torch: None) -> None:
    found = find_nsys()
    if found is None:
        pytest.skip("nsys is neither named by PERFDOC_NSYS nor on PATH")
    if (trouble := nvtx_trouble(found)) is not None:
        pytest.skip(trouble)


def one_thread() -> dict[str, str]:
    # torchrun and the ranks' python are those of this interpreter.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "OMP_NUM_THREADS": "1", "PATH": path}


def capture(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "perfdoc", "capture", "-o", "out", *words]
    return subprocess.run(line, capture_output=True, text=True, cwd=cwd, env=one_thread(), timeout=500)


def steps_of(folder: Path) -> list[list[str]]:
    """Names of each rank's steps in the diagnosis."""
    diagnosis = json.loads((folder / "out" / "report" / "diagnosis.json").read_text())
    return [[step["name"] for step in rank["window"]["step_list"]] for rank in diagnosis["ranks"]]


@pytest.mark.parametrize("profiler", ["torch", "nsys"])
def test_the_asked_steps_are_captured(profiler: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    request.getfixturevalue("nsys" if profiler == "nsys" else "needs_torch")
    options = ("--profiler", profiler, "--steps", "2:4", "--no-analyze", "--")
    ended = capture(*options, sys.executable, JOB, "0", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "the job speaks" in ended.stdout
    (trace,) = (f for f in (tmp_path / "out" / "traces").iterdir() if f.suffix != ".nsys-rep")
    names = counted(names_in(trace))
    assert {n: c for n, c in names.items() if n.startswith("perfdoc.step")} == ASKED
    assert (names["perfdoc.forward"], names["perfdoc.backward"]) == (2, 2)


def test_a_job_that_fails_ends_with_its_own_code(needs_torch: None, tmp_path: Path) -> None:
    options = ("--profiler", "torch", "--steps", "2:4", "--no-analyze", "--")
    ended = capture(*options, sys.executable, "-c", "raise SystemExit(7)", cwd=tmp_path)
    assert ended.returncode == 7
    ended = capture(*options, sys.executable, "-c", "pass", cwd=tmp_path)
    assert ended.returncode == 2
    assert "no step of the window" in ended.stderr
    ended = capture(*options, "no-such-program", cwd=tmp_path)
    assert ended.returncode == 2
    assert not (tmp_path / "out").exists(), "what holds nothing does not stay"


@pytest.mark.slow
def test_two_ranks_under_nsys(nsys: None, tmp_path: Path) -> None:
    words = ("torchrun", "--standalone", "--nproc-per-node", "2", JOB)
    ended = capture("--steps", "2:4", "--", *words, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("the job speaks") == 2, "a job keeps its standard output"
    assert steps_of(tmp_path) == [["perfdoc.step 2", "perfdoc.step 3"]] * 2


@pytest.mark.slow
def test_one_rank_of_two(nsys: None, tmp_path: Path) -> None:
    words = ("torchrun", "--standalone", "--nproc-per-node", "2", JOB)
    ended = capture("--steps", "2:4", "--ranks", "1", "--no-analyze", "--", *words, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert sorted(f.name for f in (tmp_path / "out" / "traces").iterdir()) == [
        "rank1.nsys-rep",
        "rank1.sqlite",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--delay", "1", "--duration", "1")])
def test_a_script_without_marks(nsys: None, tmp_path: Path, options: tuple[str, ...]) -> None:
    program = SLEEPER.format(4) + "; raise SystemExit(5)"
    ended = capture(*options, "--no-analyze", "--", sys.executable, "-c", program, cwd=tmp_path)
    assert ended.returncode == 5, "nsys may end before the job, and with another code"
    assert "begins" in ended.stdout
    assert (tmp_path / "out" / "traces" / "rank0.sqlite").exists()


def stopped(cwd: Path, *words: str, program: str, after: str, by: signal.Signals) -> subprocess.Popen[str]:
    """`perfdoc capture` of a program, stopped once that has written a line; its stderr is in cwd/said."""
    line = [
        sys.executable,
        "-m",
        "perfdoc",
        "capture",
        "-o",
        "out",
        *words,
        "--",
        sys.executable,
        "-c",
        program,
    ]
    with (
        (cwd / "said").open("w") as said,
        subprocess.Popen(
            line, cwd=cwd, env=one_thread(), stdout=subprocess.PIPE, stderr=said, text=True
        ) as process,
    ):
        assert process.stdout is not None
        assert after in iter(process.stdout.readline, "")
        process.send_signal(by)
        process.communicate(timeout=60)  # less than the job would take
    return process


@pytest.mark.slow
def test_an_interrupt_ends_the_job_and_keeps_the_capture(nsys: None, tmp_path: Path) -> None:
    ended = stopped(tmp_path, program=SLEEPER.format(90), after="begins\n", by=signal.SIGINT)
    assert ended.returncode == 130
    assert "perfdoc analyze out" in (tmp_path / "said").read_text()
    assert (tmp_path / "out" / "traces" / "rank0.sqlite").exists()


@pytest.mark.slow
def test_a_scheduler_that_ends_the_job_leaves_the_capture(needs_torch: None, tmp_path: Path) -> None:
    program = (
        "import time, torch; from perfdoc.profiling import steps\n"
        "for n in steps(range(900)): torch.ones(4).sum(); print(n, flush=True); time.sleep(0.1)"
    )
    asked = ("--profiler", "torch", "--steps", "1:900")
    ended = stopped(tmp_path, *asked, program=program, after="3\n", by=signal.SIGTERM)
    assert ended.returncode == 143
    assert "perfdoc analyze out" in (tmp_path / "said").read_text()
    names = names_in(tmp_path / "out" / "traces" / "rank0.json.gz")
    assert {"perfdoc.step 1", "perfdoc.step 2"} <= set(names)

    late = ("--profiler", "torch", "--steps", "800:900")
    (tmp_path / "late").mkdir()
    ended = stopped(tmp_path / "late", *late, program=program, after="3\n", by=signal.SIGTERM)
    assert ended.returncode == 143
    said = (tmp_path / "late" / "said").read_text()
    assert "stopped before" in said
    assert "perfdoc.profiling.step" not in said, "the job does call it"
