"""The base of every columnar table of a trace, and what fills one: growing columns and interned names."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfdoc.records import dataclass

I64: TypeAlias = NDArray[np.int64]
I32: TypeAlias = NDArray[np.int32]
U64: TypeAlias = NDArray[np.uint64]
I8: TypeAlias = NDArray[np.int8]
F32: TypeAlias = NDArray[np.float32]
F64: TypeAlias = NDArray[np.float64]
Bool: TypeAlias = NDArray[np.bool_]
_T = TypeVar("_T", bound=np.generic)

_DTYPES = {
    "I64": np.int64,
    "I32": np.int32,
    "U64": np.uint64,
    "I8": np.int8,
    "F64": np.float64,
    "Bool": np.bool_,
}
_columns: Any = cache(lambda kind: [(f.name, _DTYPES[str(f.type)]) for f in fields(kind)])
"""Name and type of each; the standard library's own look is a third of making a short table."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """Columns of equal length, one numpy array a field.

    A subclass declares its columns as fields annotated with one of the aliases above; the field's
    docstring states the unit. Arrays are converted to the declared type and made read-only, so an
    analysis cannot change the trace under another one.
    """

    def __post_init__(self) -> None:
        length: int | None = None
        for name, dtype in _columns(type(self)):
            column: NDArray[Any] = np.ascontiguousarray(getattr(self, name), dtype=dtype)
            assert column.ndim == 1, f"{type(self).__name__}.{name} has {column.ndim} axes"
            assert length is None or len(column) == length, f"{type(self).__name__}.{name}: length"
            length = len(column)
            # A view, so that a caller's own array stays writable.
            column = column.view()
            column.flags.writeable = False
            object.__setattr__(self, name, column)

    def __len__(self) -> int:
        return len(getattr(self, _columns(type(self))[0][0]))

    @classmethod
    def empty(cls) -> Self:
        """A table of the same columns with no rows."""
        return cls(**{name: np.empty(0, dtype=dtype) for name, dtype in _columns(cls)})

    @classmethod
    def column_names(cls) -> tuple[str, ...]:
        """The columns in declared order."""
        return tuple(name for name, _ in _columns(cls))

    @classmethod
    def joined(cls, parts: Iterable[Self]) -> Self:
        """The rows of all parts, one part after another."""
        tables = (cls.empty(), *parts)
        names = cls.column_names()
        return cls(**{name: np.concatenate([getattr(t, name) for t in tables]) for name in names})

    def take(self, rows: NDArray[Any] | slice) -> Self:
        """The rows that a boolean mask, an index array or a slice selects."""
        by_index = isinstance(rows, np.ndarray) and rows.dtype != bool  # `take` is a third faster
        columns = {name: getattr(self, name) for name, _ in _columns(type(self))}
        return type(self)(**{n: c.take(rows) if by_index else c[rows] for n, c in columns.items()})


def in_order(few: NDArray[np.integer[Any]]) -> I64:
    """A stable order of small numbers: by their digits, where 16 bits hold them."""
    fits = few.min(initial=0) >= -(1 << 15) and few.max(initial=0) < 1 << 15
    return np.argsort(few.astype(np.int16) if fits else few, kind="stable")


INVALID_U32 = 0xFFFFFFFF
"""What CUPTI writes where 32 bits hold nothing."""
_AT_ONCE = 4096
_SMALL = frozenset(
    ("thread", "kind", "pinned", "name", "full_name", "dims", "dtypes", "values", "strides")
    + ("operation", "group_name", "group_description", "dtype")
)
"""Columns of `Rows` that hold indices of threads and texts, and kinds."""
_Reader: TypeAlias = Callable[[object], int]


class Rows:
    """Columns of 64-bit integers, 8 bytes a value while a long trace is read; 4 of an index or a kind.

    readers: of the columns that are given as they stand in the file. Of whole numbers from 0 a reader keeps
    those of one interval as they are, but for INVALID_U32.
    """

    def __init__(self, *names: str, readers: Mapping[str, _Reader] | None = None) -> None:
        self._columns = {name: array("i" if name in _SMALL else "q") for name in names}
        self._readers = [(readers or {}).get(name) for name in names]
        assert _SMALL.isdisjoint(name for name in names if name in (readers or {}))  # reads 8 bytes a value
        self._added: list[tuple[Any, ...]] = []
        self.add = self._added.append
        """One row, in the order of the names, all known to fit or read; `settle` now and then."""
        self._before = 0

    def __len__(self) -> int:
        return self._before + len(self._added)

    def settle(self) -> None:
        """Make columns of many rows at once, which takes a third of the time."""
        if len(self._added) >= _AT_ONCE:
            self._append()

    def _append(self) -> None:
        columns = zip(self._columns.values(), self._readers, zip(*self._added, strict=True), strict=True)
        for column, reader, values in columns:
            # `fromiter` takes a fifth of the time of `array`, and cuts what is no whole number.
            assert reader is not None or not isinstance(values[0], float)
            found = np.fromiter(values, column.typecode) if reader is None else _read(reader, values)
            column.frombytes(found.tobytes())
        self._before += len(self._added)
        self._added.clear()

    def columns(self) -> dict[str, NDArray[Any]]:
        """The columns as numpy arrays of the same memory: no row can be added while one is there."""
        if self._added:
            self._append()
        return {name: np.asarray(column) for name, column in self._columns.items()}


def _read(reader: _Reader, values: Sequence[Any]) -> I64:
    """What a reader makes of each value; of numbers that are all plain, or all missing, it is asked once."""
    kinds = set(map(type, values))
    whole = kinds == {int} and INVALID_U32 not in values
    if whole and all(0 <= end == reader(end) for end in (min(values), max(values))):
        return np.fromiter(values, np.int64)
    if kinds == {type(None)}:
        return np.full(len(values), reader(None), np.int64)
    return np.fromiter(map(reader, values), np.int64, len(values))


class Strings:
    """Gives every distinct string one index; index 0 is the empty string."""

    def __init__(self) -> None:
        self.values: list[str] = [""]
        self._index: dict[str, int] = {"": 0}

    def intern(self, text: str) -> int:
        """The index of a string, the same for equal strings."""
        index = self._index.get(text)
        if index is None:
            # A lone surrogate is not text: it could be neither written as UTF-8 nor matched.
            clean = text if text.isascii() else text.encode("utf-8", "replace").decode()
            if clean != text:
                index = self.intern(clean)
            else:
                index = len(self.values)
                self.values.append(text)
            self._index[text] = index
        return index

    def intern_each(self, texts: Sequence[str]) -> Sequence[int]:
        """The same of many that all differ."""
        if not "".join(texts).isascii() or not self._index.keys().isdisjoint(texts):
            return [self.intern(text) for text in texts]
        new = range(len(self.values), len(self.values) + len(texts))
        self.values += texts
        self._index.update(zip(texts, new, strict=True))
        return new


_MANY = 100_000
"""Values from which on numpy's own are quicker. They import numpy.ma first, 3 % of a small analysis."""
_FEW = 1_000
"""Marks that take no longer than a look at the values."""


def unique(values: NDArray[_T]) -> NDArray[_T]:
    """As np.unique: each value once, ascending; none is NaN."""
    if len(values) > _MANY:
        return np.unique(values)
    ordered = np.sort(values, axis=None)
    found: NDArray[_T] = ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]
    return found


def among(values: NDArray[Any], wanted: ArrayLike) -> Bool:
    """As np.isin: which of the values are wanted. Of many by a mark for each number from the least wanted one
    on, where these are close together; np.isin hashes and sorts all, forty times as long for few values."""
    ordered = np.asarray(wanted)
    if not len(ordered):
        return np.zeros(values.shape, bool)
    if len(ordered) == 1:
        return np.asarray(values == ordered[0])
    if len(values) + len(ordered) > _MANY and values.dtype.kind == ordered.dtype.kind == "i":
        low, high = int(ordered.min()), int(ordered.max())
        if high - low <= 8 * len(ordered) + _MANY:
            marks = np.zeros(high - low + 2, bool)
            marks[ordered - low] = True
            # What is less than all is far above them as an unsigned number; the last mark is of no number.
            beyond = (values - np.int64(low)).view(np.uint64)
            return marks.take(np.minimum(beyond, len(marks) - 1).view(np.int64))
    ordered = np.sort(ordered)
    at = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return np.asarray(ordered[at] == values)


def distinct(values: I64) -> tuple[I64, I64]:
    """Distinct values in order of first appearance, and the index of each row into them.

    Hashing instead of numpy's sort: 2 M rows take 10 ms instead of 150 ms. Few are marked, a third of the
    time of hashing, where none is far above the least, as of indices. Others are hashed by Python where the
    reader had no need of pyarrow: its import is 8 % of a small analysis.
    """
    values = np.ascontiguousarray(values, np.int64)
    size = len(values)
    if not size or (values == values[0]).all():
        return values[:1], np.zeros(size, np.int64)
    if size < _MANY // 4:
        low = int(values.min())
        if (span := int(values.max()) - low + 1) < 2 * size + _FEW:
            code, first = values - low, np.full(span, size)
            first[code[::-1]] = np.arange(size)[::-1]  # the last assignment wins
            there = np.flatnonzero(first < size)
            there = there[first[there].argsort()]
            first[there] = np.arange(len(there))
            return there + low, first[code]
    if size < _MANY // 4 and "pyarrow" not in sys.modules:
        starts = np.flatnonzero(np.append(True, values[1:] != values[:-1]))  # of runs: threads' ids are alike
        found, rows = hashed(values[starts].tolist())
        return np.array(found, np.int64), np.repeat(rows, np.diff(starts, append=size))
    import pyarrow as pa
    from pyarrow._compute import call_function

    array = pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])
    encoded = call_function("dictionary_encode", [array])
    keys = np.frombuffer(encoded.dictionary.buffers()[1], np.int64, len(encoded.dictionary)).copy()
    return keys, np.frombuffer(encoded.indices.buffers()[1], np.int32, len(values)).astype(np.int64)


def hashed(values: Sequence[Any]) -> tuple[list[Any], I64]:
    """The same of what Python hashes, without a line of Python for each."""
    index = {value: at for at, value in enumerate(dict.fromkeys(values))}
    return list(index), np.fromiter(map(index.__getitem__, values), np.int64, len(values))


def at_percent(values: NDArray[Any], percent: ArrayLike) -> F64:
    """As np.percentile of float64 along the last axis; there is a value."""
    ordered, last = _ascending(values), values.shape[-1] - 1
    place = last * (np.asarray(percent) / 100)
    at = np.floor(place).astype(np.intp)
    low, high = (ordered[..., to].astype(np.float64) for to in (at, np.minimum(at + 1, last)))
    beyond, more = place % 1, high - low
    found: F64 = np.where(beyond < 0.5, low + more * beyond, high - more * (1 - beyond))
    return found


def median(values: NDArray[Any]) -> F64:
    """As np.median of float64 along the last axis; there is a value."""
    ordered, size = _ascending(values), values.shape[-1]
    found: F64 = ordered[..., (size - 1) // 2 : size // 2 + 1].mean(axis=-1, dtype=np.float64)
    return found


def _ascending(values: NDArray[Any]) -> NDArray[Any]:
    """Along the last axis; all NaN where one is."""
    ordered = np.sort(values)
    if ordered.dtype.kind == "f":
        ordered[np.isnan(ordered[..., -1])] = np.nan
    return ordered
