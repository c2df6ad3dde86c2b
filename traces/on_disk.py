"""Columns of a large capture in files without a name, mapped: the system has in memory what it has room for.

They are written, not mapped for writing: a full disk is an error there, and the end of the process here.
Nobody else has the files, so none can be cut short while it is read.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import tempfile
from collections.abc import Iterable
from threading import Lock
from typing import IO, TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # which keeps its rows here
    from perfdoc.traces.table import Table

_LARGE_ROWS = 8_000_000
"""Of a capture, together: its columns would take 600 MB."""
_MANY_VALUES = 4_000_000
"""Of one column that is worked out."""
LEFT_FREE_BYTES = 1 << 30
"""Of the disk, for others."""
_VAR_TMP = "/var/tmp"
"""Where large temporary files go by convention: /tmp may be memory."""
_mapped: WeakSet[mmap.mmap] = WeakSet()
_mapping = Lock()
"""Of that set: a thread may add to it while another goes over it."""
_T = TypeVar("_T", bound="Table")


def is_large(rows: int) -> bool:
    """Whether a capture of so many kernels, calls and ranges is kept on disk."""
    return rows >= _LARGE_ROWS


class NoRoomError(Exception):
    """The disk is full, or may not be written: what is wrong, and what to do."""


class Growing:
    """A column that is written while it grows. Raises NoRoomError."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        try:
            self._file = _file()
        except OSError as error:
            raise _no_room(error) from error

    def __del__(self) -> None:
        """Where it was given up: a full disk is told once."""
        with contextlib.suppress(AttributeError, OSError):
            self._file.close()

    def add(self, values: NDArray[Any]) -> None:
        """More of them, at the end."""
        try:
            _leave_room(self._file)
            self._file.write(np.ascontiguousarray(values).data.cast("B") if len(values) else b"")
        except OSError as error:
            raise _no_room(error) from error

    def mapped(self) -> NDArray[Any]:
        """All of them; none can be added any more."""
        try:
            with self._file as file:
                file.flush()
                if not file.tell():
                    return np.empty(0, self._dtype)
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise _no_room(error) from error
        with _mapping:
            _mapped.add(mapped)
        return np.frombuffer(mapped, self._dtype)


def on_disk(kind: type[_T], parts: Iterable[_T]) -> _T:
    """A table of these rows, part after part. Raises NoRoomError."""
    columns: dict[str, Growing] = {}
    for part in parts:
        for name in kind.column_names():
            values = getattr(part, name)
            if name not in columns:
                columns[name] = Growing(values.dtype)
            columns[name].add(values)
    return kind(**{name: column.mapped() for name, column in columns.items()})


def moved(values: NDArray[Any]) -> NDArray[Any]:
    """The same values, on disk. Raises NoRoomError."""
    column = Growing(values.dtype)
    column.add(values)
    return column.mapped()


def aside(values: NDArray[Any]) -> NDArray[Any]:
    """The same values, on disk where they are many and it has room."""
    if len(values) < _MANY_VALUES:
        return values
    try:
        return moved(values)
    except NoRoomError:
        return values


def let_go() -> None:
    """Hold no page of what is mapped any more: the system keeps those that it has room for."""
    if hasattr(mmap, "MADV_DONTNEED"):
        with _mapping:
            held = list(_mapped)
        for mapped in held:
            mapped.madvise(mmap.MADV_DONTNEED)


def folder() -> str | None:
    """Where large temporary files go; None: where all of them go."""
    named = os.environ.get("TMPDIR", "")
    return next((f for f in (named, _VAR_TMP) if os.path.isdir(f) and os.access(f, os.W_OK)), None)  # noqa: PTH112


def _no_room(error: OSError) -> NoRoomError:
    room = f"Make room in {folder() or 'the folder of temporary files'}, or name another one with TMPDIR."
    files = "Allow more open files (ulimit -n)."
    return NoRoomError(
        f"has more rows than fit in memory, and they cannot be kept on disk: {error.strerror}.",
        files if error.errno in (errno.EMFILE, errno.ENFILE) else room,
    )


def _file() -> IO[bytes]:
    return tempfile.TemporaryFile(prefix="perfdoc-", dir=folder())


def _leave_room(file: IO[bytes]) -> None:
    """Raises OSError where others would have none."""
    if hasattr(os, "fstatvfs"):
        disk = os.fstatvfs(file.fileno())
        if disk.f_bavail * disk.f_frsize < LEFT_FREE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
