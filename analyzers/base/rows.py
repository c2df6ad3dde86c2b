"""Rows of several columns: those that are equal, those that a mask keeps, what their names say, sums."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from perfdoc.analyzers.base.intervals import I64
from perfdoc.traces.table import Bool, distinct, unique

_Said = TypeVar("_Said", bool, int, float)


def said_by_names(
    strings: Sequence[str],
    names: NDArray[np.integer[Any]],
    look: Callable[[str], _Said | None],
    unknown: _Said,
    alike: I64 | None = None,
) -> NDArray[Any]:
    """For every row what `look` makes of its name; `unknown`, whose type is the column's, where that is None
    or the row has no name.

    names: indices into strings, -1 none. alike: `Trace.alike`, where it may not matter to `look` which number
    is in a name; asked once then for all that differ in nothing else.

    >>> said_by_names(["", "gemm", "copy"], np.array([2, 1, -1, 2]), len, 0).tolist()
    [4, 4, 0, 4]
    """
    # The slot past the last string is where -1 looks.
    said: NDArray[Any] = np.full(len(strings) + 1, unknown)
    (named,) = kept(names >= 0, names)
    used = np.flatnonzero(np.bincount(named, minlength=len(strings)))
    for i in (used if alike is None else unique(alike[used])).tolist():
        if (found := look(strings[i])) is not None:
            said[i] = found
    if alike is not None:
        said[used] = said[alike[used]]
    of_rows: NDArray[Any] = said[names]
    return of_rows


Number = TypeVar("Number", int, float)


def known_total(values: Iterable[Number | None]) -> Number | None:
    """The sum of those that are known; None where none is.

    >>> known_total([1, None, 2]), known_total([None])
    (3, None)
    """
    known = [v for v in values if v is not None]
    return sum(known[1:], known[0]) if known else None


def row_keys(*columns: NDArray[np.integer[Any]]) -> tuple[I64, I64]:
    """For columns of equal length: the first row of each distinct combination, in order of appearance, and
    for every row the index of its combination.

    >>> first, key = row_keys(np.array([5, 5, 7, 5]), np.array([1, 1, 1, 2]))
    >>> first.tolist(), key.tolist()
    ([0, 2, 3], [0, 0, 1, 2])
    """
    key, known = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        values, code = distinct(column.astype(np.int64))
        if known > 1 < len(values):
            values, code = distinct(key * len(values) + code)  # in range: both are below the number of rows
        if len(values) > 1:
            key, known = code, len(values)
    first = np.zeros(int(key.max(initial=-1)) + 1, np.int64)
    # Backwards, because the last assignment wins and the first row is wanted.
    first[key[::-1]] = np.arange(len(key))[::-1]
    return first, key


def occurrence(*columns: I64) -> I64:
    """For every row the number of earlier rows that are equal to it in all columns."""
    first, key = row_keys(*columns)
    order = np.argsort(key, kind="stable")
    starts = np.searchsorted(key[order], np.arange(len(first)))
    count = np.empty(len(key), np.int64)
    count[order] = np.arange(len(key)) - starts[key[order]]
    return count


def place(rows: I64) -> I64 | slice:
    """Distinct ascending rows, as a slice where they follow one another."""
    together = len(rows) > 0 and int(rows[-1]) - int(rows[0]) == len(rows) - 1
    return slice(int(rows[0]), int(rows[-1]) + 1) if together else rows


def picked(column: NDArray[Any], rows: I64) -> NDArray[Any]:
    """Values at distinct ascending rows; a view, which takes no memory, where they follow one another."""
    at = place(rows)
    return column[at] if isinstance(at, slice) else column.take(at)


def ascends(first: NDArray[Any], then: NDArray[Any], *, strictly: bool = False) -> bool:
    """Whether rows are in the order of one column, and where that is equal of another."""
    same = first[1:] == first[:-1]
    later = then[1:] > then[:-1] if strictly else then[1:] >= then[:-1]
    return bool((later if same.all() else np.where(same, later, first[1:] > first[:-1])).all())


def kept(mask: Bool, *columns: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """Each column where the mask is true; the columns themselves where it is true everywhere.

    By index, since numpy takes six times as long with a mask that changes from row to row, and by `take`, a
    third faster than indexing.
    """
    if mask.all():
        return columns
    rows = np.flatnonzero(mask)
    return tuple(column.take(rows) for column in columns)


def sum_by(index: np.ndarray, value: np.ndarray, length: int) -> np.ndarray:
    """Exact integer sums of values by index.

    bincount adds in float64, exact only below 2^53; high and low halves each stay far below that.
    """
    if len(value) and value.min() >= 0 and int(value.max()) * len(value) < 2**53:
        return np.bincount(index, weights=value, minlength=length).astype(np.int64)
    low = np.bincount(index, weights=(value & 0xFFFFFFFF).astype(np.float64), minlength=length)
    high = np.bincount(index, weights=(value >> 32).astype(np.float64), minlength=length)
    return np.asarray((high.astype(np.int64) << 32) + low.astype(np.int64))
