"""Scheduling of threads and OS-runtime calls of Nsight exports."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from perfdoc.traces import Trace
from perfdoc.traces.load import read_trace
from tests.captures.nsys_schemas import GENERATIONS
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import TimelineBuilder

PID = 5
MAIN, OTHER = (1 << 48 | PID << 24 | tid for tid in (PID, 99))


def planted() -> TimelineBuilder:
    """A thread with CUDA calls that is off the CPU in [100, 200) and [300, 350), in `poll` in [110, 190)."""
    builder = TimelineBuilder()
    process = builder.process(pid=PID)
    main, unseen = process.thread(), process.thread(tid=99)
    process.device().kernel("gemm", 50, 60, launch=(main, 40, 45))
    main.off_cpu(100, 200)
    main.off_cpu(300, 350)
    main.os_call("poll", 110, 190)
    unseen.off_cpu(10, 20)
    unseen.off_cpu(400, 500)
    unseen.os_call("read", 10, 20)
    return builder


def states(trace: Trace) -> list[tuple[int, int, bool]]:
    rows = trace.thread_states
    assert not rows.thread.any(), "only the thread that has calls"
    return list(zip(rows.start_ns.tolist(), rows.end_ns.tolist(), rows.on_cpu.tolist(), strict=True))


def changed(folder: Path, *statements: str) -> Trace:
    path = write_nsys_sqlite(planted().build(), folder / "x.sqlite", force=True)
    with sqlite3.connect(path) as db:
        for statement in statements:
            db.execute(statement)
    db.close()
    return read_trace(path)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_both_tables_of_every_generation(tmp_path: Path, generation: str) -> None:
    trace = read_trace(write_nsys_sqlite(planted().build(), tmp_path / "x.sqlite", generation=generation))
    # From the first event of any thread (10) to the last (500).
    wanted = [(10, 100, True), (100, 200, False), (200, 300, True), (300, 350, False), (350, 500, True)]
    assert states(trace) == wanted
    calls = trace.os_calls
    assert (calls.start_ns.tolist(), calls.end_ns.tolist(), trace.names(calls.name)) == (
        [110],
        [190],
        ["poll"],
    )
    assert trace.capabilities["thread_states"].available


def test_a_lost_event_leaves_the_state_unknown(tmp_path: Path) -> None:
    trace = changed(tmp_path, f"DELETE FROM SCHED_EVENTS WHERE start = 200 AND globalTid = {MAIN}")
    # Out at 100, out again at 300: when it came in between is not known.
    assert states(trace) == [(10, 100, True), (300, 350, False), (350, 500, True)]


@pytest.mark.parametrize(
    ("statement", "left"),
    [
        ("UPDATE SCHED_EVENTS SET start = 9223372036854775807 WHERE start = 500", 5),
        (f"UPDATE SCHED_EVENTS SET globalTid = {OTHER + 1}", 0),
        ("DELETE FROM SCHED_EVENTS", 0),
        ("DROP TABLE SCHED_EVENTS", 0),
        ("ALTER TABLE SCHED_EVENTS DROP COLUMN isSchedIn", 0),
        ("ALTER TABLE SCHED_EVENTS DROP COLUMN globalTid", 0),
    ],
)
def test_odd_rows_are_left_out(tmp_path: Path, statement: str, left: int) -> None:
    trace = changed(tmp_path, statement)
    assert len(trace.thread_states) == left
    assert len(trace.os_calls) == 1


@pytest.mark.parametrize(
    ("table", "column"), [("SCHED_EVENTS", "cpu"), ("SCHED_EVENTS", "start"), ("OSRT_API", "end")]
)
def test_a_table_that_cannot_be_read_spoils_no_other(tmp_path: Path, table: str, column: str) -> None:
    trace = changed(
        tmp_path,
        f'CREATE TABLE plain AS SELECT * FROM "{table}"',
        f'DROP TABLE "{table}"',
        f'ALTER TABLE plain RENAME TO "{table}"',
        f'UPDATE "{table}" SET "{column}" = \'x\'',
    )
    assert len(trace.kernels) == 1
    noted = [n.code for n in trace.notes]
    # Which CPU it was is never read.
    assert ("unreadable-table" in noted) is (column != "cpu")


def test_impossible_calls_are_left_out(tmp_path: Path) -> None:
    for change in ("start = 200", "start = -9223372036854775808", "globalTid = NULL", "nameId = 12345678"):
        trace = changed(tmp_path, f"UPDATE OSRT_API SET {change} WHERE start = 110")
        assert len(trace.os_calls) == (1 if "nameId" in change else 0), change


def test_real_scheduling(shared_traces: Path) -> None:
    trace = read_trace(shared_traces / "nsys" / "gpt_fwd_bwd_rtx3070ti_sched.sqlite")
    rows = trace.thread_states
    # 5,112 events of the launching thread, each followed by one of the other kind: every ns is known.
    main = np.flatnonzero(rows.thread == 0)
    assert len(main) == 5_113
    assert (rows.start_ns[main][1:] == rows.end_ns[main][:-1]).all()
    assert int(rows.end_ns[main][-1] - rows.start_ns[main][0]) == 5_826_649_314 - 1_072_614
    calls = read_trace(shared_traces / "nsys" / "gpt_small_full_step_a100.sqlite")
    assert "pthread_cond_wait" in calls.names(calls.os_calls.name)
