"""A job whose ranks all stop writing: rows on disk, with the clock set back by hand."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from perfdoc.profiling.logs import LineWriter
from perfdoc.profiling.run_directory import ENDED, RunDirectory
from perfdoc.watch.findings import of_a_hang
from perfdoc.watch.follow import FollowedRun
from tests.watch.jobs import Job

S = 1_000_000_000
STEP_NS = 110_000_000


def written(folder: Path, *, quiet_s: float, short: tuple[int, ...] = (), pause_s: float = 0) -> FollowedRun:
    """60 steps of 4 ranks that ended so long ago; some lack the last one. A pause lies before step 30."""
    run = RunDirectory.join(folder)
    end = time.time_ns() - round(quiet_s * S)
    for rank, rows in enumerate(Job(ranks=4, steps=60).rows()):
        timed = [
            msgspec.structs.replace(
                row, start_ns=end - (60 - row.step) * STEP_NS - (round(pause_s * S) if row.step < 30 else 0)
            )
            for row in rows
        ]
        path = run.steps_path(rank)
        with closing(LineWriter(path)) as lines:
            for row in timed[:-1] if rank in short else timed:
                lines.write(row)
        os.utime(path, ns=(end, end))
    return FollowedRun(folder)


@pytest.mark.parametrize("short", [(), (2,), (0, 1, 2)])
def test_a_job_that_writes_no_more_hangs(tmp_path: Path, short: tuple[int, ...]) -> None:
    found = written(tmp_path, quiet_s=600, short=short).look()
    (finding,) = found.findings
    assert (found.state, finding.cause) == ("act", "hang")
    # Who did not end the newest step is named, where it is not most of them.
    assert list(finding.ranks) == ([2] if short == (2,) else [])
    assert finding.onset_step == 59
    assert "for 60" in finding.said  # and some seconds, on a busy machine


def test_a_job_that_has_ended_does_not_hang(tmp_path: Path) -> None:
    followed = written(tmp_path, quiet_s=600)
    (tmp_path / ENDED).touch()
    assert followed.look().state == "fine"
    (tmp_path / ENDED).unlink()
    assert followed.look().state == "act"  # nothing new was written, and it is told all the same


@pytest.mark.parametrize(("quiet_s", "pause_s"), [(200, 0), (600, 250)])
def test_a_pause_is_no_hang(tmp_path: Path, quiet_s: float, pause_s: float) -> None:
    """Five minutes are not over; or it was silent for more than a third of this before, as it evaluates."""
    assert written(tmp_path, quiet_s=quiet_s, pause_s=pause_s).look().findings == []


def test_a_file_that_is_being_written_is_no_hang(tmp_path: Path) -> None:
    followed = written(tmp_path, quiet_s=600)
    os.utime(tmp_path / "steps" / "rank3.jsonl")
    assert followed.look().state == "fine"


def test_a_full_disk_is_said_before_a_hang() -> None:
    said = {full: of_a_hang(600 * S, STEP_NS, 59, [], full).said for full in (False, True)}
    assert "memory" in said[True]
    assert "memory" not in said[False]
    assert said[True].endswith(said[False].partition(": ")[2])


def test_the_disk_of_a_run_is_looked_at(tmp_path: Path) -> None:
    """A file system of 1 MB of its own, which only root can make."""
    if shutil.which("mount") is None or os.geteuid() != 0:
        pytest.skip("mounts nothing")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounts nothing")
    try:
        (finding,) = written(disk, quiet_s=600).look().findings
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    assert "disk of the run directory is full" in finding.said
