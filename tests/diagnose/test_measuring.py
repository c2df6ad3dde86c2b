"""Worker processes: whose they are."""

from __future__ import annotations

import gc
import multiprocessing
import os
import tempfile
import time
from functools import partial
from pathlib import Path

import pytest

from perfdoc.analyzers.request import AnalysisRequest
from perfdoc.diagnose.asked import parse_request
from perfdoc.diagnose.measuring import measure_all
from perfdoc.diagnose.workers import Processes, Task
from perfdoc.traces import TraceError
from tests.captures.kineto import write_kineto
from tests.planted.capture import capture_timeline, write_capture


def test_a_failure_ends_the_workers_and_no_other_child(tmp_path: Path) -> None:
    good = write_capture(tmp_path / "good")
    bad = tmp_path / "bad.sqlite"
    bad.write_bytes(b"not a database")
    other = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    other.start()
    try:
        request = AnalysisRequest(captures=[bad, good, good], replay=False, jobs=2)
        with pytest.raises(TraceError):
            measure_all(request, place=Processes(2))  # of so little one process would do
        until = time.monotonic() + 20
        while len(multiprocessing.active_children()) > 1 and time.monotonic() < until:
            time.sleep(0.02)
        assert multiprocessing.active_children() == [other]
    finally:
        other.terminate()
        other.join()


def _number(number: int) -> tuple[int, int]:
    if number == 5:
        raise ValueError("five")
    return number, os.getpid()


def test_this_process_works_too_and_results_come_in_order() -> None:
    """What a task raises comes in its turn, whoever found it."""
    tasks = [Task(files=[], work=partial(_number, n)) for n in range(8)]
    came: list[tuple[int, int]] = []
    with pytest.raises(ValueError, match="five"):
        came.extend(Processes(2).run(tasks))
    assert [number for number, _ in came] == [0, 1, 2, 3, 4]
    assert came[0][1] == os.getpid()


def _waits_elsewhere(home: int, here: Path) -> int:
    """A worker ends its first one when two have been done at home."""
    if os.getpid() == home:
        tempfile.mkstemp(dir=here)
    until = time.monotonic() + 60
    while os.getpid() != home and len(list(here.iterdir())) < 2 and time.monotonic() < until:
        time.sleep(0.001)
    return os.getpid()


def test_what_no_worker_has_begun_is_done_here(tmp_path: Path) -> None:
    """The first task is this process's in any case."""
    home = os.getpid()
    tasks = [Task(files=[], work=partial(_waits_elsewhere, home, tmp_path)) for _ in range(8)]
    assert list(Processes(2).run(tasks)).count(home) > 1


def _garbage(home: int) -> tuple[bool, tuple[int, int, int]]:
    return os.getpid() == home, gc.get_threshold()


def test_workers_look_for_garbage_as_rarely_as_this_process() -> None:
    before = gc.get_threshold()
    gc.set_threshold(123_456, 7, 8)
    try:
        tasks = [Task(files=[], work=partial(_garbage, os.getpid())) for _ in range(8)]
        assert set(Processes(2).run(tasks)) >= {(False, (123_456, 7, 8))}
    finally:
        gc.set_threshold(*before)


def test_captures_come_in_the_order_of_their_ranks(tmp_path: Path) -> None:
    """Whoever measures: which of two equals is named must not depend on files' order."""
    timeline = capture_timeline()
    paths = []
    for process in timeline.processes:
        paths.append(tmp_path / f"rank{process.rank}.json")
        write_kineto(timeline, paths[-1], process.pid)
    found = measure_all(parse_request([str(p) for p in reversed(paths)], replay=False, jobs=1))
    assert [c.path for c in found.captures] == paths
    assert len(paths) > 1
