"""Columns of an Nsight export as numpy arrays, by Arrow's C interface.

Through nanoarrow: pyarrow, which does the same, takes 30 ms to import, a tenth of a small analysis.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import nanoarrow as na
import numpy as np
from numpy.typing import NDArray

from perfdoc.records import dataclass
from perfdoc.traces.table import I64, Bool, hashed

_MANY = 100_000
"""Texts from which on pyarrow, and its import, take less time than Python's own hashing, 0.24 us each."""
_SCHEMAS = {int: na.int64, float: na.float64, str: na.string, bytes: na.binary}


@dataclass(frozen=True, kw_only=True, eq=False)
class Column:
    """Numbers of one type, texts or bytes."""

    kind: str
    """Arrow's name of the type; `na` where all is NULL."""
    values: NDArray[Any]
    """Numbers; of texts and bytes all that they are made of, one after the other."""
    valid: Bool
    """Which are not NULL."""
    bounds: NDArray[Any] | None = None
    """Of texts and bytes: where each begins, and where the last one ends."""

    def __len__(self) -> int:
        return len(self.valid)

    @property
    def is_whole(self) -> bool:
        """Whether nothing is NULL. Where all rows share one flag, that one is looked at."""
        return bool((self.valid[:1] if self.valid.strides == (0,) else self.valid).all())

    def to_int64(self, default: int) -> I64:
        """Integers of any type, or booleans, as int64, NULL replaced by `default`; unsigned 64-bit ids keep
        their bits. What is int64 without NULL is not copied. Raises ValueError of anything else."""
        if self.bounds is not None or self.values.dtype.kind not in "biu":
            raise ValueError(f"holds {self.kind}, not integers")
        values: I64 = self.values.astype(np.int64, copy=False)
        return values if self.is_whole else np.where(self.valid, values, default)

    def to_list(self) -> list[Any]:
        """Python's own values, None for NULL."""
        found = self.at(slice(None))
        for row in np.flatnonzero(~self.valid).tolist():
            found[row] = None
        return found

    def at(self, rows: Any) -> list[Any]:
        """The values of rows, by a slice, mask or index of numpy; anything where one is NULL."""
        if self.bounds is None:
            numbers: list[Any] = self.values[rows].tolist()
            return numbers
        cells: Any = self.values.tobytes()
        decode = self.kind == "string" and not cells.isascii()
        if self.kind == "string" and not decode:
            cells = cells.decode()
        ends = zip(self.bounds[:-1][rows].tolist(), self.bounds[1:][rows].tolist(), strict=True)
        return [cells[a:b].decode() for a, b in ends] if decode else [cells[a:b] for a, b in ends]

    def distinct_texts(self) -> tuple[list[str], I64]:
        """Distinct values as texts, in order of first appearance, and the index of each row into them; -1 for
        NULL."""
        many = len(self) > _MANY or "pyarrow" in sys.modules
        if many and self.bounds is not None and self.kind == "string":
            import pyarrow as pa
            from pyarrow._compute import call_function

            kind = pa.string() if self.bounds.dtype == np.int32 else pa.large_string()
            parts = [np.packbits(self.valid, bitorder="little"), self.bounds, self.values]
            text = pa.Array.from_buffers(kind, len(self), [pa.py_buffer(part) for part in parts])
            found = call_function("dictionary_encode", [text])
            return found.dictionary.to_pylist(), of_arrow([found.indices]).to_int64(-1)
        code = np.full(len(self), -1)
        texts, code[self.valid] = hashed(list(map(str, self.at(self.valid))))
        return texts, code

    def as_text(self) -> Column:
        """Texts and bytes as UTF-8, with what is none replaced: names of ranges may be in any encoding."""
        if self.bounds is None:
            return self
        cells, text = self.values.tobytes(), replace(self, kind="string")
        begins = self.values[self.bounds[self.bounds < len(cells)]]  # none in the middle of a letter
        with contextlib.suppress(UnicodeDecodeError):
            if cells.isascii() or (cells.decode() and not (begins & 0xC0 == 0x80).any()):
                return text
        raw = replace(self, kind="binary").to_list()
        return of_values([None if c is None else c.decode("utf-8", "replace") for c in raw])


def of_values(cells: Sequence[Any]) -> Column:
    """Values of one of SQLite's kinds, or None for NULL."""
    kind = next((type(cell) for cell in cells if cell is not None), None)
    return nulls(len(cells)) if kind is None else of_array(na.c_array(cells, _SCHEMAS[kind]()))


def of_arrow(chunks: Iterable[Any]) -> Column:
    """Arrow's arrays of one type as one column. Lists, times and dictionaries are none."""
    found = joined([of_array(na.c_array(chunk)) for chunk in chunks])
    assert found is not None
    return found


def nulls(length: int) -> Column:
    """A column in which nothing is known, of no memory."""
    none, unknown = (np.broadcast_to(np.zeros((), of), length) for of in (np.int64, bool))
    return Column(kind="na", values=none, valid=unknown)


def joined(parts: Sequence[Column]) -> Column | None:
    """One column of all rows; None where kinds differ by more than whole numbers and fractions do."""
    if len(parts) == 1:
        return parts[0]
    kinds = {part.kind for part in parts} - {"na"}
    if len(kinds) > 1 and kinds != {"int64", "double"}:
        return None
    if not kinds:
        return nulls(sum(map(len, parts)))
    kind, valid = min(kinds), np.concatenate([part.valid for part in parts])  # double of both
    of, text = next((part.values.dtype, part.bounds is not None) for part in parts if part.kind == kind)
    pieces = [part.values[:0] if text and part.bounds is None else part.values for part in parts]
    values = np.concatenate(pieces, dtype=of, casting="unsafe")  # numbers of parts without any have no say
    if not text:
        return Column(kind=kind, values=values, valid=valid)
    lengths = [part.values if part.bounds is None else np.diff(part.bounds) for part in parts]
    bounds = np.append(0, np.concatenate(lengths).cumsum(dtype=np.int64))
    return Column(kind=kind, values=values, valid=valid, bounds=bounds)


def of_array(array: Any) -> Column:
    """Views of the memory of nanoarrow's array, which lives as long as they do."""
    view, first, length = array.view(), array.offset, array.length
    kind = view.storage_type
    if view.null_count == length:
        return nulls(length)
    bits, *parts = view.buffers
    valid = np.broadcast_to(np.True_, length)
    if view.null_count:
        valid = np.frombuffer(bits.unpack_bits(first, length), bool)
    if kind == "bool":
        return Column(kind=kind, values=np.frombuffer(parts[0].unpack_bits(first, length), bool), valid=valid)
    values = np.asarray(parts[-1])
    if len(parts) == 1:
        return Column(kind=kind, values=values[first : first + length], valid=valid)
    bounds = np.asarray(parts[0])[first : first + length + 1]
    text = values.view(np.uint8)[bounds[0] : bounds[-1]]
    return Column(kind=kind, values=text, valid=valid, bounds=bounds - bounds[0] if bounds[0] else bounds)
