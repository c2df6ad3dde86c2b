"""Labelled intervals in layers, stacked into few enough segments to draw.

Long pieces stay as they are. Short ones that follow one another are pooled, and inside of a pool the time of
each code is laid side by side. So segments tile what the pieces tile, their sums by code are those of the
pieces exactly, and nothing is drawn farther from its place than a pool is long.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfdoc.analyzers.base.intervals import I64, Intervals
from perfdoc.analyzers.base.rows import sum_by
from perfdoc.records import dataclass
from perfdoc.traces.table import I8, I32, Table

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
        start_ns=intervals.start_ns, end_ns=intervals.end_ns, code=np.full(len(intervals), code, np.int64)
    )


@dataclass(frozen=True, kw_only=True)
class Pieces(Layer):
    """Stretches that tile [start_ns[0], end_ns[-1]) without gaps; of code NOTHING where no layer reaches."""

    item: I64

    def __len__(self) -> int:
        return len(self.start_ns)


def paint(layers: Sequence[Layer], start_ns: int, end_ns: int) -> Pieces:
    """What [start_ns, end_ns) shows once all layers are laid, the last one on top.

    >>> low = Layer(start_ns=np.array([0]), end_ns=np.array([10]), code=np.array([3]))
    >>> top = Layer(start_ns=np.array([4]), end_ns=np.array([6]), code=np.array([1]))
    >>> p = paint([low, top], 0, 12)
    >>> p.start_ns.tolist(), p.end_ns.tolist(), p.code.tolist()
    ([0, 4, 6, 10], [4, 6, 10, 12], [3, 1, 3, -1])
    """
    inside = (_inside(layer, start_ns, end_ns) for layer in layers if len(layer.start_ns))
    cut = [found for found in inside if len(found[0])]
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


_FINER = 32
"""Bins of the first pooling, in limits."""
_COARSER = 0.7
"""Bins are made fewer by this factor until the segments are few enough."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Segments(Table):
    """A track as it is drawn, by start time. Those of all ranks of a job are held together, so columns are no
    wider than what they count."""

    start_ns: I64
    duration_ns: I64
    code: I8
    item: I32
    """Of the longest stretch in each; NOTHING where it has none."""
    stretches: I32
    """How many stretches of its code a segment holds; 1: it is drawn where it was."""
    count: I32
    """How many kernels or calls began in them."""


def segments_of(pieces: Pieces, count: I64 | None = None) -> Segments:
    """Every piece a segment, NOTHING among them. count: kernels that began in each."""
    ones = np.ones(len(pieces), np.int32)
    return Segments(
        start_ns=pieces.start_ns,
        duration_ns=pieces.end_ns - pieces.start_ns,
        code=pieces.code.astype(np.int8),
        item=pieces.item.astype(np.int32),
        stretches=ones,
        count=np.zeros(len(pieces), np.int32) if count is None else count.astype(np.int32),
    )


def pool(segments: Segments, limit: int) -> Segments:
    """At most `limit` segments, but one for every code where the limit is below that.

    segments: tile their time, and so does the result; NOTHING does not count against the limit. What is
    pooled may be pooled again.
    """
    if int(np.count_nonzero(segments.code != NOTHING)) <= limit:
        return segments
    if len(segments) > _FINER * limit:
        # Once in small pools, so that the search for the right size goes over few.
        finer = _finer(segments, _FINER * limit)
        if len(finer) < len(segments):
            return pool(finer, limit)
    codes = int(segments.code.max()) + 2
    code = segments.code + 1
    begin = int(segments.start_ns[0])
    span = int(segments.start_ns[-1] + segments.duration_ns[-1]) - begin
    bins = max(1, limit)
    while True:
        group = _groups(segments, begin, -(-span // bins))
        key = group * codes + code
        held = np.bincount(key, minlength=(int(group[-1]) + 1) * codes)
        drawn = held.reshape(-1, codes)[:, 1:]
        if int(np.count_nonzero(drawn)) <= limit or bins == 1:
            break
        bins = max(1, int(bins * _COARSER))
    if bins == 1:
        key, held = code.copy(), np.bincount(code, minlength=codes)
    return _pooled(segments, key, held, codes)


def _finer(segments: Segments, bins: int) -> Segments:
    """Pooled in so many bins."""
    codes = int(segments.code.max()) + 2
    begin = int(segments.start_ns[0])
    span = int(segments.start_ns[-1] + segments.duration_ns[-1]) - begin
    group = _groups(segments, begin, -(-span // bins))
    key = group * codes + segments.code + 1
    return _pooled(segments, key, np.bincount(key, minlength=(int(group[-1]) + 1) * codes), codes)


def _groups(segments: Segments, begin: int, width: int) -> I64:
    """The pool of each segment, counted from 0 in order of time; a long one has its own."""
    long = segments.duration_ns >= width
    at = (segments.start_ns - begin) // width
    fresh = np.ones(len(segments), bool)
    fresh[1:] = long[1:] | long[:-1] | (at[1:] != at[:-1])
    return np.cumsum(fresh) - 1


def _pooled(segments: Segments, key: I64, held: I64, codes: int) -> Segments:
    present = np.flatnonzero(held)
    duration = sum_by(key, segments.duration_ns, len(held))[present]
    # Pools follow one another, so the time before a segment is that of all segments before it.
    start = int(segments.start_ns[0]) + np.append(0, np.cumsum(duration)[:-1])
    most = np.zeros(len(held), np.int64)
    np.maximum.at(most, key, segments.duration_ns)
    # Of equally long ones the first: it is written last.
    rows = np.flatnonzero(segments.duration_ns == most[key])[::-1]
    longest = np.zeros(len(held), np.int64)
    longest[key[rows]] = rows
    return Segments(
        start_ns=start,
        duration_ns=duration,
        code=(present % codes - 1).astype(np.int8),
        item=segments.item[longest[present]],
        stretches=sum_by(key, segments.stretches, len(held))[present].astype(np.int32),
        count=sum_by(key, segments.count, len(held))[present].astype(np.int32),
    )


def drawn(segments: Segments) -> Segments:
    """Without NOTHING."""
    return segments.take(segments.code != NOTHING)
