"""NVTX rows of the SQLite writer: ranges, domains, NCCL payloads."""

from __future__ import annotations

import json
import sqlite3
import struct
from pathlib import Path
from typing import Any, Literal

import pytest

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


@pytest.mark.parametrize(("form", "inline"), [("inline", 10), ("interned", 0), ("mixed", 8)])
def test_nvtx_names_go_where_asked(
    timeline: Timeline, tmp_path: Path, form: Literal["inline", "interned", "mixed"], inline: int
) -> None:
    path = write_nsys_sqlite(
        timeline, tmp_path / "x.sqlite", options=ExportOptions(text=form, domain_rows=False)
    )
    counts = fetch(path, "SELECT count(*), count(text), count(textId) FROM NVTX_EVENTS")
    assert counts == [(10, inline, 10 - inline)]
    names_read = fetch(
        path, "SELECT coalesce(text, value) FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId"
    )
    assert sorted({n for (n,) in names_read}) == [
        "background",
        "here",
        "ncclAllReduce",
        "never closed",
        "perfdoc.step 0",
    ]


def test_one_domain_id_may_mean_two_domains(tmp_path: Path) -> None:
    t = TimelineBuilder()
    for pid, domain in ((1, "NCCL"), (2, "CCCL")):
        t.process(pid=pid).thread().range("r", 0, 1, domain=domain)
    path = write_nsys_sqlite(t.build(), tmp_path / "x.sqlite")
    rows = fetch(path, "SELECT text, domainId FROM NVTX_EVENTS WHERE eventType = 75 ORDER BY text")
    assert rows == [("CCCL", 1), ("NCCL", 1)]


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


def test_payloads_are_lost_where_that_version_loses_them(timeline: Timeline, tmp_path: Path) -> None:
    path = write_nsys_sqlite(timeline, tmp_path / "x.sqlite", generation="2024.2")
    assert fetch(path, "SELECT count(*) FROM NVTX_EVENTS WHERE jsonText NOT NULL") == [(0,)]
    with pytest.raises(ValueError, match=r"2024\.2 cannot hold payloads as binary"):
        write_nsys_sqlite(
            timeline, tmp_path / "y.sqlite", generation="2024.2", options=ExportOptions(payloads="binary")
        )
    assert not (tmp_path / "y.sqlite").exists()


def test_json_payload_is_json(timeline: Timeline, tmp_path: Path) -> None:
    path = write_nsys_sqlite(timeline, tmp_path / "x.sqlite")
    texts = [
        json.loads(text)
        for (text,) in fetch(path, "SELECT jsonText FROM NVTX_EVENTS WHERE jsonText NOT NULL")
    ]
    assert [text["NCCL communicator ID"] for text in texts] == [COMMUNICATOR] * 2


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


@pytest.mark.parametrize(
    "payload", [NcclPayload(communicator=-1), NcclPayload(communicator=1, reduction="Median")]
)
def test_a_payload_that_no_bytes_can_hold_is_refused(tmp_path: Path, payload: NcclPayload) -> None:
    t = TimelineBuilder()
    t.process().thread().range("ncclAllReduce", 0, 1, domain="NCCL", payload=payload)
    with pytest.raises(ValueError, match=r"payload: .*(-1|Median)"):
        write_nsys_sqlite(t.build(), tmp_path / "x.sqlite", options=ExportOptions(payloads="binary"))
    assert not list(tmp_path.iterdir())
