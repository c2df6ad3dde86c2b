"""The Parquet folder: files, columns, values."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from perfdoc.profiling.errors import CaptureError
from tests.captures.nsys_parquet import write_nsys_parquet
from tests.captures.nsys_schemas import ExportOptions, tables
from tests.captures.timeline import Timeline


@pytest.mark.parametrize("generation", ["2024.2", "2026.3"])
def test_one_file_per_table_with_the_columns_of_the_schema(
    timeline: Timeline, tmp_path: Path, generation: str
) -> None:
    folder = write_nsys_parquet(timeline, tmp_path / "x", generation=generation)
    files = {p.stem: p for p in folder.iterdir()}
    assert {"CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS", "StringIds", "META_DATA_EXPORT"} <= set(files)
    assert "CUPTI_ACTIVITY_KIND_GRAPH_TRACE" not in files, "no rows, no file"
    schema = tables(generation)
    for table, path in files.items():
        assert path.suffix == ".parquet"
        assert pq.read_schema(path).names == [c.name for c in schema[table]]


def test_values_and_types(timeline: Timeline, tmp_path: Path) -> None:
    folder = write_nsys_parquet(timeline, tmp_path / "x")
    kernels = pq.read_table(folder / "CUPTI_ACTIVITY_KIND_KERNEL.parquet")
    strings = pq.read_table(folder / "StringIds.parquet").to_pydict()
    text = dict(zip(strings["id"], strings["value"], strict=True))
    rows = kernels.to_pylist()
    assert [(r["start"], r["end"], text[r["shortName"]], r["mangledName"]) for r in rows[:3]] == [
        (100, 300, "gemm", None),
        (200, 500, "ncclDevKernel_AllReduce", None),
        (620, 640, "in_graph", None),
    ]
    types = {f.name: str(f.type) for f in kernels.schema}
    assert (types["start"], types["globalPid"], types["gridX"]) == ("int64", "uint64", "int32")
    assert not kernels.schema.field("start").nullable
    assert kernels.schema.field("globalPid").nullable


def test_empty_tables_force_and_refusals(timeline: Timeline, tmp_path: Path) -> None:
    folder = write_nsys_parquet(timeline, tmp_path / "x", empty_tables=True)
    assert {p.stem for p in folder.iterdir()} == set(tables("2024.2"))
    with pytest.raises(CaptureError, match="x: exists"):
        write_nsys_parquet(timeline, folder)
    write_nsys_parquet(timeline, folder, force=True)
    assert not (folder / "CUPTI_ACTIVITY_KIND_GRAPH_TRACE.parquet").exists(), "the old folder must be gone"
    with pytest.raises(ValueError, match="binary"):
        write_nsys_parquet(timeline, tmp_path / "y", options=ExportOptions(payloads="binary"))
