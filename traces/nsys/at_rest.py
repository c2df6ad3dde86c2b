"""A SQLite file with a write-ahead log or a journal beside it, as one file at rest."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path

from perfdoc.traces.errors import TraceError

COMPANIONS = ("-wal", "-journal")
"""What lies beside a file while SQLite changes it, or after that was cut short."""
_MAGIC = bytes.fromhex("d9d505f920a163d7")
_TAIL_BYTES = 1 << 16


def copied_at_rest(
    path: Path, bound: Callable[[sqlite3.Connection], None]
) -> tuple[tempfile.TemporaryDirectory[str], int] | None:
    """A temporary folder with a copy of the file, its log applied, as `copy_in` names it, and how many bytes
    were copied; None where nothing lies beside the file that would have to be applied.

    bound: limits what SQLite may do to the copy. Raises TraceError where the file is being written, cannot
    be copied, or has a journal that names another file; sqlite3.Error where it is damaged.
    """
    before = _state(path)
    if not any(size for size, _ in before[1:]):
        return None
    try:
        folder = tempfile.TemporaryDirectory(prefix="perfdoc-")
    except OSError as error:
        raise _cannot_copy(path, error) from error
    try:
        copy = copy_in(folder)
        shutil.copyfile(path, copy)
        for suffix, (size, _) in zip(COMPANIONS, before[1:], strict=True):
            if size:
                shutil.copyfile(_companion(path, suffix), _companion(copy, suffix))
        if _state(path) != before:  # what was copied is of two moments
            raise _being_written(path)
        _refuse_super_journal(path, _companion(copy, "-journal"))
        connection = sqlite3.connect(copy)
        try:
            bound(connection)
            connection.execute("PRAGMA journal_mode = DELETE").fetchall()
            connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
        finally:
            connection.close()
    except BaseException as error:
        folder.cleanup()
        if isinstance(error, FileNotFoundError):  # the program that wrote it has just finished
            raise _being_written(path) from error
        if isinstance(error, OSError):
            raise _cannot_copy(path, error) from error
        raise
    return folder, sum(size for size, _ in before)


def _refuse_super_journal(path: Path, journal: Path) -> None:
    """Raise TraceError where the journal ends with the name of a super-journal: SQLite would open the file of
    that name, whichever it is, and remove it."""
    if not journal.is_file():
        return
    with journal.open("rb") as file:
        file.seek(max(0, journal.stat().st_size - _TAIL_BYTES))
        if file.read().rstrip(b"\0").endswith(_MAGIC):
            raise TraceError(path, "has a journal that names another file.", "Export the report again.")


def copy_in(folder: tempfile.TemporaryDirectory[str]) -> Path:
    """Where the copy is."""
    return Path(folder.name) / "copy.sqlite"


def _being_written(path: Path) -> TraceError:
    return TraceError(path, "is being written.", "Close the program that writes it, and try again.")


def _cannot_copy(path: Path, error: OSError) -> TraceError:
    return TraceError(
        path,
        f"has a write-ahead log, and cannot be copied to a temporary folder: {error.strerror}.",
        "Close the program that writes it, or make room.",
    )


def _companion(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _state(path: Path) -> tuple[tuple[int, int], ...]:
    """Size and time of the last change of a file and of its companions; zeros of what is not there, goes away
    meanwhile, or has a longer name than a file can have."""
    found = []
    for one in (path, *(_companion(path, suffix) for suffix in COMPANIONS)):
        try:
            stat = one.stat()
            found.append((stat.st_size, stat.st_mtime_ns))
        except OSError:
            found.append((0, 0))
    return tuple(found)
