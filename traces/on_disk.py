"""Columns of a large capture in files without a name, mapped: the system has in memory what it has room for.

They are written, not mapped for writing: a full disk is an error there, and the end of the process here.
Nobody else has the files, so none can be cut short while it is read.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # which keeps its rows here
    from perfdoc.traces.table import Table

_LARGE_ROWS = 8_000_000
"""Of a capture, together: its columns would take 600 MB."""
_MANY_VALUES = 4_000_000
_VAR_TMP = Path("/var/tmp")
"""Where large temporary files go by convention: /tmp may be memory."""
_mapped: WeakSet[mmap.mmap] = WeakSet()
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
        for mapped in list(_mapped):
            mapped.madvise(mmap.MADV_DONTNEED)


def _no_room(error: OSError) -> NoRoomError:
    return NoRoomError(
        f"has more rows than fit in memory, and they cannot be kept on disk: {error.strerror}.",
        f"Make room in {_folder() or tempfile.gettempdir()}, or name another folder with TMPDIR.",
    )


def _folder() -> str | None:
    """Where such files go; None: where temporary files go."""
    usable = _VAR_TMP.is_dir() and os.access(_VAR_TMP, os.W_OK)
    return str(_VAR_TMP) if usable and "TMPDIR" not in os.environ else None


def _file() -> IO[bytes]:
    return tempfile.TemporaryFile(prefix="perfdoc-", dir=_folder())
