"""Few enough segments to draw, with no nanosecond lost.

Long pieces stay as they are. Short ones that follow one another are pooled, and inside of a pool the time of
each code is laid side by side. So segments tile what the pieces tile, their sums by code are those of the
pieces exactly, and nothing is drawn farther from its place than a pool is long.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.kernels.kernels import sum_by
from perfdoc.analyzers.timeline.paint import NOTHING, Pieces

_FINER = 32
"""Bins of the first pooling, in limits."""
_COARSER = 0.7
"""Bins are made fewer by this factor until the segments are few enough."""


@dataclass(frozen=True, kw_only=True)
class Segments:
    """A track as it is drawn, by start time."""

    start_ns: I64
    duration_ns: I64
    code: I64
    item: I64
    """Of the longest stretch in each; NOTHING where it has none."""
    stretches: I64
    """How many stretches of its code a segment holds; 1: it is drawn where it was."""
    count: I64
    """How many kernels or calls began in them."""

    def __len__(self) -> int:
        return len(self.start_ns)

    def sums_ns(self, codes: int) -> I64:
        """Exact nanoseconds by code."""
        return np.asarray(sum_by(self.code, self.duration_ns, codes))


def segments_of(pieces: Pieces, count: I64 | None = None) -> Segments:
    """Every piece a segment, NOTHING among them. count: kernels that began in each."""
    ones = np.ones(len(pieces), np.int64)
    return Segments(
        start_ns=pieces.start_ns,
        duration_ns=pieces.end_ns - pieces.start_ns,
        code=pieces.code,
        item=pieces.item,
        stretches=ones,
        count=np.zeros(len(pieces), np.int64) if count is None else count,
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
        code=present % codes - 1,
        item=segments.item[longest[present]],
        stretches=sum_by(key, segments.stretches, len(held))[present],
        count=sum_by(key, segments.count, len(held))[present],
    )


def drawn(segments: Segments) -> Segments:
    """Without NOTHING."""
    rows = segments.code != NOTHING
    return Segments(**{name: getattr(segments, name)[rows] for name in Segments.__dataclass_fields__})
