from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perfdoc.profiling import ranges
from perfdoc.profiling.logs import CollectiveRecord, read_lines
from perfdoc.profiling.memory import MemorySample, sample_memory
from perfdoc.profiling.nsys.collect import collect_reports, logs_folder, reports_folder
from perfdoc.profiling.nsys.command import Nsys, nsys_command, nsys_per_rank, nvtx_trouble
from perfdoc.profiling.profiler_choice import Profiler
from perfdoc.profiling.run_directory import RunDirectory
from perfdoc.profiling.session import Session
from perfdoc.profiling.window import ProfileWindow, TorchCapture
from tests.nsys_start import profile
from tests.profiling.conftest import Launch


def a_session(run: RunDirectory, window: ProfileWindow, profiler: Profiler = "torch") -> Session:
    return Session(run, window=window, profiler=profiler, rank=0, world_size=1, device="cpu")


def steps_in(trace: Path) -> list[str]:
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    rows = [event for event in events if event.get("cat") == "user_annotation"]
    names = [event["name"] for event in sorted(rows, key=lambda event: event["ts"])]
    return [name for name in names if name.startswith(("perfdoc.step", "perfdoc.rank"))]


@pytest.mark.slow
def test_two_ranks_under_the_pytorch_profiler(two_ranks: Launch, tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    shown = two_ranks("session_worker.py", str(run.path), "torch")
    assert [json.loads(text) for text in shown] == [
        {"problem": None, "profiled": [2, 3], "through": "record_function"},
        {"problem": None, "profiled": [], "through": ""},  # Rank 1 is not profiled.
    ]
    assert sorted(str(path.relative_to(run.path)) for path in run.path.rglob("*.*")) == [
        "collectives/rank0.jsonl",
        "memory/rank0.jsonl",
        "traces/rank0.json.gz",
    ]
    trace: dict[str, Any] = json.loads(gzip.decompress(run.trace_path(0, "json.gz").read_bytes()))
    assert trace["perfdoc"] == {"rank": 0, "world_size": 2, "device": "cpu"}
    assert steps_in(run.trace_path(0, "json.gz")) == [
        "perfdoc.rank 0 world=2 device=cpu",
        "perfdoc.step 2",
        "perfdoc.step 3",
    ]
    # One all-reduce of 4 fp32 in each of six steps, of which those of steps 2 and 3 are profiled.
    records = list(read_lines(run.collectives_path(0), CollectiveRecord))
    assert [(r.operation, r.bytes, r.sequence) for r in records] == [
        ("all_reduce", 16, 2),
        ("all_reduce", 16, 3),
    ]
    samples = list(read_lines(run.memory_path(0, "jsonl"), MemorySample))
    assert [(sample.event, sample.step) for sample in samples] == [
        ("start", 2),
        ("step", 2),
        ("step", 3),
        ("end", 3),
    ]


@pytest.mark.slow
def test_a_rank_under_nsys(nsys: Nsys, needs_torch: None, needs_nvtx: None, tmp_path: Path) -> None:
    if (trouble := nvtx_trouble(nsys)) is not None:
        pytest.skip(trouble)
    run = RunDirectory.create(tmp_path / "run")
    worker = [sys.executable, str(Path(__file__).with_name("session_worker.py"))]
    program = [*worker, str(tmp_path / "meeting"), "0", str(run.path), "nsys", "1"]
    line = nsys_command(nsys.path, command=program, output=reports_folder(run) / "rank0", device="cpu")
    shown = profile(line, reports_folder(run) / "rank0.nsys-rep")
    assert shown.returncode == 0, shown.stderr
    assert '{"problem": null, "profiled": [2, 3], "through": "nvtx' in shown.stdout
    (report,) = collect_reports(run, nsys)
    assert report.problem is None
    counts = {k: v for k, v in report.ranges.items() if k != "perfdoc.gc"}
    assert counts == {
        "perfdoc.step": 2,
        "perfdoc.rank": 1,
        "perfdoc.group": 1,
        "perfdoc.comm.issue": 2,
        "perfdoc.comm.wait": 2,
        "perfdoc.comm.run": 2,
    }


@pytest.mark.slow
def test_torchrun_puts_the_profiled_rank_under_nsys(
    nsys: Nsys, needs_torch: None, needs_nvtx: None, tmp_path: Path
) -> None:
    if (trouble := nvtx_trouble(nsys)) is not None:
        pytest.skip(trouble)
    run = RunDirectory.create(tmp_path / "run")
    worker = str(Path(__file__).with_name("session_worker.py"))
    line = nsys_per_rank(
        nsys_command(nsys.path, command=(), output=f"{reports_folder(run)}/rank%q{{RANK}}", device="cpu"),
        launcher=[sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"],
        program=[sys.executable, worker, str(tmp_path / "meeting"), "env", str(run.path), "nsys"],
        logs=logs_folder(run),
        ranks=[0],
    )
    shown = subprocess.run(line, capture_output=True, text=True, timeout=300)
    assert shown.returncode == 0, shown.stderr
    (report,) = collect_reports(run, nsys)  # Rank 1 ran without nsys.
    assert report.rank == 0
    assert report.ranges["perfdoc.step"] == 2
    assert report.ranges["perfdoc.comm.run"] == 2


def test_nsys_that_is_not_there_ends_the_capture_and_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NSYS_PROFILING_SESSION_ID", raising=False)
    run = RunDirectory.create(tmp_path)
    done = []
    with a_session(run, ProfileWindow(start=0, steps=1), "nsys") as session:
        for step in (0, 1):
            with session.step(step):
                done.append(ranges.on())
    assert done == [False, False]
    assert session.problem is not None
    assert session.problem.startswith("--profiler nsys: this process does not run under nsys.")
    assert not session.is_profiled(0)


def test_a_taken_trace_is_not_overwritten(needs_torch: None, tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path)
    run.trace_path(0, "json.gz").write_bytes(b"precious")
    with a_session(run, ProfileWindow(start=0, steps=1)) as session, session.step(0):
        assert not ranges.on()  # Found before anything was collected.
    assert session.problem is not None
    assert "not overwritten" in session.problem
    assert run.trace_path(0, "json.gz").read_bytes() == b"precious"


def test_a_full_disk_ends_the_capture_and_not_the_training(needs_torch: None, tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    run = RunDirectory.create(tmp_path)
    run.memory_path(0, "jsonl").symlink_to("/dev/full")
    done = []
    with a_session(run, ProfileWindow(start=0, steps=2)) as session:
        for step in (0, 1, 2):
            with session.step(step):
                done.append(ranges.on())
    assert done == [False, False, False]
    assert session.problem is not None
    assert "No space left on device" in session.problem


def test_a_failure_inside_the_window_closes_it(
    needs_torch: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(step: int) -> None:
        raise OSError(28, "No space left on device")

    run = RunDirectory.create(tmp_path)
    done = []
    with a_session(run, ProfileWindow(start=0, steps=3)) as session:
        monkeypatch.setattr(session._memory, "step_ended", full)
        for step in (0, 1, 2):
            with session.step(step):
                done.append(ranges.on())
    assert done == [True, False, False]
    assert session.problem == "[Errno 28] No space left on device"
    assert steps_in(run.trace_path(0, "json.gz"))[1:] == ["perfdoc.step 0"]  # What there is, is kept.


def test_training_that_ends_early(needs_torch: None, tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "short")
    with a_session(run, ProfileWindow(start=1, steps=5)) as session:
        for step in (0, 1):
            with session.step(step):
                pass
    assert session.problem == "training ended before step 5, the last profiled one"
    assert steps_in(run.trace_path(0, "json.gz"))[1:] == ["perfdoc.step 1"]  # What there is, is kept.

    run = RunDirectory.create(tmp_path / "shorter")
    with a_session(run, ProfileWindow(start=7, steps=1)) as session, session.step(0):
        pass
    assert session.problem == "training ended before step 7, the first profiled one"
    assert run.files_by_rank("traces") == {}

    # Prepared at step 0 for a window that never opened: the next session of the process must not suffer.
    run = RunDirectory.create(tmp_path / "prepared")
    with a_session(run, ProfileWindow(start=1, steps=1)) as session, session.step(0):
        pass
    assert session.problem == "training ended before step 1, the first profiled one"
    run = RunDirectory.create(tmp_path / "next")
    with a_session(run, ProfileWindow(start=0, steps=1)) as session, session.step(0):
        pass
    assert session.problem is None
    assert steps_in(run.trace_path(0, "json.gz"))[1:] == ["perfdoc.step 0"]


def test_memory_is_remembered_in_the_step_after_the_window(
    needs_torch: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recording stacks costs host time at each allocation, which would look like slow launches."""
    run = RunDirectory.create(tmp_path)
    seen: list[str] = []
    with a_session(run, ProfileWindow(start=1, steps=2)) as session:
        for name in ("start_history", "stop_history"):
            monkeypatch.setattr(session._memory, name, lambda name=name: seen.append(name))
        for step in range(5):
            with session.step(step):
                seen.append(f"{step}{' profiled' if session.is_profiled(step) else ''}")
    assert seen == ["0", "1 profiled", "2 profiled", "start_history", "3", "stop_history", "4"]
    assert session.problem is None


def test_window() -> None:
    window = ProfileWindow(start=5, steps=3, ranks={0, 2})
    assert [step for step in range(10) if window.has_step(step)] == [5, 6, 7]
    assert window.last == 7
    assert [rank for rank in range(4) if window.has_rank(rank)] == [0, 2]
    assert ProfileWindow(start=0, steps=1).has_rank(9)


def test_memory_figures_follow_what_is_allocated() -> None:
    size = 64 << 20
    before = sample_memory("start", 0, cuda=False)
    block = bytearray(b"x") * size  # Touched, so resident.
    during = sample_memory("step", 0, cuda=False)
    assert len(block) == size
    del block
    after = sample_memory("end", 0, cuda=False)
    if before.resident_bytes is None or before.heap_used_bytes is None:
        pytest.skip("this system has no /proc or no glibc 2.33")
    assert during.resident_bytes is not None
    assert after.resident_bytes is not None
    assert during.heap_used_bytes is not None
    assert after.heap_used_bytes is not None
    assert during.peak_resident_bytes is not None
    slack = 8 << 20
    assert size - slack < during.resident_bytes - before.resident_bytes < size + slack
    # Other threads of the process may free something meanwhile.
    assert size - slack < during.heap_used_bytes - before.heap_used_bytes < size + slack
    assert after.heap_used_bytes - before.heap_used_bytes < slack
    assert after.resident_bytes < during.resident_bytes
    assert during.peak_resident_bytes >= during.resident_bytes - slack
    assert during.python_blocks > 1000
    assert before.allocated_bytes is None  # No GPU asked for: unknown, not 0.
    assert msgspec.json.decode(msgspec.json.encode(during), type=MemorySample) == during


@pytest.mark.parametrize(("device", "ties_waits"), [("cuda", True), ("cpu", False)])
def test_the_pytorch_profiler_ties_waits_to_records(
    needs_torch: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, ties_waits: bool
) -> None:
    import torch._C._profiler
    import torch.profiler

    made: list[dict[str, Any]] = []

    class Profile:
        def __init__(self, **given: Any) -> None:
            made.append(given)

        def prepare_trace(self) -> None:
            pass

    monkeypatch.setattr(torch.profiler, "profile", Profile)
    monkeypatch.setattr(torch._C._profiler, "_ExperimentalConfig", lambda **given: given)
    run = RunDirectory.create(tmp_path / "run")
    TorchCapture(run, 0, 1, device, shapes=True).prepare()  # type: ignore[arg-type]
    assert made[0]["experimental_config"] == ({"enable_cuda_sync_events": True} if ties_waits else None)
    assert made[0]["record_shapes"] is True
    assert (torch.profiler.ProfilerActivity.CUDA in made[0]["activities"]) is (device == "cuda")

    def too_old(**given: Any) -> None:
        raise TypeError(given)

    monkeypatch.setattr(torch._C._profiler, "_ExperimentalConfig", too_old)
    TorchCapture(run, 0, 1, device).prepare()  # type: ignore[arg-type]
    assert made[1]["experimental_config"] is None
