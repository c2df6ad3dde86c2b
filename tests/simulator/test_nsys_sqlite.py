"""What the SQLite writer puts into a file, read back with plain SQL."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfdoc.profiling.errors import CaptureError
from perfdoc.simulator.captures.nsys import TABLES, create_tables, write_rows
from tests.captures.nsys_schemas import GENERATIONS
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import Timeline


def fetch(path: Path, sql: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def table_names(path: Path) -> set[str]:
    return {row[0] for row in fetch(path, "SELECT name FROM sqlite_master")}


@pytest.mark.parametrize("generation", GENERATIONS)
def test_every_generation_holds_the_same_work(timeline: Timeline, tmp_path: Path, generation: str) -> None:
    path = write_nsys_sqlite(timeline, tmp_path / "x.sqlite", generation=generation)
    assert fetch(path, "PRAGMA integrity_check") == [("ok",)]
    kernels = fetch(
        path,
        """SELECT k.globalPid >> 24 & 0xFFFFFF, deviceId, streamId, k.start, k.end, s.value, d.value,
                  gridX * gridY * gridZ, r.start, n.value, r.globalTid & 0xFFFFFF, graphNodeId
           FROM CUPTI_ACTIVITY_KIND_KERNEL k
           JOIN StringIds s ON s.id = shortName JOIN StringIds d ON d.id = demangledName
           JOIN CUPTI_ACTIVITY_KIND_RUNTIME r
             ON r.correlationId = k.correlationId AND r.globalTid >> 24 = k.globalPid >> 24
           JOIN StringIds n ON n.id = r.nameId
           ORDER BY 1, k.start""",
    )
    one = [
        (7, 100, 300, "gemm", "void gemm<bf16>(int)", 60, 10, "cudaLaunchKernel_v7000"),
        (
            20,
            200,
            500,
            "ncclDevKernel_AllReduce",
            "ncclDevKernel_AllReduce",
            132,
            32,
            "cudaLaunchKernel_v7000",
        ),
        (7, 620, 640, "in_graph", "in_graph", 132, 80, "cudaGraphLaunch_v10000"),
    ]
    nodes = (None, None, 8589934592)
    assert kernels == [
        (pid, rank, *row, pid + 50, node)
        for rank, pid in enumerate((1000, 1001))
        for row, node in zip(one, nodes, strict=True)
    ]
    assert (
        fetch(path, "SELECT bytes, copyKind, start, end FROM CUPTI_ACTIVITY_KIND_MEMCPY")
        == [(65536, 1, 500, 600)] * 2
    )
    assert fetch(path, "SELECT bytes, start, end FROM CUPTI_ACTIVITY_KIND_MEMSET") == [(128, 600, 610)] * 2
    assert fetch(path, "SELECT utcEpochNs, utcTime FROM TARGET_INFO_SESSION_START_TIME") == [
        (1_700_000_000_123_456_789, "2023-11-14T22:13:20")
    ]
    assert sorted(fetch(path, "SELECT name, smCount, cuDevice FROM TARGET_INFO_GPU")) == [
        ("NVIDIA H100 80GB HBM3", 132, 0),
        ("NVIDIA H100 80GB HBM3", 132, 1),
    ]
    meta = "META_DATA_EXPORT" if generation >= "2023" else "EXPORT_META_DATA"
    product = fetch(path, f"SELECT value FROM {meta} WHERE name = 'EXPORT_PRODUCT_VERSION'")
    assert product == [(GENERATIONS[generation].product,)]
    assert product[0][0].startswith(generation)


def test_event_edge_joins_on_event_sync_id(timeline: Timeline, tmp_path: Path) -> None:
    path = write_nsys_sqlite(timeline, tmp_path / "x.sqlite")
    edges = fetch(
        path,
        """SELECT e.streamId, e.deviceId, s.streamId, s.deviceId, s.eventId, e.timestamp
           FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION s JOIN CUPTI_ACTIVITY_KIND_CUDA_EVENT e
             ON s.eventSyncId = e.eventSyncId AND s.globalPid = e.globalPid
           WHERE syncType = 2 ORDER BY 2""",
    )
    assert edges == [(20, 0, 7, 0, 77, 500), (20, 1, 7, 0, 77, 500)], "waits carry device 0, as in real files"
    host = fetch(
        path, "SELECT DISTINCT streamId, eventId FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION WHERE syncType = 4"
    )
    assert host == [(2**32 - 1, 2**32 - 1)]


def test_early_versions_number_waits_their_own_way(timeline: Timeline, tmp_path: Path) -> None:
    old = write_nsys_sqlite(timeline, tmp_path / "old.sqlite", generation="2024.6")
    assert set(fetch(old, "SELECT syncType FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION")) == {(0,), (3,)}
    between = write_nsys_sqlite(timeline, tmp_path / "between.sqlite", generation="2025.1")
    codes = fetch(between, "SELECT deprecatedSyncType, syncType FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION")
    assert set(codes) == {(0, 0), (3, 0)}


def test_an_existing_file_stays_unless_forced(timeline: Timeline, tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    path.write_text("mine", encoding="utf-8")
    with pytest.raises(CaptureError, match=r"x\.sqlite"):
        write_nsys_sqlite(timeline, path)
    assert path.read_text(encoding="utf-8") == "mine"
    write_nsys_sqlite(timeline, path, force=True)
    assert "CUPTI_ACTIVITY_KIND_KERNEL" in table_names(path)
    assert [p.name for p in tmp_path.iterdir()] == ["x.sqlite"], "nothing temporary may stay"


def test_bulk_rows_take_arrays_and_constants(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "bulk.sqlite")
    create_tables(connection, {t: TABLES[t] for t in ["CUPTI_ACTIVITY_KIND_RUNTIME"]})
    start = np.arange(70_000, dtype=np.int64)
    written = write_rows(
        connection,
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        {"start": start, "end": start + 5, "eventClass": 0, "nameId": 2, "returnValue": 0},
    )
    total = connection.execute(
        """SELECT count(*), sum(end - start), sum(nameId), count(correlationId)
           FROM CUPTI_ACTIVITY_KIND_RUNTIME"""
    )
    assert written == 70_000
    assert total.fetchone() == (70_000, 350_000, 140_000, 0)
    with pytest.raises(ValueError, match=r"lengths \[1, 2\]"):
        write_rows(connection, "CUPTI_ACTIVITY_KIND_RUNTIME", {"start": [1], "end": [1, 2]})
    connection.close()
