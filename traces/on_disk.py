"""Columns of a large capture in files without a name, mapped: the system has in memory what it has room for.

They are written, not mapped for writing: a full disk is an error there, and the end of the process here.
Nobody else has the files, so none can be cut short while it is read.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, TypeVar
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from perfdoc.traces.table import Table

_LARGE_ROWS = 8_000_000
"""Of a capture, together: its columns would take 600 MB."""
_MANY_VALUES = 4_000_000
_VAR_TMP = Path("/var/tmp")
"""Where large temporary files go by convention: /tmp may be memory."""
_mapped: WeakSet[mmap.mmap] = WeakSet()
_T = TypeVar("_T", bound=Table)


def is_large(rows: int) -> bool:
    """Whether a capture of so many kernels, calls and ranges is kept on disk."""
    return rows >= _LARGE_ROWS


def on_disk(kind: type[_T], parts: Iterable[_T]) -> _T:
    """A table of these rows, part after part. Raises OSError where the disk is full."""
    columns: dict[str, IO[bytes]] = {}
    dtypes: dict[str, np.dtype[Any]] = {}
    try:
        for part in parts:
            for name in kind.column_names():
                values = getattr(part, name)
                if name not in columns:
                    columns[name], dtypes[name] = _file(), values.dtype
                columns[name].write(values.data.cast("B") if len(values) else b"")
        return kind(**{name: _map(file, dtypes[name]) for name, file in columns.items()})
    finally:
        for file in columns.values():
            file.close()


def moved(values: NDArray[Any]) -> NDArray[Any]:
    """The same values, on disk. Raises OSError where it is full."""
    with _file() as file:
        file.write(np.ascontiguousarray(values).data.cast("B") if values.size else b"")
        return _map(file, values.dtype)


def aside(values: NDArray[Any]) -> NDArray[Any]:
    """The same values, on disk where they are many and it has room."""
    if len(values) < _MANY_VALUES:
        return values
    try:
        return moved(values)
    except OSError:
        return values


def let_go() -> None:
    """Hold no page of what is mapped any more: the system keeps those that it has room for."""
    if hasattr(mmap, "MADV_DONTNEED"):
        for mapped in list(_mapped):
            mapped.madvise(mmap.MADV_DONTNEED)


def folder() -> str | None:
    """Where such files go; None: where temporary files go."""
    usable = _VAR_TMP.is_dir() and os.access(_VAR_TMP, os.W_OK)
    return str(_VAR_TMP) if usable and "TMPDIR" not in os.environ else None


def _file() -> IO[bytes]:
    return tempfile.TemporaryFile(prefix="perfdoc-", dir=folder())


def _map(file: IO[bytes], dtype: np.dtype[Any]) -> NDArray[Any]:
    file.flush()
    if not file.tell():
        return np.empty(0, dtype)
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    _mapped.add(mapped)
    return np.frombuffer(mapped, dtype)
