"""Rows with times, ids and numbers of devices that no capture has."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from perfdoc.traces import Trace, TraceError
from perfdoc.traces.load import read_trace
from perfdoc.traces.validate import MAX_DEVICES
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import TimelineBuilder

KERNEL, RUNTIME = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"
SYNC, EVENT = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
LIMIT = 2**61


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """One process: a range, two launched kernels, a copy, a record and a wait; no constraints on columns."""
    builder = TimelineBuilder()
    process = builder.process(pid=5)
    thread, gpu = process.thread(), process.device()
    thread.range("step", 0, 50)
    gpu.kernel("gemm", 100, 200, launch=(thread, 10, 20))
    gpu.kernel("gemm", 300, 400, launch=(thread, 30, 40))
    gpu.copy("host_to_device", 8, 500, 600, launch=(thread, 50, 60))
    gpu.wait_event(7, gpu.record_event(20, launch=(thread, 70, 72)), launch=(thread, 80, 82))
    written = write_nsys_sqlite(builder.build(), tmp_path / "x.sqlite")
    db = sqlite3.connect(written)
    with db:
        for (table,) in db.execute("SELECT name FROM sqlite_master WHERE name LIKE 'CUPTI%'").fetchall():
            db.execute(f"CREATE TABLE plain AS SELECT * FROM {table}")
            db.execute(f"DROP TABLE {table}")
            db.execute(f"ALTER TABLE plain RENAME TO {table}")
    db.close()
    return written


def after(path: Path, *statements: str, rows: Iterable[tuple[int, ...]] = ()) -> Trace:
    """The trace once the file was changed; rows: NVTX push/pop ranges (start, end, thread, domain)."""
    db = sqlite3.connect(path)
    with db:
        for statement in statements:
            db.execute(statement)
        db.executemany(
            "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId) "
            "VALUES (?, ?, 59, 'more', ?, ?)",
            rows,
        )
    db.close()
    return read_trace(path)


def left_out(trace: Trace) -> list[str]:
    return [n.message for n in trace.notes if n.code == "damaged-rows"]


def test_host_rows_beyond_the_limit_are_left_out_and_counted(path: Path) -> None:
    thread = 5 << 24 | 1
    assert left_out(read_trace(path)) == []
    trace = after(
        path,
        f"INSERT INTO {RUNTIME} (start, end, globalTid, correlationId) VALUES (0, {2**63 - 1}, {thread}, 90)",
        f"INSERT INTO {SYNC} (start, end, globalPid) VALUES ({-(2**63)}, 0, {5 << 24})",
        f"UPDATE {EVENT} SET timestamp = {2**62}",
        rows=[(-(2**63), 2**63 - 1, thread, 0), (0, LIMIT + 1, thread, 0), (-LIMIT, LIMIT, thread, 0)],
    )
    (message,) = left_out(trace)
    beyond = "set aside: a time or length beyond 2^61 ns"
    assert message == f"2 NVTX ranges {beyond}; 1 call {beyond}; 1 synchronisation {beyond}."
    assert sorted(zip(trace.ranges.start_ns.tolist(), trace.ranges.end_ns.tolist(), strict=True)) == [
        (-LIMIT, LIMIT),
        (0, 50),
    ]
    assert int(trace.api_calls.end_ns.max()) < 1000
    assert int(trace.syncs.start_ns.min()) >= 0
    assert trace.event_records.time_ns.tolist() == [-1]


def test_sums_of_long_rows_fit(path: Path) -> None:
    """Of the fuzzer: six calls of 73 years each, whose sum was below 0."""
    thread = 5 << 24 | 1
    calls = [
        f"INSERT INTO {RUNTIME} (start, end, globalTid, correlationId, nameId) "
        f"SELECT {i}, {LIMIT}, {thread}, {90 + i}, nameId FROM {RUNTIME} LIMIT 1"
        for i in range(6)
    ]
    trace = after(path, *calls, rows=[(0, LIMIT - i, thread, 0) for i in range(6)])
    for table in (trace.api_calls, trace.ranges):
        assert 0 <= int((table.end_ns - table.start_ns).sum()) <= 2**62
        assert len(table)  # the others stay
    assert left_out(trace)[0].startswith("6 calls set aside")
    assert "6 NVTX ranges set aside" in left_out(trace)[0]
    kernels = f"UPDATE {KERNEL} SET start = 0, end = {LIMIT}"
    assert len(after(path, kernels).kernels) == 2
    more = f"INSERT INTO {KERNEL} SELECT * FROM {KERNEL}"
    with pytest.raises(TraceError, match="kernel rows last more than"):
        after(path, more, f"UPDATE {KERNEL} SET correlationId = rowid")


@pytest.mark.parametrize("wild", [-7, 2**40, 2**62, 2**63 - 1])
def test_correlation_ids_that_no_call_has_are_unknown(path: Path, wild: int) -> None:
    tables = (KERNEL, RUNTIME, SYNC, EVENT, "CUPTI_ACTIVITY_KIND_MEMCPY")
    trace = after(path, *(f"UPDATE {t} SET correlationId = {wild}" for t in tables))
    for table in (trace.kernels, trace.copies, trace.api_calls, trace.syncs, trace.event_records):
        assert set(table.correlation.tolist()) == {-1}
    assert not trace.capabilities["launch_correlation"].available


def test_launches_are_told_only_where_an_id_is_found_in_its_own_process(path: Path) -> None:
    assert read_trace(path).capabilities["launch_correlation"].available
    # Every call moves to process 6, which ran nothing: the same ids say nothing any more.
    moved = after(path, f"UPDATE {RUNTIME} SET globalTid = {6 << 24 | 1}")
    assert not moved.capabilities["launch_correlation"].available
    assert moved.capabilities["api_calls"].available


def test_domains_of_many_processes_take_no_square_of_them(path: Path) -> None:
    n = 20_000
    begin = time.process_time()
    trace = after(
        path,
        "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId) "
        f"VALUES (0, NULL, 75, 'named', {n // 2 << 24 | 1}, {n // 2})",
        rows=[(i, i + 1, i << 24 | 1, i) for i in range(1, n)],
    )
    # A table of 20,000 processes by 20,000 domains took 54 s.
    assert time.process_time() - begin < 15
    domains = dict(zip(trace.ranges.start_ns.tolist(), trace.names(trace.ranges.domain), strict=True))
    assert {start for start, domain in domains.items() if domain} == {n // 2}
    assert domains[n // 2] == "named"


def insert_kernels(count: int) -> str:
    """So many kernels, each on a GPU of its own (ordinals from 1 on)."""
    return (
        f"WITH RECURSIVE r (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < {count}) "
        f"INSERT INTO {KERNEL} (start, end, deviceId, streamId, globalPid, shortName, demangledName) "
        f"SELECT 1000 + i, 1001 + i, i, 7, {5 << 24}, 1, 1 FROM r"
    )


def test_more_devices_than_a_node_has_are_refused(path: Path) -> None:
    # One is there already, ordinal 0.
    assert len(after(path, insert_kernels(MAX_DEVICES - 1)).devices) == MAX_DEVICES
    with pytest.raises(TraceError, match="names more than 4,096 GPUs"):
        after(path, insert_kernels(MAX_DEVICES))


def kineto(path: Path, *events: dict[str, object]) -> Trace:
    path.write_text(json.dumps({"traceEvents": [{"ph": "X", "pid": 1, "tid": 2, **e} for e in events]}))
    return read_trace(path)


def test_the_same_holds_for_pytorch_traces(tmp_path: Path) -> None:
    kernel: dict[str, object] = {"cat": "kernel", "name": "k", "ts": 10, "dur": 5}
    call: dict[str, object] = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1, "dur": 1}
    wild = {"correlation": 2**63 - 1}
    trace = kineto(
        tmp_path / "x.json",
        {**kernel, "args": {"device": 0, "stream": 7, **wild}},
        {**call, "args": wild},
        {**call, "ts": -9e15, "args": {"correlation": 5}},
        {"cat": "user_annotation", "name": "data", "ts": -9e15, "dur": 1.8e16},
        {"cat": "cpu_op", "name": "op", "ts": 9e15, "dur": 1},
    )
    assert trace.kernels.correlation.tolist() == [-1]
    assert trace.api_calls.correlation.tolist() == [-1]
    assert (len(trace.ranges), len(trace.operators)) == (0, 0)
    (message,) = left_out(trace)
    assert message.count("1 ") == 6  # a call, a range and an operator, each beyond 2^61 ns
    devices = [{**kernel, "ts": 10 * i, "args": {"device": i, "stream": 7}} for i in range(MAX_DEVICES + 1)]
    assert len(kineto(tmp_path / "y.json", *devices[1:]).devices) == MAX_DEVICES
    with pytest.raises(TraceError, match="names more than 4,096 GPUs"):
        kineto(tmp_path / "y.json", *devices)


@pytest.mark.parametrize("column", ["start", "end", "streamId", "correlationId", "deviceId", "shortName"])
def test_text_where_a_number_must_be_costs_one_row_at_most(column: str, tmp_path: Path) -> None:
    builder = TimelineBuilder()
    process = builder.process(pid=5)
    thread, gpu = process.thread(), process.device()
    thread.range("all", 10**10, 10**10 + 30_000)
    for i in range(30):
        at = 10**10 + 1_000 * i
        gpu.kernel("gemm", at + 100, at + 400, launch=(thread, at, at + 50))
    path = write_nsys_sqlite(builder.build(), tmp_path / "x.sqlite", shuffle_seed=None)
    trace = after(path, f"UPDATE {KERNEL} SET {column} = 'x' WHERE rowid = 7")
    assert len(trace.kernels) == (29 if column == "start" else 30)
    assert set((trace.kernels.end_ns - trace.kernels.start_ns).tolist()) == {300}
    said = next(note.message for note in trace.notes if note.code == "damaged-rows")
    assert f"1 value taken for unknown: not of its column's kind ({KERNEL}.{column})" in said


def test_rows_without_a_process_are_of_the_only_one(tmp_path: Path) -> None:
    builder = TimelineBuilder()
    for pid in (5, 6):
        process = builder.process(pid=pid)
        thread, gpu = process.thread(), process.device()
        thread.range("all", 0, 900)
        gpu.kernel("gemm", 100, 400, launch=(thread, 10, 50))
    path = write_nsys_sqlite(builder.build(), tmp_path / "x.sqlite", shuffle_seed=None)
    rebuild = [
        f"CREATE TABLE plain AS SELECT * FROM {KERNEL}",
        f"DROP TABLE {KERNEL}",
        f"ALTER TABLE plain RENAME TO {KERNEL}",
        f"UPDATE {KERNEL} SET globalPid = NULL WHERE rowid = 1",
    ]
    assert len(after(path, *rebuild).devices) == 2  # one of nobody: either may have launched it
    trace = after(path, f"DELETE FROM {RUNTIME} WHERE globalTid >> 24 & 16777215 = 6")
    assert [d.process for d in trace.devices] == [5, 6]


@pytest.mark.parametrize(("uuids", "told"), [(("a", "a"), True), (("a", "b"), False)])
def test_processes_that_share_a_gpu_are_told(uuids: tuple[str, str], told: bool, tmp_path: Path) -> None:
    builder = TimelineBuilder()
    for pid, uuid in zip((5, 6), uuids, strict=True):
        process = builder.process(pid=pid)
        process.device(uuid=f"00000000-0000-4000-8000-00000000000{uuid}").kernel("gemm", 100, 400)
    trace = read_trace(write_nsys_sqlite(builder.build(), tmp_path / "x.sqlite"))
    assert ("shared-gpu" in {note.code for note in trace.notes}) == told
