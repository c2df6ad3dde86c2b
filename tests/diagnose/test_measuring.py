"""Worker processes: whose they are."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path

import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.diagnose.asked import Work, asked_work
from perfdoc.diagnose.measuring import measure_all, of_them
from perfdoc.traces import TraceError
from perfdoc.traces.job_facts import JobFacts
from tests.captures.kineto import write_kineto
from tests.simulator.hand_laid import hand_laid_timeline, write_hand_laid


def test_a_failure_ends_the_workers_and_no_other_child(tmp_path: Path) -> None:
    good, _ = write_hand_laid(tmp_path / "good")
    bad = tmp_path / "bad.sqlite"
    bad.write_bytes(b"not a database")
    other = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    other.start()
    try:
        work = Work(
            captures=[bad, good, good], memory=[], request=WindowRequest(), given=JobFacts(), replay=False
        )
        with pytest.raises(TraceError):
            measure_all(work, 2)
        until = time.monotonic() + 20
        while len(multiprocessing.active_children()) > 1 and time.monotonic() < until:
            time.sleep(0.02)
        assert multiprocessing.active_children() == [other]
    finally:
        other.terminate()
        other.join()


def test_what_is_counted_beside_captures_is_said() -> None:
    assert [of_them(2, 0), of_them(1, 1), of_them(2, 2)] == [
        "",
        " (1 capture, memory of 1 rank)",
        " (2 captures, memory of 2 ranks)",
    ]


def test_captures_come_in_the_order_of_their_ranks(tmp_path: Path) -> None:
    """Whoever measures: which of two equals is named must not depend on files' order."""
    timeline, _ = hand_laid_timeline()
    paths = []
    for process in timeline.processes:
        paths.append(tmp_path / f"rank{process.rank}.json")
        write_kineto(timeline, paths[-1], process.pid)
    found = measure_all(asked_work([str(p) for p in reversed(paths)], replay=False), 1)
    assert [c.path for c in found.captures] == paths
    assert len(paths) > 1
