"""The folder of kept columns: what is found in it, what never is, and how it stays small and whole."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest

from perfdoc.profiling.cache_folder import VARIABLE, cache_folder
from perfdoc.profiling.whole_file import PART
from perfdoc.simulator.captures.nsys.files import write_nsys_sqlite
from perfdoc.simulator.captures.timeline import TimelineBuilder
from perfdoc.traces import Trace, ahead, cache
from perfdoc.traces.ahead import Ahead
from perfdoc.traces.cache import Place, kept, place_of, read_through
from perfdoc.traces.codec import same
from perfdoc.traces.load import NSYS, content_sha256, read_trace


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of the entries; it need not be there yet."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(ahead, "LEAST_BYTES", dict.fromkeys(ahead.LEAST_BYTES, 0))
    return tmp_path / "cache" / "traces"


def capture(path: Path, kernel: str = "gemm") -> Path:
    builder = TimelineBuilder()
    builder.process().device().kernel(kernel, 100, 200)
    return write_nsys_sqlite(builder.build(), path)


def entries(folder: Path) -> list[Path]:
    """All that is in it: nothing else is ever left there."""
    return sorted(folder.iterdir()) if folder.exists() else []


def read_twice(path: Path) -> tuple[Trace, Trace]:
    found = []
    for _ in range(2):
        one = Ahead(path)
        found.append(one.trace.result())
        one.end()
    return found[0], found[1]


def no_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(path: Path) -> Trace:
        raise AssertionError(f"{path} was read")

    monkeypatch.setattr(ahead, "read_trace", read)


def test_the_second_time_nothing_is_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = capture(tmp_path / "a.sqlite")
    one = Ahead(path)
    first = one.trace.result()
    one.end()
    (entry,) = entries(folder)
    assert content_sha256(path) in entry.name
    assert (folder.stat().st_mode & 0o777, entry.stat().st_mode & 0o777) == (0o700, 0o600)
    no_reading(monkeypatch)
    assert same(first, Ahead(path).trace.result())
    copy = shutil.copy(path, tmp_path / "b.sqlite")
    assert Ahead(copy).trace.result().path == copy, "by content, whatever it is called"


def test_another_content_is_another_trace(folder: Path, tmp_path: Path) -> None:
    one, _ = read_twice(capture(tmp_path / "a.sqlite"))
    two, _ = read_twice(capture(tmp_path / "b.sqlite", "conv"))
    assert len(entries(folder)) == 2
    assert one.names(one.kernels.name) != two.names(two.kernels.name)


def test_a_damaged_entry_is_told_and_mended(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = capture(tmp_path / "a.sqlite")
    read_twice(path)
    (entry,) = entries(folder)
    content = bytearray(entry.read_bytes())
    content[len(content) // 2] ^= 1
    entry.write_bytes(content)
    found, again = read_twice(path)
    assert capfd.readouterr().err.count("damaged") == 1
    assert same(found, read_trace(path))
    assert same(again, found)
    assert entry.read_bytes() != content
    no_reading(monkeypatch)
    assert same(found, Ahead(path).trace.result())


def test_another_traces_columns_under_this_name(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = capture(tmp_path / "a.sqlite")
    read_twice(path)
    (entry,) = entries(folder)
    read_twice(capture(tmp_path / "b.sqlite", "conv"))
    (other,) = set(entries(folder)) - {entry}
    shutil.copy(other, entry)
    found, _ = read_twice(path)
    assert "damaged" in capfd.readouterr().err
    assert found.names(found.kernels.name) == ["gemm"]


def test_without_an_entry_nobody_waits_for_the_hash(folder: Path, tmp_path: Path) -> None:
    path = capture(tmp_path / "a.sqlite")
    never: Future[str] = Future()
    place = place_of("", path.stat().st_size)
    assert place is not None
    trace, writing = read_through(path, place, never, lambda: True, read_trace)
    assert len(trace.kernels) == 1
    assert writing is not None
    never.set_result("0" * 64)
    assert writing.exception(60) is None
    assert len(entries(folder)) == 1


@pytest.mark.parametrize("name", ["a.sqlite-wal", "a.sqlite-journal"])
def test_a_file_that_sqlite_may_complete_is_not_kept(folder: Path, tmp_path: Path, name: str) -> None:
    """What is read is then more than what is hashed."""
    path = capture(tmp_path / "a.sqlite")
    (tmp_path / name).write_bytes(b"")
    read_twice(path)
    assert entries(folder) == []


def test_a_file_that_changes_meanwhile_is_not_kept(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = capture(tmp_path / "a.sqlite")

    def read(path: Path) -> Trace:
        trace = read_trace(path)
        os.utime(path, (1, 1))
        return trace

    monkeypatch.setattr(ahead, "read_trace", read)
    one = Ahead(path)
    one.trace.result()
    one.end()
    assert entries(folder) == []


def test_small_files_and_an_empty_variable(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = capture(tmp_path / "a.sqlite")
    monkeypatch.setattr(ahead, "LEAST_BYTES", {NSYS: path.stat().st_size + 1})
    read_twice(path)
    assert entries(folder) == []
    monkeypatch.setattr(ahead, "LEAST_BYTES", {NSYS: 0})
    monkeypatch.setenv(VARIABLE, "")
    read_twice(path)
    assert entries(folder) == []
    assert kept() is None


def place(folder: Path) -> Place:
    return Place(folder=folder, begin="1-a-")


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return read_trace(capture(tmp_path / "of.sqlite"))


def test_the_least_recently_used_goes_first(
    folder: Path, trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(3):
        place(folder).keep(str(i), trace)
        os.utime(folder / f"1-a-{i}.columns", (1000 + i, 1000 + i))
    assert place(folder).find("0", trace.path) is not None  # which is a use
    one = (folder / "1-a-0.columns").stat().st_size
    monkeypatch.setattr(cache, "MOST_BYTES", 3 * one + 1)
    place(folder).keep("3", trace)
    left = {e.name for e in entries(folder)}
    assert "1-a-1.columns" not in left
    assert {"1-a-0.columns", "1-a-3.columns"} <= left
    assert sum(e.stat().st_size for e in entries(folder)) <= 3 * one + 1


def test_a_short_disk_is_spared(folder: Path, trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    full = shutil._ntuple_diskusage(10**9, 10**9, 0)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    place(folder).keep("0", trace)
    assert entries(folder) == []


def _by_others(folder: Path) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o777)


def _a_link(folder: Path) -> None:
    folder.parent.mkdir()
    (folder.parent / "real").mkdir(mode=0o700)
    folder.symlink_to(folder.parent / "real")


def _a_file(folder: Path) -> None:
    folder.parent.mkdir()
    folder.write_text("")


def _of_another(folder: Path) -> None:
    folder.mkdir(parents=True, mode=0o700)
    if os.geteuid():
        pytest.skip("only root gives folders away")
    os.chown(folder, 12345, 12345)


@pytest.mark.parametrize("make", [_by_others, _a_link, _a_file, _of_another])
def test_a_folder_that_others_may_have_filled(
    make: Callable[[Path], None], folder: Path, trace: Trace
) -> None:
    place(folder).keep("0", trace)
    good = (folder / "1-a-0.columns").read_bytes()
    shutil.rmtree(folder.parent)
    make(folder)
    place(folder).keep("1", trace)
    assert not (folder / "1-a-1.columns").exists()
    if folder.is_dir():
        (folder / "1-a-0.columns").write_bytes(good)
    assert place(folder).find("0", trace.path) is None
    found = kept()
    assert found is not None
    assert found.trouble


def test_an_entry_that_others_may_have_written(folder: Path, trace: Trace) -> None:
    place(folder).keep("0", trace)
    (folder / "1-a-0.columns").chmod(0o622)
    assert place(folder).find("0", trace.path) is None
    (folder / "1-a-0.columns").chmod(0o600)
    (folder / "1-a-0.columns").rename(folder / "real")
    (folder / "1-a-0.columns").symlink_to(folder / "real")
    assert place(folder).find("0", trace.path) is None


def test_where_files_need_a_name(folder: Path, trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    place(folder).keep("0", trace)
    found = place(folder).find("0", trace.path)
    assert found is not None
    assert same(found, trace)
    fail = OSError(28, "No space left on device")

    def no_room(*_: object) -> None:
        raise fail

    monkeypatch.setattr(cache, "write_columns", no_room)
    place(folder).keep("1", trace)
    assert [e.name for e in entries(folder)] == ["1-a-0.columns"]
    for name, age_s in (("a file", 2 * cache._ABANDONED_S), ("old", 2 * cache._ABANDONED_S), ("new", 0)):
        part = folder / f"{PART}{name}"
        part.touch() if name == "a file" else part.mkdir()
        os.utime(part, (time.time() - age_s,) * 2)
    place(folder).keep("1", trace)
    assert [e.name for e in entries(folder)] == [f"{PART}new", "1-a-0.columns"]


_KEEP = """
import sys, time
from pathlib import Path
from perfdoc.traces import cache
from perfdoc.traces.load import read_trace

trace = read_trace(Path(sys.argv[2]))
if sys.argv[3] == "slowly":
    write = cache.write_columns
    def slowly(file, *rest):
        write(file, *rest)
        file.flush()
        print("written", flush=True)
        time.sleep(60)
    cache.write_columns = slowly
place = cache.Place(folder=Path(sys.argv[1]), begin="1-a-")
for i in range(int(sys.argv[4])):
    place.keep(str(i % 3), trace)
    found = place.find(str(i % 3), trace.path)
    assert found is None or len(found.kernels) == len(trace.kernels)
"""


def keeping(folder: Path, path: Path, how: str, times: int) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", _KEEP, str(folder), str(path), how, str(times)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="files without a name are Linux's")
def test_a_killed_writer_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    writer = keeping(folder, capture(tmp_path / "a.sqlite"), "slowly", 1)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "written\n"
    writer.send_signal(signal.SIGKILL)
    writer.communicate()
    assert folder.is_dir()
    assert entries(folder) == []


def test_many_at_once(folder: Path, trace: Trace, tmp_path: Path) -> None:
    """Readers, writers and one that removes what they read: nobody fails, nothing else stays."""
    workers = [keeping(folder, trace.path, "", 20) for _ in range(3)]
    while any(w.poll() is None for w in workers):
        for entry in entries(folder):
            entry.unlink(missing_ok=True)
        time.sleep(0.002)
    assert [(w.communicate(), w.returncode) for w in workers] == [(("", ""), 0)] * 3
    assert {e.suffix for e in entries(folder)} <= {".columns"}


def test_another_reader_is_another_place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version is that of every source file of the rooms that readers are made of."""
    one = place_of("", 1)
    assert one is not None
    assert one != place_of("other", 1)
    assert one == place_of("", 1)
    monkeypatch.setattr(cache, "_readers_version", lambda: "")
    assert place_of("", 1) is None


@pytest.mark.parametrize("room", ["traces", "profiling"])
def test_any_change_of_a_reader_changes_its_version(room: str, tmp_path: Path) -> None:
    rooms = [tmp_path / "traces", tmp_path / "profiling"]
    for made in rooms:
        shutil.copytree(Path(__file__).parents[2] / made.name, made, ignore=shutil.ignore_patterns("*.pyc"))
    before = cache.sources_digest(rooms)
    assert before == cache.sources_digest(rooms) != ""
    for file in sorted((tmp_path / room).rglob("*.py"))[::7]:
        file.write_text(file.read_text() + "\n")
        after = cache.sources_digest(rooms)
        assert after != before
        before = after
    (tmp_path / room / "new.yaml").write_text("")
    assert cache.sources_digest(rooms) != before


def test_where_the_folder_is() -> None:
    assert cache_folder("traces", {VARIABLE: "/c", "XDG_CACHE_HOME": "/x"}) == Path("/c/traces")
    assert cache_folder("traces", {"XDG_CACHE_HOME": "/x"}) == Path("/x/perfdoc/traces")
    by_default = Path.home() / ".cache" / "perfdoc" / "traces"
    assert cache_folder("traces", {}) == cache_folder("traces", {"XDG_CACHE_HOME": "relative"}) == by_default
    assert cache_folder("traces", {VARIABLE: ""}) is None
