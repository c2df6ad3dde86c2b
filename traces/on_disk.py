"""Columns of a large capture in files without a name, mapped: the system has in memory what it has room for.

They are written, not mapped for writing: a full disk is an error there, and the end of the process here.
Nobody else has the files, so none can be cut short while it is read.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import sys
import tempfile
from collections.abc import Iterable
from threading import Lock
from typing import IO, TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from perfdoc.profiling.usable_memory import usable_memory_bytes

if TYPE_CHECKING:  # which keeps its rows here
    from perfdoc.traces.table import Table

_LARGE_ROWS = 8_000_000
"""Of a capture, together: its columns would take 600 MB."""
_MANY_VALUES = 4_000_000
"""Of one column that is worked out."""
LEFT_FREE_BYTES = 1 << 30
"""Of the disk, for others."""
_ENOUGH_BYTES = 4 << 30
"""Of memory, where the disk has no room: what large captures take, and some to spare."""
_VAR_TMP = "/var/tmp"
"""Where large temporary files go by convention: /tmp may be memory."""
_UNTRACKED: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}
"""Before, a mapping holds a descriptor."""
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
    """A column that is written while it grows; where the disk has no room and memory has, it is kept there.
    Raises NoRoomError where neither has."""

    def __init__(self, dtype: np.dtype[Any], *, or_here: bool = True) -> None:
        """or_here: whether memory will do."""
        self._dtype = dtype
        self._or_here = or_here
        self._file: IO[bytes] | None = None
        self._here: list[NDArray[Any]] = []
        """What did not fit on the disk, at the end."""
        try:
            self._file = _file()
        except OSError as error:
            self._require_memory(0, error)

    def __del__(self) -> None:
        """Where it was given up: a full disk is told once."""
        with contextlib.suppress(AttributeError, OSError):
            if self._file is not None:
                self._file.close()

    def add(self, values: NDArray[Any]) -> None:
        """More of them, at the end."""
        assert values.dtype == self._dtype, (values.dtype, self._dtype)
        if self._file is None or self._here or not _has_room(self._file, values.nbytes):
            self._require_memory(values.nbytes)
            self._here.append(np.array(values))
            return
        try:
            self._file.write(np.ascontiguousarray(values).data.cast("B") if len(values) else b"")
        except OSError as error:
            raise _no_room(error) from error

    def mapped(self) -> NDArray[Any]:
        """All of them; none can be added any more."""
        written = self._of_file()
        if not self._here:
            return written
        if not len(written) and len(self._here) == 1:
            return self._here[0]
        self._require_memory(written.nbytes + sum(part.nbytes for part in self._here))
        return np.concatenate((written, *self._here))

    def _require_memory(self, more_bytes: int, error: OSError | None = None) -> None:
        """Raises NoRoomError where there is not enough of it either."""
        if not self._or_here or usable_memory_bytes() < _ENOUGH_BYTES + more_bytes:
            error = error or OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            raise _no_room(error) from error

    def _of_file(self) -> NDArray[Any]:
        if self._file is None:
            return np.empty(0, self._dtype)
        try:
            with self._file as file:
                file.flush()
                if not file.tell():
                    return np.empty(0, self._dtype)
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ, **_UNTRACKED)
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


def moved(values: NDArray[Any], *, or_here: bool = True) -> NDArray[Any]:
    """The same values, on disk. or_here: as of Growing. Raises NoRoomError."""
    column = Growing(values.dtype, or_here=or_here)
    column.add(values)
    return column.mapped()


def aside(values: NDArray[Any]) -> NDArray[Any]:
    """The same values, on disk where they are many and it has room."""
    if len(values) < _MANY_VALUES:
        return values
    try:
        return moved(values, or_here=False)
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
    remedies = dict.fromkeys((errno.EMFILE, errno.ENFILE), "Allow more open files (ulimit -n).")
    remedies[errno.ENOMEM] = "Give the process more memory."
    room = f"Make room in {folder() or 'the folder of temporary files'}, or name another one with TMPDIR."
    return NoRoomError(
        f"is too large to be held in memory, and cannot be kept on disk: {error.strerror}.",
        remedies.get(error.errno or 0, room),
    )


def _file() -> IO[bytes]:
    return tempfile.TemporaryFile(prefix="perfdoc-", dir=folder())


def _has_room(file: IO[bytes], more_bytes: int) -> bool:
    """Whether others have some left as well, when so much is written."""
    if not hasattr(os, "fstatvfs"):
        return True
    disk = os.fstatvfs(file.fileno())
    return disk.f_bavail * disk.f_frsize >= LEFT_FREE_BYTES + more_bytes
