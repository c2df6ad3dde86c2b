"""From arguments to captures: odd names, pipes, and the forms of one capture."""

from __future__ import annotations

import gzip
import os
import shlex
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from perfdoc.traces import TraceError
from perfdoc.traces.load import content_sha256, find_captures, read_trace
from tests.captures.nsys_parquet import write_nsys_parquet
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import Timeline, TimelineBuilder
from tests.profiling.build import a_manifest

KINETO = (
    b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 1}]}'
)


def tiny() -> Timeline:
    builder = TimelineBuilder()
    builder.process().device().kernel("gemm", 100, 200)
    return builder.build()


def found(*paths: Path | str) -> list[str]:
    return [p.name for p in find_captures([str(p) for p in paths])]


def refused_at_once(action: Callable[[], object]) -> str:
    """The error's text; fails where the action waits instead of raising."""
    said: list[BaseException] = []

    def run() -> None:
        try:
            action()
        except TraceError as error:
            said.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "it waits for a writer of the pipe"
    (error,) = said
    assert "\n" not in str(error)
    return str(error)


def test_a_name_longer_than_any_file_system_takes() -> None:
    with pytest.raises(TraceError, match="too long"):
        find_captures(["x" * 300 + ".sqlite"])
    with pytest.raises(TraceError, match="too long"):
        read_trace(Path("x" * 300 + ".sqlite"))


def test_an_empty_word_is_not_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`perfdoc analyze "$TRACE"` with nothing in the variable."""
    write_nsys_sqlite(TimelineBuilder().build(), tmp_path / "x.sqlite")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TraceError, match="'': is no path"):
        find_captures([""])


def test_links_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "a.sqlite").symlink_to("b.sqlite")
    (tmp_path / "b.sqlite").symlink_to("a.sqlite")
    with pytest.raises(TraceError, match="cannot be opened"):
        find_captures([str(tmp_path)])


@pytest.mark.parametrize("name", ["a.sqlite", "a.json", "a.nsys-rep", "a"])
def test_a_pipe_is_refused_at_once(tmp_path: Path, name: str) -> None:
    pipe = tmp_path / name
    os.mkfifo(pipe)
    assert "pipe" in refused_at_once(lambda: find_captures([str(pipe)]))
    assert "pipe" in refused_at_once(lambda: read_trace(pipe))
    assert "pipe" in refused_at_once(lambda: content_sha256(pipe))


def test_a_device_is_refused() -> None:
    assert "device" in refused_at_once(lambda: find_captures(["/dev/zero"]))


def test_a_pipe_in_a_folder_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.sqlite")
    assert "a.sqlite" in refused_at_once(lambda: find_captures([str(tmp_path)]))
    assert "a.sqlite" in refused_at_once(lambda: find_captures([str(tmp_path / "*")]))


def test_a_pipe_among_parquet_tables_is_refused_at_once(tmp_path: Path) -> None:
    folder = write_nsys_parquet(tiny(), tmp_path / "x")
    os.mkfifo(folder / "OTHER.parquet")
    assert "OTHER.parquet" in refused_at_once(lambda: find_captures([str(folder)]))
    assert "OTHER.parquet" in refused_at_once(lambda: read_trace(folder))
    assert "OTHER.parquet" in refused_at_once(lambda: content_sha256(folder))


@pytest.mark.parametrize("folder", ["t", "t_pqtdir"])
def test_a_parquetdir_beside_its_sqlite_is_one_capture(tmp_path: Path, folder: str) -> None:
    write_nsys_parquet(tiny(), tmp_path / folder)
    write_nsys_sqlite(tiny(), tmp_path / "u.sqlite")
    (tmp_path / "t.nsys-rep").write_bytes(b"the report that was exported")
    assert found(tmp_path) == [folder, "u.sqlite"]
    write_nsys_sqlite(tiny(), tmp_path / "t.sqlite")
    assert found(tmp_path) == ["t.sqlite", "u.sqlite"]
    assert found(tmp_path / folder, tmp_path / "t.sqlite") == ["t.sqlite"]


def test_a_trace_and_its_compressed_copy_are_one_capture(tmp_path: Path) -> None:
    plain, packed = tmp_path / "ok.json", tmp_path / "ok.json.gz"
    plain.write_bytes(KINETO)
    packed.write_bytes(gzip.compress(KINETO))
    for plain_s, packed_s, kept in ((5, 5, "ok.json"), (5, 9, "ok.json.gz"), (9, 5, "ok.json")):
        os.utime(plain, (plain_s, plain_s))
        os.utime(packed, (packed_s, packed_s))
        assert found(tmp_path) == [kept]
    (tmp_path / "other").mkdir()
    shutil.copyfile(packed, tmp_path / "other" / "ok.json.gz")
    # The same name in another folder is another rank's.
    assert found(plain, tmp_path / "other" / "ok.json.gz") == ["ok.json", "ok.json.gz"]


def test_a_folder_that_cannot_be_listed_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does a blank in a name break the command that is told."""
    for name in ("my run 1", "my run 2"):
        (tmp_path / name).mkdir()
        for rank in range(2):
            (tmp_path / name / f"rank{rank}_trace.json").write_bytes(KINETO)
    listed = Path.iterdir

    def iterdir(folder: Path) -> Iterator[Path]:
        if folder.name == "my run 2":
            raise PermissionError(13, "Permission denied")
        return listed(folder)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    with pytest.raises(TraceError) as refused:
        find_captures([str(tmp_path)])
    assert shlex.split(refused.value.remedy.partition(": ")[2])[-1] == str(tmp_path / "my run 1")


def test_a_folder_of_folders_names_the_last_that_has_traces(tmp_path: Path) -> None:
    for name in ("iteration_9", "iteration_10", "iteration_20"):
        (tmp_path / name).mkdir()
        for rank in range(2) if name != "iteration_20" else ():
            (tmp_path / name / f"rank{rank}_trace.json").write_bytes(KINETO)
    with pytest.raises(TraceError) as refused:
        find_captures([str(tmp_path)])
    assert "without traces" in refused.value.what
    assert refused.value.remedy.endswith(f" {tmp_path / 'iteration_10'}")
    for name in ("iteration_9", "iteration_10"):  # as a folder of each rank is
        (tmp_path / name / "rank1_trace.json").unlink()
    with pytest.raises(TraceError) as refused:
        find_captures([str(tmp_path)])
    assert refused.value.remedy.endswith(f" {tmp_path}/*")
    assert len(find_captures([f"{tmp_path}/*"])) == 2


def test_a_folder_of_such_folders_names_the_last_too(tmp_path: Path) -> None:
    """torchtitan's: outputs/profile_traces/iteration_10."""
    for name in ("iteration_9", "iteration_10"):
        (tmp_path / "profile_traces" / name).mkdir(parents=True)
        for rank in range(2):
            (tmp_path / "profile_traces" / name / f"rank{rank}_trace.json").write_bytes(KINETO)
    (tmp_path / "tb").mkdir()
    with pytest.raises(TraceError) as refused:
        find_captures([str(tmp_path)])
    assert "but profile_traces/iteration_10 in it" in refused.value.what
    assert refused.value.remedy.endswith(f" {tmp_path / 'profile_traces' / 'iteration_10'}")


def test_a_run_that_was_not_profiled_says_so(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    made = a_manifest()
    for profiler, words in (("torch", "is a folder without traces"), ("none", "not profiled (asked for)")):
        profile = msgspec.structs.replace(made.profile, profiler=profiler)
        content = msgspec.json.encode(msgspec.structs.replace(made, profile=profile))
        (tmp_path / "run.json").write_bytes(content)
        for folder in (tmp_path, tmp_path / "traces"):
            with pytest.raises(TraceError) as refused:
                find_captures([str(folder)])
            assert words in str(refused.value)
            assert ("--profiler torch" in str(refused.value)) == (profiler == "none")
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(TraceError, match="is a folder without traces"):
        find_captures([str(tmp_path)])
