"""Arrays as bytes: whole numbers in the fewest bytes that hold them, all checked when read.

A column is its values, or their steps from one to the next where those take fewer bytes; byte planes one
after the other, which is what a general compressor packs well. Arithmetic is that of 64 bits, which wraps
around and back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
_DTYPES = {name: np.dtype(name) for name in ("b1", "i1", "i4", "i8", "u8", "f4", "f8")}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_AXES = 2


class Column(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """How one array is stored."""

    dtype: Literal["b1", "i1", "i4", "i8", "u8", "f4", "f8"]
    shape: tuple[int, ...]
    coding: Literal["plain", "steps"]
    width: Literal[1, 2, 4, 8]
    """Bytes of a value."""
    first: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] = 0
    """The value that steps begin at."""


def pack_columns(arrays: Sequence[Array]) -> tuple[list[Column], bytes]:
    """Raises ValueError for an array of another type or of too many axes."""
    stored = [_stored(array) for array in arrays]
    return [column for column, _ in stored], b"".join(_planes(values) for _, values in stored)


def unpack_columns(columns: Sequence[Column], content: bytes, most: int) -> list[Array]:
    """The arrays, writable. most: bytes that they may take together.

    Raises ValueError where anything does not fit.
    """
    arrays: list[Array] = []
    at, total = 0, 0
    for column in columns:
        length = _length(column)
        total += length * _DTYPES[column.dtype].itemsize
        end = at + length * column.width
        if total > most or end > len(content):
            raise ValueError("columns are longer than what is there")
        arrays.append(_restored(column, _unplaned(content[at:end], column.width, length)))
        at = end
    if at != len(content):
        raise ValueError("columns are shorter than what is there")
    return arrays


def _stored(array: Array) -> tuple[Column, Array]:
    """How one array is stored, and the values that are."""
    if array.dtype not in _NAMES or array.ndim > _AXES:
        raise ValueError(f"an array of {array.dtype} with {array.ndim} axes")
    values = np.ascontiguousarray(array).reshape(-1)
    coding: Literal["plain", "steps"] = "plain"
    first = 0
    if _is_packed(array.dtype) and len(values):
        signed = values.view(f"i{values.dtype.itemsize}")
        differences = np.zeros_like(signed)
        np.subtract(signed[1:], signed[:-1], out=differences[1:])
        values, steps = _narrow(signed), _narrow(differences)
        if steps.dtype.itemsize < values.dtype.itemsize:
            coding, first, values = "steps", int(signed[0]), steps
    column = Column(
        dtype=_NAMES[array.dtype],  # type: ignore[arg-type]
        shape=array.shape,
        coding=coding,
        width=values.dtype.itemsize,  # type: ignore[arg-type]
        first=first,
    )
    return column, values


def _is_packed(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iu" and dtype.itemsize >= 4


def _length(column: Column) -> int:
    if len(column.shape) > _AXES or min(column.shape, default=0) < 0:
        raise ValueError("a column has no such shape")
    return math.prod(column.shape)


def _restored(column: Column, raw: NDArray[np.uint8]) -> Array:
    """The array, of the bytes of its stored values. Raises ValueError where they do not fit."""
    dtype = _DTYPES[column.dtype]
    if not _is_packed(dtype):
        if column.width != dtype.itemsize or column.coding != "plain":
            raise ValueError("a column of another coding")
        if dtype.kind == "b" and raw.size and raw.max() > 1:
            raise ValueError("a truth value that is neither")
        return raw.reshape(-1).view(dtype).reshape(column.shape)
    if column.width > dtype.itemsize:
        raise ValueError("a column wider than its type")
    stored = raw.reshape(-1).view(f"<i{column.width}")
    values: Array = stored.astype(np.int64, copy=False)
    if column.coding == "steps":
        np.cumsum(values, out=values)
        values += column.first
    return values.astype(f"i{dtype.itemsize}", copy=False).view(dtype).reshape(column.shape)


def _narrow(values: Array) -> Array:
    """In the fewest bytes that hold every value."""
    if not len(values):
        return values.astype(np.int8)
    low, high = int(values.min()), int(values.max())
    return values.astype(next(t for t in ("i1", "i2", "i4", "i8") if _holds(t, low, high)))


def _holds(dtype: str, low: int, high: int) -> bool:
    info = np.iinfo(dtype)
    return info.min <= low and high <= info.max


def _planes(values: Array) -> bytes:
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)
    width = little.dtype.itemsize
    return np.ascontiguousarray(little.view(np.uint8).reshape(-1, width).T).tobytes()


def _unplaned(content: bytes, width: int, length: int) -> NDArray[np.uint8]:
    planes = np.frombuffer(content, np.uint8).reshape(width, length)
    return np.array(planes.T, order="C")
