"""Layers of labelled stretches, painted over one another: the one on top says what a moment was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.base.intervals import I64, Intervals
from perfdoc.analyzers.kernels.kernels import sum_by

NOTHING = -1
"""Code of time in which a track has nothing, and the item of what has none."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Disjoint stretches by start; empty ones are allowed."""

    start_ns: I64
    end_ns: I64
    code: I64
    """What each is; 0 or more."""
    item: I64 | None = None
    """What of that kind, such as the index of a name; NOTHING where there is none."""


def layer_of(intervals: Intervals, code: int) -> Layer:
    """A set of stretches that are all the same."""
    return Layer(
        start_ns=intervals.start_ns,
        end_ns=intervals.end_ns,
        code=np.full(len(intervals), code, np.int64),
    )


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """Stretches that tile [start_ns[0], end_ns[-1]) without gaps, each of one code and one item."""

    start_ns: I64
    end_ns: I64
    code: I64
    """NOTHING where no layer reaches."""
    item: I64

    def __len__(self) -> int:
        return len(self.start_ns)

    def sums_ns(self, codes: int) -> I64:
        """Exact nanoseconds by code, without those of NOTHING."""
        some = self.code >= 0
        return np.asarray(sum_by(self.code[some], (self.end_ns - self.start_ns)[some], codes))


def paint(layers: Sequence[Layer], start_ns: int, end_ns: int) -> Pieces:
    """What [start_ns, end_ns) shows once all layers are laid, the last one on top.

    >>> low = Layer(start_ns=np.array([0]), end_ns=np.array([10]), code=np.array([3]))
    >>> top = Layer(start_ns=np.array([4]), end_ns=np.array([6]), code=np.array([1]))
    >>> p = paint([low, top], 0, 12)
    >>> p.start_ns.tolist(), p.end_ns.tolist(), p.code.tolist()
    ([0, 4, 6, 10], [4, 6, 10, 12], [3, 1, 3, -1])
    """
    cut = [_inside(layer, start_ns, end_ns) for layer in layers]
    edges = [np.array([start_ns, end_ns], np.int64), *(e for a, b, _, _ in cut for e in (a, b))]
    # Stable, because runs that are sorted already merge in linear time.
    bounds = np.sort(np.concatenate(edges), kind="stable")
    bounds = bounds[np.append(True, bounds[1:] > bounds[:-1])]
    code = np.full(len(bounds) - 1, NOTHING, np.int64)
    item = np.full(len(bounds) - 1, NOTHING, np.int64)
    for start, end, codes, items in cut:
        # The row of the layer that covers each cell, counted from 1.
        row = np.zeros(len(bounds), np.int64)
        number = np.arange(1, len(start) + 1)
        row[np.searchsorted(bounds, start)] += number
        row[np.searchsorted(bounds, end)] -= number
        row = np.cumsum(row)[:-1]
        covered = np.flatnonzero(row)
        code[covered] = codes[row[covered] - 1]
        item[covered] = items[row[covered] - 1]
    return _merged(bounds, code, item)


def _inside(layer: Layer, start_ns: int, end_ns: int) -> tuple[I64, I64, I64, I64]:
    """The stretches of a layer inside the bounds."""
    start, end = np.clip(layer.start_ns, start_ns, end_ns), np.clip(layer.end_ns, start_ns, end_ns)
    kept = end > start
    start, end, code = start[kept], end[kept], layer.code[kept]
    assert (start[1:] >= end[:-1]).all(), "the stretches of a layer are disjoint and sorted"
    item = np.full(len(start), NOTHING, np.int64) if layer.item is None else layer.item[kept]
    return start, end, code, item


def _merged(bounds: I64, code: I64, item: I64) -> Pieces:
    """Cells side by side that show the same become one piece."""
    fresh = np.append(True, (code[1:] != code[:-1]) | (item[1:] != item[:-1]))[: len(code)]
    first = np.flatnonzero(fresh)
    return Pieces(
        start_ns=bounds[:-1][first],
        end_ns=np.append(bounds[first[1:]], bounds[-1:]),
        code=code[first],
        item=item[first],
    )
