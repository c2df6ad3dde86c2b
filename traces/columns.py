"""Arrays as bytes: each column in the coding and width in which it packs best, all checked when read.

A column is its values, their differences from one to the next, or their differences from the column before
it, above one base; then in the fewest bytes that hold every value, byte planes one after the other, which is
what a general compressor packs well. Arithmetic is that of 64 bits, which wraps around and back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
_DTYPES = {name: np.dtype(name) for name in ("b1", "i1", "i4", "i8", "u8", "f4", "f8")}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_AXES = 2
_FEW = 64
"""Rows that are not worth a choice."""
_TRIED = 1 << 16
"""Rows by which a coding is chosen."""

Coding: TypeAlias = Literal["plain", "steps", "before"]


class Column(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """How one array is stored."""

    dtype: Literal["b1", "i1", "i4", "i8", "u8", "f4", "f8"]
    shape: tuple[int, ...]
    coding: Coding
    width: Literal[1, 2, 4, 8]
    """Bytes of a value."""
    base: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] = 0
    """What was taken from every value, or from the first one of steps."""


def pack_columns(arrays: Sequence[Array]) -> tuple[list[Column], bytes]:
    """Raises ValueError for an array of another type or of too many axes."""
    columns, parts = [], []
    codec = pa.Codec("zstd", compression_level=1)
    before: Array | None = None
    for array in arrays:
        column, values = _stored(array, before, lambda v: codec.compress(_planes(v[:_TRIED])).size)
        columns.append(column)
        parts.append(_planes(values))
        before = array.reshape(-1)
    return columns, b"".join(parts)


def unpack_columns(columns: Sequence[Column], content: bytes, most: int) -> list[Array]:
    """The arrays, writable. most: bytes that they may take together.

    Raises ValueError where anything does not fit.
    """
    arrays: list[Array] = []
    at, total = 0, 0
    before: Array | None = None
    for column in columns:
        length = _length(column)
        total += length * _DTYPES[column.dtype].itemsize
        end = at + length * column.width
        if total > most or end > len(content):
            raise ValueError("columns are longer than what is there")
        array = _restored(column, _unplaned(content[at:end], column.width, length), before)
        arrays.append(array)
        at, before = end, array.reshape(-1)
    if at != len(content):
        raise ValueError("columns are shorter than what is there")
    return arrays


def _stored(array: Array, before: Array | None, cost: Callable[[Array], int]) -> tuple[Column, Array]:
    """How one array is stored, and the values that are, in the coding that costs least."""
    if array.dtype not in _NAMES or array.ndim > _AXES:
        raise ValueError(f"an array of {array.dtype} with {array.ndim} axes")
    flat = np.ascontiguousarray(array).reshape(-1)
    coding, base, values = _chosen(flat, before, cost)
    column = Column(
        dtype=_NAMES[array.dtype],  # type: ignore[arg-type]
        shape=array.shape,
        coding=coding,
        width=values.dtype.itemsize,  # type: ignore[arg-type]
        base=base,
    )
    return column, values


def _length(column: Column) -> int:
    if len(column.shape) > _AXES or min(column.shape, default=0) < 0:
        raise ValueError("a column has no such shape")
    return math.prod(column.shape)


def _chosen(flat: Array, before: Array | None, cost: Callable[[Array], int]) -> tuple[Coding, int, Array]:
    if flat.dtype.kind not in "iu" or flat.dtype.itemsize < 4:
        return "plain", 0, flat
    values = _signed(flat)
    if len(flat) < _FEW:
        return "plain", 0, _narrow(values)
    steps = np.zeros_like(values)
    np.subtract(values[1:], values[:-1], out=steps[1:])
    tried: list[tuple[Coding, int, Array]] = [
        ("plain", *_above_least(values)),
        ("steps", int(values[0]), _narrow(steps)),
    ]
    if before is not None and _alike(before, flat.dtype, len(flat)):
        tried.append(("before", *_above_least(values - _signed(before))))
    return min(tried, key=lambda found: cost(found[2]))


def _above_least(values: Array) -> tuple[int, Array]:
    """Above the least of them, where they take fewer bytes so."""
    least, whole = values.min(), _narrow(values)
    above = _narrow(values - least)
    return (int(least), above) if above.dtype.itemsize < whole.dtype.itemsize else (0, whole)


def _restored(column: Column, raw: NDArray[np.uint8], before: Array | None) -> Array:
    """The array, of the bytes of its stored values. Raises ValueError where they do not fit."""
    dtype = _DTYPES[column.dtype]
    length = raw.size // column.width
    if dtype.kind not in "iu" or dtype.itemsize < 4:
        if column.width != dtype.itemsize or column.coding != "plain":
            raise ValueError("a column of another coding")
        if dtype.kind == "b" and length and raw.max() > 1:
            raise ValueError("a truth value that is neither")
        return raw.reshape(-1).view(dtype).reshape(column.shape)
    if column.width > dtype.itemsize:
        raise ValueError("a column wider than its type")
    kept = raw.reshape(-1).view(f"<i{column.width}")
    values: Array = kept.astype(np.int64, copy=False)
    if column.coding == "steps":
        np.cumsum(values, out=values)
    values += column.base
    values = values.astype(f"i{dtype.itemsize}", copy=False)
    if column.coding == "before":
        if before is None or not _alike(before, dtype, length):
            raise ValueError("a column without the one before it")
        values += _signed(before)
    return values.view(dtype).reshape(column.shape)


def _alike(before: Array, dtype: np.dtype[Any], length: int) -> bool:
    return before.dtype == dtype and len(before) == length


def _signed(values: Array) -> Array:
    """The same bits as signed integers: what wraps around in differences comes back in sums."""
    return values.view(f"i{values.dtype.itemsize}")


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
