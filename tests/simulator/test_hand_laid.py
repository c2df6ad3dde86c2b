"""The demonstration: its answer against a count of every nanosecond, and the story that it tells."""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from perfdoc.profiling.errors import CaptureError
from tests.analyzers.brute import counts
from tests.captures.events import Kernel
from tests.captures.timeline import Timeline
from tests.simulator.hand_laid import STEPS, Answer, hand_laid_timeline, write_hand_laid


@pytest.fixture(scope="module")
def demo() -> tuple[Timeline, Answer]:
    return hand_laid_timeline()


@pytest.mark.slow
def test_the_answer_equals_a_count_of_every_nanosecond(demo: tuple[Timeline, Answer]) -> None:
    timeline, answer = demo
    for truth in answer.devices:
        low, high = truth.window_start_ns, truth.window_end_ns
        # One byte per ns: 1 communication, 2 copy or set, 4 computation.
        marks = np.zeros(high - low, dtype=np.uint8)
        for row in timeline.work:
            bit = 2 if not isinstance(row, Kernel) else 1 if "nccl" in row.name else 4
            if row.pid == truth.pid and row.end_ns > low:
                marks[row.start_ns - low : row.end_ns - low] |= bit
        count = counts(marks)
        assert truth.compute_ns == count[4:].sum()
        assert truth.exposed_comm_ns == count[1] + count[3]
        assert truth.exposed_memcpy_ns == count[2]
        assert truth.idle_ns == count[0]
        assert min(truth.compute_ns, truth.exposed_comm_ns, truth.exposed_memcpy_ns, truth.idle_ns) > 0
        assert count[5] > 10_000_000, "much of the communication must be hidden"
        assert count[6] > 0, "a copy must lie beneath a kernel"


def test_steps_start_with_the_first_work_launched_in_them(demo: tuple[Timeline, Answer]) -> None:
    timeline, answer = demo
    for truth in answer.devices:
        called = {a.correlation: a.start_ns for a in timeline.api_calls if a.pid == truth.pid}
        own = [row for row in timeline.work if row.pid == truth.pid]
        work = [(called[row.correlation], row.start_ns, row.end_ns) for row in own]
        ranges = [r for r in timeline.ranges if r.pid == truth.pid and r.name.startswith("perfdoc.step")]
        assert [r.name for r in ranges] == [f"perfdoc.step {n}" for n in range(STEPS)]
        starts = [min(start for call, start, _ in work if call >= r.start_ns) for r in ranges]
        assert list(truth.step_start_ns) == starts
        assert truth.window_start_ns == starts[0]
        assert truth.window_end_ns == max(end for call, _, end in work if call >= ranges[-1].start_ns)
        assert min(call for call, _, _ in work) < ranges[0].start_ns, "work before the first step"
        assert all(call <= start for call, start, _ in work)


def test_the_story(demo: tuple[Timeline, Answer]) -> None:
    timeline, answer = demo
    first, second = answer.devices
    step_ms = np.diff([*first.step_start_ns, first.window_end_ns]) / 1e6
    assert ((step_ms > 38) & (step_ms < 50)).all()
    kernels = Counter(k.pid for k in timeline.kernels)
    assert all(200 <= count / STEPS <= 400 for count in kernels.values())
    collected = [r for r in timeline.ranges if r.name == "perfdoc.gc"]
    assert [(r.pid, r.end_ns - r.start_ns) for r in collected if r.end_ns] == [(first.pid, 3_100_000)]
    assert sum(r.name == "perfdoc.data" for r in timeline.ranges) == 2 * STEPS
    # Rank 1 has nothing to collect and so waits about that long in its next collective.
    assert 2_500_000 < second.exposed_comm_ns - first.exposed_comm_ns < 3_100_000
    assert first.idle_ns - second.idle_ns > 2_500_000
    ends = {pid: [k.end_ns for k in timeline.kernels if k.pid == pid and "nccl" in k.name] for pid in kernels}
    assert ends[first.pid] == ends[second.pid], "a collective ends everywhere at once"


def test_work_of_one_stream_never_overlaps(demo: tuple[Timeline, Answer]) -> None:
    timeline, _ = demo
    lanes: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for row in timeline.work:
        lanes.setdefault((row.pid, row.stream), []).append((row.start_ns, row.end_ns))
    assert len(lanes) == 8
    for spans in lanes.values():
        spans.sort()
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))


def test_the_answer_does_not_change_unnoticed(demo: tuple[Timeline, Answer]) -> None:
    timeline, answer = demo
    again_timeline, again = hand_laid_timeline()
    assert again == answer
    assert again_timeline == timeline


def test_files(tmp_path: Path) -> None:
    trace, truth = write_hand_laid(tmp_path)
    answer = json.loads(truth.read_text(encoding="utf-8"))
    connection = sqlite3.connect(f"file:{trace}?mode=ro", uri=True)
    for device in answer["devices"]:
        leaves = sum(device[f"{leaf}_ns"] for leaf in ("compute", "exposed_comm", "exposed_memcpy", "idle"))
        assert leaves == device["window_end_ns"] - device["window_start_ns"]
        last = connection.execute(
            "SELECT max(end) FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE globalPid >> 24 & 0xFFFFFF = ?",
            (device["pid"],),
        )
        assert last.fetchone() == (device["window_end_ns"],)
    ids = connection.execute(
        """SELECT DISTINCT json_extract(jsonText, '$."NCCL communicator ID"') FROM NVTX_EVENTS
           WHERE jsonText NOT NULL"""
    )
    assert len(ids.fetchall()) == 2
    connection.close()
    with pytest.raises(CaptureError, match=r"demo\.sqlite"):
        write_hand_laid(tmp_path)
    write_hand_laid(tmp_path, force=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["answer.json", "demo.sqlite"]
