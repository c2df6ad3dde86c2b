"""Columns of another type than nsys writes: read as far as they mean something, refused in a line else."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from perfdoc.traces import Trace, TraceError
from perfdoc.traces.load import read_trace
from perfdoc.traces.nsys.columns import of_arrow

KERNEL, RUNTIME = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"
BAD = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xffk")])
NVTX = {"start": [1], "end": [2], "eventType": [59], "globalTid": [5 << 24 | 1]}


def folder(path: Path, tables: Mapping[str, object]) -> Path:
    """A parquetdir of one kernel of 1000 ns named by string 1, some tables replaced."""
    path.mkdir()
    usual = {
        "StringIds": {"id": [1], "value": ["k"]},
        KERNEL: {
            "start": [1000], "end": [2000], "deviceId": [0], "streamId": [7], "correlationId": [1],
            "globalPid": [5 << 24], "shortName": [1], "demangledName": [1],
        },
        RUNTIME: {
            "start": [10], "end": [20], "globalTid": [5 << 24 | 1], "correlationId": [1], "nameId": [1],
        },
    }  # fmt: skip
    for name, columns in {**usual, **tables}.items():
        pq.write_table(pa.table(columns), path / f"{name}.parquet")
    return path


def read(tmp_path: Path, **tables: object) -> Trace:
    trace = read_trace(folder(tmp_path / "p", tables))
    assert trace.kernels.end_ns.tolist() == [2000]
    return trace


@pytest.mark.parametrize(
    ("values", "name"),
    [
        (BAD, "\ufffdk"),
        (pa.array([b"\xffk"]), "\ufffdk"),
        (pa.array(["k"]).dictionary_encode(), "k"),
        (BAD.dictionary_encode(), "\ufffdk"),
        (pa.array(["k"], pa.large_string()), "k"),
        (pa.array([5]), "5"),
        (pa.array([None], pa.string()), "[name 1 missing in StringIds]"),
    ],
)
def test_names_of_any_type_of_text(tmp_path: Path, values: pa.Array, name: str) -> None:
    trace = read(tmp_path, StringIds={"id": [1], "value": values})
    assert trace.names(trace.kernels.name) == [name]


def test_column_names_that_are_not_utf8(tmp_path: Path) -> None:
    """Of the fuzzer: told in Python's words."""
    path = folder(tmp_path / "p", {}) / f"{KERNEL}.parquet"
    content = path.read_bytes()
    path.write_bytes(content.replace(b"deviceId", b"\xffeviceId"))
    with pytest.raises(TraceError, match="cannot be read as Parquet") as caught:
        read_trace(path.parent)
    assert "codec" not in str(caught.value)


def test_facts_that_are_not_utf8_or_no_text(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        META_DATA_EXPORT={"name": BAD, "value": BAD},
        META_DATA_CAPTURE={"name": ["a"], "value": [5]},
        DIAGNOSTIC_EVENT={"text": BAD},
        TARGET_INFO_GPU={"id": [0], "name": [b"\xffG"], "totalMemory": [8], "smCount": [1.5]},
    )
    assert (trace.devices[0].gpu_name, trace.devices[0].sm_count) == ("\ufffdG", None)


@pytest.mark.parametrize(
    ("names", "values", "host"),
    [
        (["Hostname", "Cpu"], ["node012", "x"], "node012"),
        (["Cpu"], ["x"], None),
        (["Hostname", "Hostname"], ["node1", "node2"], None),
        (["Hostname"], [b"\xffn"], "\ufffdn"),
        (["Hostname"], [None], None),
    ],
)
def test_the_machine_is_named_where_the_export_names_one(
    tmp_path: Path, names: list[str], values: list[str | bytes | None], host: str | None
) -> None:
    trace = read(tmp_path, TARGET_INFO_SYSTEM_ENV={"name": names, "value": values})
    assert [device.host for device in trace.devices] == [host]


def test_payloads_in_lists_of_bytes_are_read_and_others_ignored(tmp_path: Path) -> None:
    schema = {"domainId": [0], "schemaId": [1], "type": [18], "name": ["NCCL communicator ID"], "offset": [0]}
    payload = bytes(8) + b"\1" + bytes(7) + b"\x08" + bytes(7) + b"\x28" + bytes(7) + b"\x63" + bytes(7)
    for i, (cell, kind, expected) in enumerate(
        (
            (list(payload), pa.list_(pa.uint8()), [99]),
            (payload, pa.binary(), [99]),
            ([1, 2], pa.list_(pa.int64()), []),
        )
    ):
        cells = pa.array([cell], kind)
        path = folder(
            tmp_path / str(i),
            {"NVTX_PAYLOAD_SCHEMA_ENTRIES": schema, "NVTX_EVENTS": {**NVTX, "binaryData": cells}},
        )
        assert read_trace(path).payloads.communicator.tolist() == expected


@pytest.mark.parametrize(
    ("table", "columns", "named"),
    [
        ("StringIds", {"id": ["1"], "value": ["k"]}, "StringIds.id"),
        ("NVTX_EVENTS", {**NVTX, "text": [["a"]]}, "column text holds list"),
        ("NVTX_EVENTS", {**NVTX, "jsonText": [["a"]]}, "column jsonText holds list"),
        ("TARGET_INFO_GPU", {"id": [[1]], "totalMemory": [8]}, "column id holds list"),
        ("ThreadNames", {"nameId": ["x"], "globalTid": [5 << 24 | 1]}, "ThreadNames.nameId"),
        ("ThreadNames", {"nameId": [1], "globalTid": [[1]]}, "column globalTid holds list"),
        ("META_DATA_EXPORT", {"name": [{"a": 1}], "value": ["x"]}, "column name holds struct"),
    ],
)
def test_columns_that_mean_nothing_are_refused(
    tmp_path: Path, table: str, columns: Mapping[str, object], named: str
) -> None:
    path = folder(tmp_path / "p", {table: columns})
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def sqlite(path: Path, *, strings: str = "id INTEGER", kernel: str = "", more: tuple[str, ...] = ()) -> Path:
    """The same capture as SQLite. kernel: further columns of the kernel table, which come first."""
    db = sqlite3.connect(path)
    with db:
        db.execute(f"CREATE TABLE StringIds ({strings}, value TEXT)")
        db.execute("INSERT INTO StringIds VALUES (1, 'k')")
        db.execute(
            f"CREATE TABLE {KERNEL} ({kernel} start INTEGER, end INTEGER, deviceId INTEGER, "
            "streamId INTEGER, correlationId INTEGER, globalPid INTEGER, shortName INTEGER, "
            "demangledName INTEGER)"
        )
        listed = "start, end, deviceId, streamId, correlationId, globalPid, shortName, demangledName"
        db.execute(f"INSERT INTO {KERNEL} ({listed}) VALUES (1000, 2000, 0, 7, 1, {5 << 24}, 1, 1)")
        db.execute(f"INSERT INTO {KERNEL} ({listed}) VALUES (3000, 4000, 0, 7, 2, {5 << 24}, 1, 1)")
        db.execute(
            f"CREATE TABLE {RUNTIME} (start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER)"
        )
        db.execute(f"INSERT INTO {RUNTIME} VALUES (10, 20, {5 << 24 | 1}, 1)")
        for statement in more:
            db.execute(statement)
    db.close()
    return path


def test_thread_names_that_are_no_ids(tmp_path: Path) -> None:
    names = "CREATE TABLE ThreadNames (nameId TEXT, globalTid INTEGER)"
    row = f"INSERT INTO ThreadNames VALUES ('x', {5 << 24 | 1})"
    with pytest.raises(TraceError, match=r"ThreadNames\.nameId"):
        read_trace(sqlite(tmp_path / "x.sqlite", more=(names, row)))


@pytest.mark.parametrize("hidden", ["rowid TEXT,", "rowid TEXT, _RowId_ TEXT,"])
def test_a_column_that_hides_the_row_id(tmp_path: Path, hidden: str) -> None:
    path = sqlite(tmp_path / "x.sqlite", kernel=hidden)
    assert read_trace(path).kernels.start_ns.tolist() == [1000, 3000]


def test_a_table_whose_row_ids_are_all_hidden_is_refused(tmp_path: Path) -> None:
    path = sqlite(tmp_path / "x.sqlite", kernel="rowid TEXT, _rowid_ TEXT, oid TEXT,")
    with pytest.raises(TraceError, match="row ids are hidden"):
        read_trace(path)


TYPES = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_integers_of_every_width_with_nulls_chunks_and_offsets(kind: pa.DataType) -> None:
    column = of_arrow(
        [pa.array([9, 1, None, 3], kind).slice(1), pa.array([], kind), pa.array([None, 5], kind)]
    )
    assert column.to_int64(-7).tolist() == [1, -7, 3, -7, 5]
    assert column.valid.tolist() == [True, False, True, False, True]


def test_large_integers_keep_every_bit_beside_nulls() -> None:
    # Through float64 2^63 - 1 would come back as 2^63.
    assert of_arrow([pa.array([2**63 - 1, None], pa.int64())]).to_int64(0).tolist() == [2**63 - 1, 0]
    unsigned = of_arrow([pa.array([2**64 - 1, None], pa.uint64())]).to_int64(0)
    assert unsigned.view(np.uint64).tolist() == [2**64 - 1, 0]
