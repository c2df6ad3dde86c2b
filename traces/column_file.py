"""A Trace as one file, and back: its columns, JSON of what is no column, and at the end a head of checksums.

Never a pickle. What is read is checked again as a reader's trace is: a file that was put together elsewhere
can be wrong, and must not be worse.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from perfdoc.traces.codec import put_together, take_apart
from perfdoc.traces.columns import Array, Column, restored, rows, stored
from perfdoc.traces.model import UNKNOWN, Trace
from perfdoc.traces.table import Table
from perfdoc.traces.validate import check_activity, check_devices, times_fit

MAGIC = b"perfdoc-columns\n"
_LENGTH, _CHECKSUM = 4, 32
_HEAD_MAX = 1 << 20
_AT_ONCE = 2
"""Threads that read and hash: neither needs the interpreter lock."""


class Part(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One column."""

    column: Column
    sha256: str


class Head(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What lies where, and its checksums."""

    key: str
    """Of what, and read by what: the file is of no other trace."""
    parts: tuple[Part, ...]
    content: Annotated[int, msgspec.Meta(ge=0)]
    """Bytes of the JSON."""
    sha256: str
    """Of the JSON."""


class DamagedError(ValueError):
    """The file is not what was written."""


def most_bytes(trace: Trace) -> int:
    """That its columns take."""
    return sum(column.nbytes for table in _tables(trace) for column in _columns(table).values())


def write_columns(file: BinaryIO, trace: Trace, key: str) -> None:
    """Raises OSError, and ValueError where the trace holds what has no coding."""
    content, arrays = take_apart(replace(trace, path=Path()))
    parts = []
    file.write(MAGIC)
    before: Array | None = None
    for array in arrays:
        column, values = stored(array, before, lambda v: v.dtype.itemsize)
        parts.append(Part(column, _sha256(values)))
        file.write(_bytes(values))
        before = array
    file.write(content)
    head = Head(key=key, parts=tuple(parts), content=len(content), sha256=_sha256(content))
    text = msgspec.json.encode(head)
    file.write(text + hashlib.sha256(text).digest() + len(text).to_bytes(_LENGTH, "little"))


def read_columns(file: BinaryIO, key: str, path: Path) -> Trace:
    """The trace of a file, as that of `path`. Raises DamagedError, OSError."""
    try:
        head, end = _head(file)
        if head.key != key:
            raise DamagedError("it is of another trace")
        sizes = [rows(part.column) * part.column.width for part in head.parts]
        if len(MAGIC) + sum(sizes) + head.content != end:
            raise DamagedError("it is not whole")
        content = _read(file, end - head.content, head.content)
        if _sha256(content) != head.sha256:
            raise DamagedError("its checksum does not fit")
        trace = put_together(content.data, list(_arrays(file, head.parts, sizes)), Trace)
        trace = replace(trace, path=path)
        require_whole(trace)
    except DamagedError:
        raise
    except (ValueError, AssertionError) as error:  # TraceError is one
        raise DamagedError(str(error)) from error
    return trace


def require_whole(trace: Trace) -> None:
    """What readers see to: times that can be, indices that point at something. Raises ValueError."""
    check_devices(trace.path, len(trace.devices))
    check_activity(trace.path, trace.kernels, trace.copies, trace.graph_launches)
    for host in (trace.api_calls, trace.ranges, trace.operators, trace.python_calls, trace.syncs):
        if not times_fit(host.start_ns, host.end_ns).all():
            raise ValueError("times of the host are impossible")
    if len(trace.metric_gpus) not in (0, len(trace.devices)):
        raise ValueError("metrics are of other devices")
    for table in _tables(trace):
        for name, column in _columns(table).items():
            end = len(getattr(trace, of)) if (of := _POINT_INTO.get(name)) else None
            if end is not None and len(column) and not UNKNOWN <= column.min() <= column.max() < end:
                raise ValueError(f"{type(table).__name__}.{name} points at nothing")


_POINT_INTO: Mapping[str, str] = {
    "device": "devices",
    "thread": "threads",
    "kernel": "kernels",
    "range": "ranges",
    **dict.fromkeys(
        ("name", "full_name", "domain", "dims", "dtypes", "values", "strides", "operation", "group_name"),
        "strings",
    ),
    **dict.fromkeys(("group_description", "dtype", "metric"), "strings"),
}
"""By the name of a column, what its numbers are indices into."""


def _tables(trace: Trace) -> Iterator[Table]:
    for field in fields(trace):
        if isinstance(value := getattr(trace, field.name), Table):
            yield value


def _columns(table: Table) -> dict[str, Array]:
    return {name: getattr(table, name) for name in table.column_names()}


def _head(file: BinaryIO) -> tuple[Head, int]:
    """The head, and where it begins."""
    size = os.fstat(file.fileno()).st_size
    tail = _CHECKSUM + _LENGTH
    if size < len(MAGIC) + tail or bytes(_read(file, 0, len(MAGIC))) != MAGIC:
        raise DamagedError("it begins with something else")
    last = bytes(_read(file, size - tail, tail))
    length = int.from_bytes(last[_CHECKSUM:], "little")
    at = size - tail - length
    if length > _HEAD_MAX or at < len(MAGIC):
        raise DamagedError("it is not whole")
    text = bytes(_read(file, at, length))
    if hashlib.sha256(text).digest() != last[:_CHECKSUM]:
        raise DamagedError("its checksum does not fit")
    try:
        return msgspec.json.decode(text, type=Head), at
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedError("its head cannot be read") from error


def _arrays(file: BinaryIO, parts: tuple[Part, ...], sizes: list[int]) -> Iterator[Array]:
    """One after the other, read ahead: each may be stored by the one before it."""

    def checked(part: Part, at: int, size: int) -> NDArray[np.uint8]:
        raw = _read(file, at, size)
        if _sha256(raw) != part.sha256:
            raise DamagedError("its checksum does not fit")
        return raw

    begins = (len(MAGIC) + np.cumsum([0, *sizes[:-1]], dtype=np.int64)).tolist() if sizes else []
    before: Array | None = None
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for part, raw in zip(parts, pool.map(checked, parts, begins, sizes), strict=True):
            before = restored(part.column, raw, before)
            yield before


def _read(file: BinaryIO, at: int, size: int) -> NDArray[np.uint8]:
    """So many bytes from there. Not mapped: a file that is cut short meanwhile would end the process."""
    found = np.empty(size, np.uint8)
    done = 0
    while done < size:
        count = os.preadv(file.fileno(), [found.data[done:]], at + done)
        if not count:
            raise DamagedError("it is not whole")
        done += count
    return found


def _bytes(values: Array) -> memoryview:
    raw = np.ascontiguousarray(values).view(np.uint8)
    return raw.data.cast("B") if raw.size else memoryview(b"")


def _sha256(values: Array | bytes) -> str:
    return hashlib.sha256(values if isinstance(values, bytes) else _bytes(values)).hexdigest()
