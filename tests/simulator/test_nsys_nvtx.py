"""NVTX rows of the SQLite writer: ranges, domains, NCCL payloads."""

from __future__ import annotations

import sqlite3
import struct
from pathlib import Path
from typing import Any

from tests.captures.events import NcclPayload
from tests.captures.nsys_schemas import ExportOptions
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import Timeline, TimelineBuilder

COMMUNICATOR = 13429301450432826988


def fetch(path: Path, sql: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def test_nvtx_rows(timeline: Timeline, tmp_path: Path) -> None:
    path = write_nsys_sqlite(timeline, tmp_path / "x.sqlite")
    rows = fetch(
        path,
        """SELECT eventType, coalesce(text, value), text IS NULL, start, end, domainId,
                  globalTid & 0xFFFFFF, endGlobalTid & 0xFFFFFF, jsonText
           FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId
           WHERE globalTid >> 24 & 0xFFFFFF = 1000 ORDER BY start, eventType DESC""",
    )
    payload = (
        f'{{"NCCL communicator ID":{COMMUNICATOR},"Message size [bytes]":4096,"Reduction operation":"Avg"}}'
    )
    assert rows == [
        (59, "perfdoc.step 0", 0, 0, 900, 0, 1050, None, None),
        (60, "background", 0, 5, 800, 0, 1050, 1060, None),
        (59, "never closed", 0, 6, None, 0, 1050, None, None),
        (34, "here", 0, 7, None, 0, 1050, None, None),
        (75, "NCCL", 0, 30, None, 1, 1050, None, None),
        (59, "ncclAllReduce", 1, 30, 45, 1, 1050, None, payload),
    ]


def test_binary_payload_can_be_decoded_with_its_schema_tables(timeline: Timeline, tmp_path: Path) -> None:
    options = ExportOptions(payloads="binary")
    path = write_nsys_sqlite(timeline, tmp_path / "x.sqlite", options=options)
    (blob, json_text), _ = fetch(
        path, "SELECT binaryData, jsonText FROM NVTX_EVENTS WHERE binaryData NOT NULL"
    )
    assert json_text is None
    domain, schema, size, _ = struct.unpack_from("<4Q", blob)
    assert (domain, len(blob)) == (1, 32 + size)
    (schema_size,) = fetch(path, f"SELECT payloadSize FROM NVTX_PAYLOAD_SCHEMAS WHERE schemaId = {schema}")[0]
    entries = fetch(
        path,
        f"""SELECT DISTINCT name, type, coalesce("offset", 0) FROM NVTX_PAYLOAD_SCHEMA_ENTRIES
            WHERE domainId = {domain} AND schemaId = {schema} ORDER BY idx""",
    )
    assert schema_size == size == 24
    assert entries[:2] == [("NCCL communicator ID", 18, 0), ("Message size [bytes]", 22, 8)]
    assert entries[2][0] == "Reduction operation"
    assert struct.unpack_from("<QQi", blob, 32) == (COMMUNICATOR, 4096, 4)
    meaning = fetch(
        path,
        f"SELECT DISTINCT name FROM NVTX_PAYLOAD_ENUM_ENTRIES WHERE schemaId = {entries[2][1]} AND value = 4",
    )
    assert meaning == [("Avg",)]


def test_layout_of_a_communicator_payload_is_that_of_real_captures(tmp_path: Path) -> None:
    t = TimelineBuilder()
    payload = NcclPayload(communicator=5, ranks=2, rank=1, device=3)
    t.process().thread().range("ncclCommInitRankConfig", 0, 1, domain="NCCL", payload=payload)
    path = write_nsys_sqlite(t.build(), tmp_path / "x.sqlite", options=ExportOptions(payloads="binary"))
    # As in the real ddp_2gpu_rtx3090 capture, the first offset NULL.
    assert fetch(path, "SELECT schemaId, numEntries, payloadSize FROM NVTX_PAYLOAD_SCHEMAS") == [
        (16777227, 4, 24)
    ]
    entries = fetch(path, 'SELECT idx, type, name, "offset" FROM NVTX_PAYLOAD_SCHEMA_ENTRIES ORDER BY idx')
    assert entries == [
        (0, 18, "NCCL communicator ID", None),
        (1, 5, "No. of ranks", 8),
        (2, 5, "Rank", 12),
        (3, 5, "CUDA device", 16),
    ]
    ((blob,),) = fetch(path, "SELECT binaryData FROM NVTX_EVENTS WHERE eventType = 59")
    assert struct.unpack_from("<Qiii", blob, 32) == (5, 2, 1, 3)
