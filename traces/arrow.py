"""Between Arrow and numpy without pandas, which `pa.array` and `pa.scalar` import in 0.3 s, and as a rule
without pyarrow.compute, which writes the texts of 280 functions first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow._compute import call_function

from perfdoc.traces.table import I64, Bool


def to_int64(column: pa.ChunkedArray, default: int) -> I64:
    """An Arrow column of any integer type, or of booleans, as int64, NULL replaced by `default`.

    Unsigned 64-bit ids keep their bits. What is int64 in one piece is not copied. Raises ValueError where the
    column does not hold integers.
    """
    if column.type == pa.int64() and column.num_chunks == 1 and len(column) and not column.null_count:
        return np.frombuffer(column.chunk(0).buffers()[1], np.int64, len(column), 8 * column.chunk(0).offset)
    result = np.empty(len(column), np.int64)
    at = 0
    for chunk in column.chunks:
        part = result[at : at + len(chunk)]
        at += len(chunk)
        if pa.types.is_null(chunk.type):
            part[:] = default
            continue
        if pa.types.is_boolean(chunk.type):
            chunk = cast(chunk, pa.int8())
        if not pa.types.is_integer(chunk.type):
            raise ValueError(f"holds {chunk.type}, not integers")
        dtype = np.dtype(
            f"{'i' if pa.types.is_signed_integer(chunk.type) else 'u'}{chunk.type.bit_width // 8}"
        )
        # to_numpy would turn a column with NULLs into float64, which is exact only to 2^53.
        values = np.frombuffer(chunk.buffers()[1], dtype)[chunk.offset : chunk.offset + len(chunk)]
        np.copyto(part, values, casting="unsafe")
        if chunk.null_count:
            part[~valid(chunk)] = default
    return result


def cast(column: Any, kind: pa.DataType) -> Any:
    """An array or column of another type. Raises pyarrow.ArrowInvalid for a value that it cannot hold."""
    import pyarrow.compute as pc

    return pc.cast(column, kind)


def valid(column: pa.Array | pa.ChunkedArray) -> Bool:
    """Which values are not NULL."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return np.concatenate([np.empty(0, bool), *map(_valid_chunk, chunks)])


def _valid_chunk(chunk: pa.Array) -> Bool:
    bitmap = None if pa.types.is_null(chunk.type) else chunk.buffers()[0]
    if bitmap is None:
        return np.full(len(chunk), not pa.types.is_null(chunk.type))
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little")
    return bits[chunk.offset : chunk.offset + len(chunk)].astype(bool)


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column as numbers or as valid text: dictionaries are expanded, bytes decoded as UTF-8.

    What is not UTF-8 is replaced, as it is on reading SQLite. Raises ValueError for lists, structs and
    times.
    """
    types, column = pa.types, expanded(column)
    kind = column.type
    if any(
        is_kind(kind) for is_kind in (types.is_null, types.is_integer, types.is_floating, types.is_boolean)
    ):
        return column
    if not (is_text(kind) or types.is_binary(kind) or types.is_large_binary(kind)):
        raise ValueError(f"holds {kind}, not numbers or text")
    try:
        text = column if is_text(kind) else cast(column, pa.large_string())
        text.validate(full=True)
    except pa.ArrowInvalid:
        raw = cast(column, pa.large_binary()).to_pylist()
        decoded = [None if value is None else value.decode("utf-8", "replace") for value in raw]
        return pa.chunked_array([pa.array(decoded, pa.large_string())])
    return text


def expanded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column without a dictionary."""
    if pa.types.is_dictionary(column.type):
        return cast(column, column.type.value_type)
    return column


def is_text(kind: pa.DataType) -> bool:
    """Whether a type is one of Arrow's two of text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def distinct_texts(column: pa.ChunkedArray) -> tuple[list[str], I64]:
    """Distinct texts in order of first appearance, and the index of each row into them; -1 for NULL."""
    if pa.types.is_null(column.type) or not len(column):
        return [], np.full(len(column), -1, np.int64)
    whole = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    encoded = call_function("dictionary_encode", [whole])
    return [str(t) for t in encoded.dictionary.to_pylist()], to_int64(pa.chunked_array([encoded.indices]), -1)
