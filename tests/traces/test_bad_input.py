"""What cannot be read ends in one line that says what, where and what to do."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.traces import TraceError
from perfdoc.traces.load import content_sha256, find_captures, read_trace
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import TimelineBuilder
from tests.planted.capture import write_capture

KINETO = (
    b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 1}]}'
)


def refused(path: Path | str) -> TraceError:
    """The error of a whole analysis: finding, reading and measuring."""

    def analyse() -> None:
        for capture in find_captures([str(path)]):
            measure_capture(capture, WindowRequest())

    with pytest.raises(TraceError) as caught:
        analyse()
    message = str(caught.value)
    assert "\n" not in message
    assert Path(str(path)).name.split("*")[0] in message
    return caught.value


@pytest.fixture
def sqlite_file(tmp_path: Path) -> Path:
    builder = TimelineBuilder()
    builder.process().device().kernel("gemm", 100, 200)
    return write_nsys_sqlite(builder.build(), tmp_path / "trace.sqlite")


def edited(path: Path, *statements: str) -> Path:
    db = sqlite3.connect(path)
    with db:
        for statement in statements:
            db.execute(statement)
    db.close()
    return path


def test_missing_file_and_pattern_without_a_match(tmp_path: Path) -> None:
    assert "does not exist" in str(refused(tmp_path / "none.sqlite"))
    assert "matches no file" in str(refused(str(tmp_path / "rank*.json")))


def test_folder_without_traces(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    (tmp_path / "config.json").write_text('{"lr": 1}')
    assert "without traces" in str(refused(tmp_path))


@pytest.mark.parametrize("keep", [50, 99, 4096, 5000, 20_000])
def test_truncated_sqlite(sqlite_file: Path, keep: int) -> None:
    os.truncate(sqlite_file, keep)
    refused(sqlite_file)


def test_damaged_pages(tmp_path: Path) -> None:
    path = write_capture(tmp_path / "demo")
    content = bytearray(path.read_bytes())
    for at in range(8192, len(content) - 4096, 16384):
        content[at : at + 2048] = b"\xa5" * 2048
    path.write_bytes(content)
    refused(path)


@pytest.mark.parametrize(
    "content", [b"", b"\x00\x01\x02", b"hello world", b"PAR1....PAR1", b"\x80\x04\x95pickle"]
)
@pytest.mark.parametrize("name", ["x.sqlite", "x.json", "x.bin", "x", "x.nsys-rep"])
def test_other_files(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    refused(path)


@pytest.mark.parametrize(
    "changes",
    [
        ["DELETE FROM {}"],
        ["DROP TABLE {}", "CREATE VIRTUAL TABLE {} USING fts4(start, end, deviceId)"],  # made by code
        ["ALTER TABLE {} RENAME TO hidden", "CREATE VIEW {} AS SELECT * FROM hidden"],
    ],
)
def test_a_table_of_kernels_that_is_none(sqlite_file: Path, changes: list[str]) -> None:
    edited(sqlite_file, *(change.format("CUPTI_ACTIVITY_KIND_KERNEL") for change in changes))
    assert "no GPU kernels" in refused(sqlite_file).what


def test_without_names_nothing_is_told(sqlite_file: Path) -> None:
    edited(sqlite_file, "DROP TABLE StringIds")
    assert "StringIds" in refused(sqlite_file).what


@pytest.mark.parametrize("kind", ["table", "view", "index"])
def test_a_schema_that_is_not_utf8(sqlite_file: Path, kind: str) -> None:
    """SQLite quotes it in what it says, and Python cannot decode that."""
    row = f"'{kind}', CAST(x'ff61' AS TEXT), CAST(x'ff61' AS TEXT), 2, CAST(x'637265617465ff' AS TEXT)"
    edited(sqlite_file, "PRAGMA writable_schema = ON", f"INSERT INTO sqlite_master VALUES ({row})")
    assert "malformed database schema (\ufffda)" in refused(sqlite_file).what


def test_sqlite_of_somebody_else(tmp_path: Path) -> None:
    path = edited(tmp_path / "other.sqlite", "CREATE TABLE users (id INTEGER)")
    error = refused(path)
    assert "not a Nsight Systems export" in error.what
    assert "nsys export" in error.remedy


def test_no_kernel_table(shared_traces: Path) -> None:
    error = refused(shared_traces / "nsys" / "no_kernel_table.sqlite")
    assert "CUPTI_ACTIVITY_KIND_KERNEL" in error.what
    assert "--trace=cuda" in error.remedy


def test_a_cpu_trace(shared_traces: Path) -> None:
    error = refused(shared_traces / "kineto" / "cpu_only.json.gz")
    assert "no GPU kernels" in error.what
    assert "ProfilerActivity.CUDA" in error.remedy


@pytest.mark.parametrize(
    "change", ["start = -5", f"end = {2**61 + 1}", f"end = {2**63 - 1}", "start = 'soon'"]
)
def test_impossible_times(sqlite_file: Path, change: str) -> None:
    refused(edited(sqlite_file, f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET {change}"))


def test_a_report_without_nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.nsys-rep"
    path.write_bytes(b"whatever")
    monkeypatch.delenv("PERFDOC_NSYS", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    error = refused(path)
    assert "no `nsys` is installed" in error.what
    assert "nsys export --type sqlite" in error.remedy


def test_a_report_that_nsys_cannot_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nsys = tmp_path / "nsys"
    nsys.write_text("#!/bin/sh\necho 'Error: unsupported report version' >&2\nexit 1\n")
    nsys.chmod(0o755)
    path = tmp_path / "run.nsys-rep"
    path.write_bytes(b"whatever")
    monkeypatch.delenv("PERFDOC_NSYS", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert "unsupported report version" in refused(path).what


def test_reading_leaves_the_file_and_its_folder_as_they_are(sqlite_file: Path) -> None:
    before = content_sha256(sqlite_file), sqlite_file.stat().st_mtime_ns
    read_trace(sqlite_file)
    assert (content_sha256(sqlite_file), sqlite_file.stat().st_mtime_ns) == before
    assert [p.name for p in sqlite_file.parent.iterdir()] == [sqlite_file.name]


@pytest.mark.parametrize("suffix", ["-wal", "-journal"])
def test_a_file_with_pending_changes_is_refused_and_left_alone(sqlite_file: Path, suffix: str) -> None:
    beside = sqlite_file.with_name(sqlite_file.name + suffix)
    beside.write_bytes(b"")
    assert len(read_trace(sqlite_file).kernels)
    beside.write_bytes(b"x")
    before = content_sha256(sqlite_file)
    assert f"{beside.name} holds changes" in refused(sqlite_file).what
    assert (content_sha256(sqlite_file), beside.read_bytes()) == (before, b"x")


def test_a_read_only_file_system(tmp_path: Path, sqlite_file: Path) -> None:
    edited(sqlite_file, "PRAGMA journal_mode = WAL")  # a mode that normally makes SQLite write beside it
    inside = tmp_path / "mount"
    inside.mkdir()
    content = tmp_path / "content"
    content.mkdir()
    sqlite_file.rename(content / "x.sqlite")
    # In a mount namespace of its own, so that nothing stays mounted whatever happens.
    mounted = f"mount --bind {content} {inside} && mount -o remount,bind,ro {inside}"

    def there(command: str) -> subprocess.CompletedProcess[str]:
        script = ["unshare", "--mount", "sh", "-c", f"{mounted} && {command}"]
        return subprocess.run(script, capture_output=True, text=True, timeout=60, check=False)

    if not shutil.which("unshare") or there("true").returncode:
        pytest.skip("a mount namespace needs root and a kernel that lets it")
    assert "Read-only" in there(f"touch {inside}/probe").stderr
    done = there(f"{sys.executable} -m perfdoc analyze {inside}/x.sqlite --json -")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ranks"][0]["ledger_ns"]["compute"] == 100


def test_paths_with_odd_characters(tmp_path: Path, sqlite_file: Path) -> None:
    for name in ("a b", "50%", "q?x=1", "h#1", "ü", "a'b\"c"):
        folder = tmp_path / name
        folder.mkdir()
        copy = folder / f"{name}.sqlite"
        shutil.copyfile(sqlite_file, copy)
        assert len(read_trace(copy).kernels) == 1


def test_natural_order_and_each_file_once(tmp_path: Path) -> None:
    for rank in (10, 2, 1):
        (tmp_path / f"rank{rank}.json").write_bytes(KINETO)
    (tmp_path / "diagnosis.json").write_text("{}")
    found = find_captures([str(tmp_path), str(tmp_path / "rank2.json"), str(tmp_path / "r*1*.json")])
    assert [p.name for p in found] == ["rank1.json", "rank2.json", "rank10.json"]
