"""A large capture is read in parts and kept on disk: whatever the cuts, the same columns and diagnosis."""

from __future__ import annotations

import mmap
import os
import re
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any
from weakref import WeakSet

import msgspec
import numpy as np
import pytest

from perfdoc.analyzers.base.memory import LARGE, give_back
from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.diagnose.diagnosis import diagnose
from perfdoc.profiling import telling
from perfdoc.results import to_json
from perfdoc.simulator.replay.unedited import replay_and_keep
from perfdoc.traces import Trace, TraceError, on_disk, table
from perfdoc.traces.load import read_trace
from perfdoc.traces.model import ApiCalls
from perfdoc.traces.nsys import sqlite_file
from perfdoc.traces.table import Table
from tests.captures.kineto import write_kineto
from tests.simulator.hand_laid import hand_laid_timeline, write_hand_laid
from tests.summaries.made import two_ranks

QUICK = (
    *("nsys/cuda_graph_a100.sqlite", "nsys/ddp_2gpu_rtx3090.sqlite"),
    "kineto/cuda_event_sync_multi_stream.json.gz",
)
LONG = (
    *("nsys/gpt_fwd_bwd_rtx3070ti_sched.sqlite", "nsys/gpt_small_full_step_a100.sqlite"),
    *("nsys/host_bound_2gpu_h100.sqlite", "nsys/sp_2gpu_after.sqlite", "nsys/windows_rtx5000.sqlite"),
    *("kineto/ddp_nccl_metadata_a100_rank0of2.json.gz", "kineto/dlrm_layernorm_a100_rank3of8.json.gz"),
)


def in_parts(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(on_disk, "_LARGE_ROWS", 0)
    monkeypatch.setattr(on_disk, "_MANY_VALUES", 1)
    monkeypatch.setattr(sqlite_file, "_PART_ROWS", rows)
    monkeypatch.setattr(table, "_IN_MEMORY", rows)
    monkeypatch.setattr(table, "_AT_ONCE", rows)


def said(trace: Trace) -> dict[str, Any]:
    """Every column, names as texts: in which order texts were met is nothing that is read."""
    found: dict[str, Any] = {"threads": trace.threads, "devices": trace.devices}
    texts = np.array([*trace.strings, "none"], object)
    for field in fields(trace):
        if isinstance(rows := getattr(trace, field.name), Table):
            for name in rows.column_names():
                column = getattr(rows, name)
                is_text = name in ("name", "full_name", "domain")
                found[f"{field.name}.{name}"] = (texts[column] if is_text else column).tolist()
    return found


def diagnosed(path: Path) -> Any:
    return msgspec.json.decode(
        to_json(diagnose([measure_capture(path, WindowRequest(), also=replay_and_keep)]))
    )


@pytest.mark.parametrize("rows", [1, 3, 1000])
def test_the_columns_of_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    path = two_ranks(tmp_path / "job")[0]
    whole = said(read_trace(path))
    assert len(whole["kernels.name"]) > rows or rows == 1000
    in_parts(monkeypatch, rows)
    assert said(read_trace(path)) == whole


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(n, marks=pytest.mark.slow) for n in LONG)])
def test_the_diagnosis_of_a_real_trace(
    shared_traces: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = shared_traces / name
    whole, columns = diagnosed(path), said(read_trace(path))
    in_parts(monkeypatch, 7 if len(columns["kernels.name"]) < 997 else 997)
    assert said(read_trace(path)) == columns
    assert diagnosed(path) == whole


def test_nothing_lies_about_and_no_page_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = write_hand_laid(tmp_path / "made")
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    in_parts(monkeypatch, 2)
    trace = read_trace(path)
    assert list(folder.iterdir()) == []
    before = trace.kernels.start_ns.copy()
    assert not trace.kernels.start_ns.flags.writeable
    for rows in (trace.kernels, trace.api_calls, trace.ranges, trace.copies):
        assert len(rows)
        assert all(is_mapped(getattr(rows, name)) for name in rows.column_names())
    if sys.platform == "linux":
        assert held_kib() > 0
        give_back(LARGE)
        assert held_kib() == 0
    assert (trace.kernels.start_ns == before).all()


def is_mapped(column: Any) -> bool:
    while isinstance(column, np.ndarray) and column.base is not None:
        column = column.base
    return isinstance(getattr(column, "obj", column), mmap.mmap)


def held_kib() -> int:
    """Of unnamed files that are mapped."""
    of_file, held = False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match("[0-9a-f]+-", line):
            of_file = "perfdoc-" in line or ("(deleted)" in line and "/tmp" in line)
        elif of_file and line.startswith("Rss:"):
            held += int(line.split()[1])
    return held


def test_no_such_folder_is_not_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """/tmp may be memory."""
    for named, used in (
        (str(tmp_path), str(tmp_path)),
        (str(tmp_path / "none"), "/var/tmp"),
        ("", "/var/tmp"),
    ):
        monkeypatch.setenv("TMPDIR", named)
        assert on_disk.folder() == used
    monkeypatch.setattr(on_disk, "_VAR_TMP", str(tmp_path / "none"))
    assert on_disk.folder() is None


def test_room_is_left_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the disk fills up a column goes on in memory; where there is none either that is told."""
    column = on_disk.Growing(np.dtype(np.int64))
    column.add(np.arange(3))
    monkeypatch.setattr(on_disk, "LEFT_FREE_BYTES", 1 << 62)
    column.add(np.arange(3, 5))
    monkeypatch.setattr(on_disk, "LEFT_FREE_BYTES", 0)
    column.add(np.arange(5, 7))
    found = column.mapped()
    assert found.tolist() == list(range(7))
    assert not is_mapped(found)
    monkeypatch.setattr(on_disk, "LEFT_FREE_BYTES", 1 << 62)
    monkeypatch.setattr(on_disk, "usable_memory_bytes", lambda: (4 << 30) - 1)
    with pytest.raises(on_disk.NoRoomError):
        on_disk.moved(np.arange(3))


def test_threads_may_let_go_and_add_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is mapped is looked at and added to by one at a time."""

    class Watched(WeakSet[mmap.mmap]):
        looks = 0

        def __iter__(self) -> Iterator[mmap.mmap]:
            assert on_disk._mapping.locked()
            self.looks += 1
            return super().__iter__()

        def add(self, item: mmap.mmap) -> None:
            assert on_disk._mapping.locked()
            super().add(item)

    watched = Watched()
    monkeypatch.setattr(on_disk, "_mapped", watched)
    held = on_disk.moved(np.arange(3))
    on_disk.let_go()
    assert watched.looks == 1
    assert held.tolist() == [0, 1, 2]


def read_in_parts(path: Path, rows: list[tuple[int, int]]) -> list[list[int]]:
    """A table of one column is made of (row id, value), and read part by part."""
    with closing(sqlite3.connect(path)) as made, made:
        made.execute("CREATE TABLE t (a INTEGER)")
        made.executemany("INSERT INTO t (rowid, a) VALUES (?, ?)", rows)
    file = sqlite_file.SqliteFile(path)
    try:
        return [part["a"].to_pylist() for part in file.read_parts("t", ["a"])]
    finally:
        file.close()


def test_rows_far_apart_are_few_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten rows, 2^40 apart; the first parts look for one row each, the rest is one."""
    monkeypatch.setattr(sqlite_file, "_PART_ROWS", 16)
    parts = read_in_parts(tmp_path / "x.sqlite", [(i << 40, i) for i in range(1, 11)])
    assert list(chain.from_iterable(parts)) == list(range(1, 11))
    assert len(parts) == 4


def test_dense_rows_behind_sparse_ones_are_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three rows far apart, then 2,000 in a row, then one far away: no part holds more than 100."""
    ids = [1, 10_000, 20_000, *range(10**6, 10**6 + 2_000), 10**12]
    monkeypatch.setattr(sqlite_file, "_PART_ROWS", 100)
    parts = read_in_parts(tmp_path / "x.sqlite", [(i, i) for i in ids])
    assert list(chain.from_iterable(parts)) == ids
    assert max(map(len, parts)) <= 100


def test_a_last_row_that_is_not_the_last_ends_the_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last cell's id was 200 and says 99: the largest id is less than what follows another one."""
    path = tmp_path / "x.sqlite"
    with closing(sqlite3.connect(path)) as made, made:
        made.execute("CREATE TABLE t (a TEXT)")
        made.executemany(
            "INSERT INTO t (rowid, a) VALUES (?, ?)", [(i, f"row{i:03}") for i in (1, 2, 100, 200)]
        )
    content = path.read_bytes()
    last = content.index(b"row200")
    # In front of the text: the payload's length, the row id in two bytes, the header's length, the type.
    assert content[last - 4 : last - 2] == bytes((0x81, 200 & 0x7F))
    path.write_bytes(content[: last - 4] + bytes((0x80, 99)) + content[last - 2 :])
    monkeypatch.setattr(sqlite_file, "_PART_ROWS", 2)
    file = sqlite_file.SqliteFile(path)
    try:
        with pytest.raises(TraceError):
            list(islice(file.read_parts("t", ["a"]), 50))
    finally:
        file.close()


def test_parts_of_another_type_are_a_mistake() -> None:
    with pytest.raises(AssertionError):
        on_disk.Growing(np.dtype(np.int32)).add(np.arange(3, dtype=np.int64))


@pytest.mark.parametrize("tool", ["nsys", "kineto"])
def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str) -> None:
    if tool == "nsys":
        path, _ = write_hand_laid(tmp_path / "made")
    else:
        path = write_kineto(hand_laid_timeline()[0], tmp_path / "x.json", 41000)
    in_parts(monkeypatch, 2)
    monkeypatch.setattr(on_disk, "_file", partial(open, "/dev/full", "r+b", buffering=0))
    with pytest.raises(TraceError, match="TMPDIR") as refused:
        read_trace(path)
    assert os.strerror(28) in str(refused.value)
    # What is worked out later may as well stay in memory.
    values = np.arange(5)
    assert on_disk.aside(values) is values


def test_parts_without_rows() -> None:
    assert len(on_disk.on_disk(ApiCalls, [ApiCalls.empty(), ApiCalls.empty()])) == 0


def test_how_far_it_is_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = two_ranks(tmp_path / "job")[0]
    kernels = len(read_trace(path).kernels)
    measure_capture(path, WindowRequest())
    assert capsys.readouterr().err == ""
    in_parts(monkeypatch, kernels - 1)
    monkeypatch.setattr(telling, "QUIET_S", -1.0)
    measure_capture(path, WindowRequest())
    lines = capsys.readouterr().err.splitlines()
    assert f"KERNEL: {kernels - 1} of about {kernels} rows read" in lines[0]
    assert f"KERNEL: {kernels} of about {kernels} rows read" in lines[1]
    assert "1 of 1 devices analysed" in lines[-1]
