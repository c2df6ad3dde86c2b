"""Captures that are given together: of one run, and each rank once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.captures.kineto import write_kineto
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import TimelineBuilder
from tests.command import perfdoc
from tests.planted.capture import capture_timeline


@pytest.mark.parametrize("same", [True, False], ids=["a copy", "another capture"])
def test_one_rank_given_twice_is_refused(tmp_path: Path, same: bool) -> None:
    """It would count twice in every sum over ranks."""
    timeline = capture_timeline()
    pid = timeline.processes[0].pid
    write_kineto(timeline, tmp_path / "first.json", pid)
    write_kineto(timeline, tmp_path / "second.json", pid)
    if not same:
        with (tmp_path / "second.json").open("a") as file:
            file.write("\n")
    done = perfdoc("analyze", "--no-replay", tmp_path)
    what = "is a copy of" if same else "says that it is rank 0, as"
    assert (done.returncode, done.stderr.count("second.json: " + what)) == (2, 1)
    assert not (tmp_path / "perfdoc-report").exists()


def test_cycles_of_one_process_are_no_ranks(tmp_path: Path) -> None:
    """Host and process are in the names that PyTorch's handler writes. Another process is a rank, and what
    ran at one time is of two containers that name both alike."""
    builder = TimelineBuilder(utc_origin_ns=10**18)
    for pid in (4711, 4712):
        process = builder.process(pid=pid)
        process.device().kernel("gemm", 0, 30_000, launch=(process.thread(), 0, 10))
    for pid in (4711, 4712):
        write_kineto(builder.build(), tmp_path / f"n1_{pid}.1694128201545.pt.trace.json", pid)
    assert perfdoc("analyze", "--no-replay", tmp_path, "--json", "-").returncode == 0
    again = tmp_path / "n1_4712.1694128299999.pt.trace.json"
    process.device(ordinal=1).kernel("gemm", 20_000, 40_000, launch=(process.thread(), 20, 30))
    write_kineto(builder.build(), again, 4712)
    assert perfdoc("analyze", "--no-replay", tmp_path, "--json", "-").returncode == 0
    again.unlink()
    later = TimelineBuilder(utc_origin_ns=10**18)
    process = later.process(pid=4712)
    process.device().kernel("gemm", 40_000, 70_000, launch=(process.thread(), 39_000, 39_010))
    write_kineto(later.build(), again, 4712)
    done = perfdoc("analyze", "--no-replay", tmp_path, "--json", "-")
    assert done.returncode == 2
    assert "n1_4712.1694128299999.pt.trace.json: says that it is process 4712 of n1, as" in done.stderr


def test_cycles_of_a_worker_that_a_framework_names_are_no_ranks(tmp_path: Path) -> None:
    """Lightning's profiler begins anew every five steps, and names the files of one process alike. Two cycles
    of 30 us, 10 us apart; at one time, or of another process or worker, they are of two ranks. So they are in
    two folders: two machines may name their workers alike, whose processes have equal numbers."""
    for worker, pid, at, below, status in (
        ("fit-profile-0-[Strategy]SingleDeviceStrategy.training_step", 4711, 40_000, "", 2),
        ("fit-profile-0-[Strategy]SingleDeviceStrategy.training_step", 4711, 20_000, "", 0),
        ("fit-profile-0-[Strategy]SingleDeviceStrategy.training_step", 4712, 40_000, "", 0),
        ("fit-profile-1-[Strategy]SingleDeviceStrategy.training_step", 4711, 40_000, "", 0),
        ("fit-profile-0-[Strategy]SingleDeviceStrategy.training_step", 4711, 40_000, "node1", 0),
    ):
        folder = tmp_path / f"{worker[12]}-{pid}-{at}-{below}"
        (folder / below).mkdir(parents=True)
        first = "fit-profile-0" + worker[13:], 4711, 0, "", 1694128201
        for name, process_id, start, place, time in (first, (worker, pid, at, below, 1694128209)):
            builder = TimelineBuilder(utc_origin_ns=10**18)
            process = builder.process(pid=process_id)
            launch = (process.thread(), start, start + 10)
            process.device().kernel("gemm", start, start + 30_000, launch=launch)
            write_kineto(builder.build(), folder / place / f"{name}.{time}.pt.trace.json", process_id)
        done = perfdoc("analyze", "--no-replay", folder, "--json", "-")
        assert (done.returncode, "says that it is process 4711 of the worker fit-" in done.stderr) == (
            status,
            status == 2,
        )


def test_captures_of_different_hours_are_hardly_one_run(tmp_path: Path) -> None:
    def capture(name: str, utc_s: int) -> None:
        builder = TimelineBuilder(utc_origin_ns=utc_s * 1_000_000_000)
        builder.process().device().kernel("gemm", 0, 30_000_000_000)
        write_nsys_sqlite(builder.build(), tmp_path / name)

    def notes() -> list[str]:
        found = json.loads(perfdoc("analyze", "--no-replay", tmp_path, "--json", "-").stdout)["quality"]
        return [q["message"] for q in found if q["code"] == "captures-apart"]

    capture("a.sqlite", 1_000)
    capture("b.sqlite", 1_090)  # 60 s after a's end: clocks of machines may differ by so much
    assert notes() == []
    capture("c.sqlite", 1_030 + 7_200)
    (note,) = notes()
    assert "of a.sqlite ended 2 hours before that of c.sqlite began" in note
