"""How far apart two clocks can be at most, from moments of which one cannot lie behind the other.

No rank leaves a collective before all have joined, and a receive does not end before its send began. Each
such pair bounds the difference of two clocks from one side; enough of them from both sides leave an interval.

The difference of two clocks is a line over time. Moments bound it from above and from below; all lines that
stay between are possible, and so at any time is what lies between the lowest and the highest of them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.base.rows import row_keys
from perfdoc.analyzers.clocks.differences import STEEPEST
from perfdoc.records import dataclass
from perfdoc.traces.table import F64, Bool, Table

_ALL_PAIRS = 16
"""Clusters of one collective that are compared with each other; of more each with the first one only."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Moments(Table):
    """`before` is not later than `after`. The two are members or clusters of clocks, as it says."""

    before: I64
    before_ns: I64
    after: I64
    after_ns: I64


@dataclass(frozen=True, kw_only=True)
class Meetings:
    """What collectives across clusters say of these, on the clusters' clocks."""

    moments: Moments
    """Between clusters."""
    one: I64
    """Pairs of clusters, once for each collective of which their ends are exact."""
    other: I64
    behind_ns: F64
    """By how much the other's ends lie behind the one's."""


NO_MEETINGS = Meetings(
    moments=Moments.empty(), one=np.empty(0, np.int64), other=np.empty(0, np.int64), behind_ns=np.empty(0)
)


def meetings(collective: I64, cluster: I64, start_ns: I64, end_ns: I64, end_is_exact: Bool) -> Meetings:
    """Of rows of collectives that no rank leaves before all have joined, each in several clusters.

    Rows are sorted by collective. Times are on the clusters' clocks. An end that is not exact is that of a
    wait: never too early.
    """
    if not len(collective):
        return NO_MEETINGS
    first, key = row_keys(collective, cluster)
    order = np.argsort(collective[first], kind="stable")
    position = np.empty(len(first), np.int64)
    position[order] = np.arange(len(first))
    # One entry for each cluster in a collective; those of one collective follow one another.
    key, first = position[key], first[order]
    who = cluster[first]
    came = np.full(len(first), np.iinfo(np.int64).min)
    left = np.full(len(first), np.iinfo(np.int64).max)
    np.maximum.at(came, key, start_ns)
    np.minimum.at(left, key, end_ns)
    mean = np.bincount(key, (end_ns - end_ns[0]).astype(np.float64)) / np.bincount(key)
    exact = np.ones(len(first), bool)
    np.logical_and.at(exact, key, end_is_exact)
    a, b = _pairs(collective[first])
    both_exact = exact[a] & exact[b]
    return Meetings(
        moments=Moments.joined(
            [
                Moments(before=who[x], before_ns=came[x], after=who[y], after_ns=left[y])
                for x, y in ((a, b), (b, a))
            ]
        ),
        one=who[a][both_exact],
        other=who[b][both_exact],
        behind_ns=(mean[b] - mean[a])[both_exact],
    )


def _pairs(collective: I64) -> tuple[I64, I64]:
    """Pairs of entries of one collective, each once. `collective` is sorted."""
    begin = np.flatnonzero(np.diff(collective, prepend=-1))
    count = np.diff(np.append(begin, len(collective)))
    position = np.arange(len(collective)) - np.repeat(begin, count)
    # The entry at each position with all before it, or with the first one alone.
    partners = np.where(np.repeat(count, count) <= _ALL_PAIRS, position, np.minimum(position, 1))
    later = np.repeat(np.arange(len(collective)), partners)
    nth = np.arange(len(later)) - np.repeat(np.cumsum(partners) - partners, partners)
    return np.repeat(np.repeat(begin, count), partners) + nth, later


_BINS = 64
"""Of time, in each of which the tightest bound of either side is kept; leaving one out is never wrong."""
_ROUNDS = 60
"""Of a search for the best slope: 0.6^60 of what clocks can drift is a ns in a year."""
_GOLDEN = (np.sqrt(5.0) - 1.0) / 2.0


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Pairs of clocks, one < other, and the difference other - one at two times: shape (2, pairs).

    Infinite on a side that nothing bounds.
    """

    one: I64
    other: I64
    low_ns: F64
    high_ns: F64
    possible: Bool
    """By pair: whether any line stays between the bounds."""


def bounds_of(moments: Moments, begin_ns: int, end_ns: int) -> Bounds:
    """The bounds of every pair of clocks at `begin_ns` and `end_ns`.

    A moment bounds the difference as the other clock reads at its own side of it.
    """
    swapped = moments.before > moments.after
    one = np.where(swapped, moments.after, moments.before)
    other = np.where(swapped, moments.before, moments.after)
    # Before in one, after in other: the difference is at most what lies between. The other way: at least.
    time = np.where(swapped, moments.before_ns, moments.after_ns)
    bound = (time - np.where(swapped, moments.after_ns, moments.before_ns)).astype(np.float64)
    first, pair = row_keys(one, other)
    middle = (begin_ns + end_ns) // 2
    lines = _Lines(
        *_tightest(pair[~swapped], time[~swapped], bound[~swapped], len(first), middle, (begin_ns, end_ns)),
        *_tightest(pair[swapped], time[swapped], -bound[swapped], len(first), middle, (begin_ns, end_ns)),
    )
    low, high, possible = lines.between(np.array([begin_ns - middle, end_ns - middle], np.float64))
    return Bounds(one=one[first], other=other[first], low_ns=low, high_ns=high, possible=possible)


def _tightest(
    pair: I64, time: I64, bound: F64, pairs: int, middle: int, span: tuple[int, int]
) -> tuple[F64, F64]:
    """(time since the middle, bound) of the smallest bound in each bin, (pairs, bins); infinite if none."""
    begin, end = span
    width = max(1, -(-(end - begin + 1) // _BINS))
    cell = pair * _BINS + np.clip((time - begin) // width, 0, _BINS - 1)
    # The last assignment wins: largest first.
    order = np.argsort(-bound, kind="stable")
    times, bounds = np.zeros(pairs * _BINS), np.full(pairs * _BINS, np.inf)
    times[cell[order]], bounds[cell[order]] = time[order] - middle, bound[order]
    return times.reshape(pairs, _BINS), bounds.reshape(pairs, _BINS)


@dataclass(frozen=True)
class _Lines:
    """Bounds of lines: below `high` and above `-low` at their times, (pairs, bins)."""

    high_time: F64
    high: F64
    low_time: F64
    low: F64

    def top(self, slope: F64) -> F64:
        """Highest level at time 0 of a line of this slope; concave in the slope."""
        best: F64 = (self.high - slope[:, None] * self.high_time).min(axis=1)
        return best

    def bottom(self, slope: F64) -> F64:
        """Lowest level, negated; concave as well."""
        best: F64 = (self.low + slope[:, None] * self.low_time).min(axis=1)
        return best

    def between(self, times: F64) -> tuple[F64, F64, Bool]:
        """Lowest and highest value of possible lines at each time, (times, pairs); whether there is one."""
        steepest = np.full(len(self.high), STEEPEST)

        def room(slope: F64) -> F64:
            return self.top(slope) + self.bottom(slope)

        best = _argmax(room, -steepest, steepest)
        possible = room(best) >= 0
        least, most = _edge(room, best, -steepest), _edge(room, best, steepest)
        high = [self.top(s) + s * t for t in times for s in [_argmax(_at(self.top, t), least, most)]]
        low = [s * t - self.bottom(s) for t in times for s in [_argmax(_at(self.bottom, -t), least, most)]]
        return np.array(low), np.array(high), possible


def _at(level: Callable[[F64], F64], time: float) -> Callable[[F64], F64]:
    """The value at a time rather than at 0."""
    return lambda slope: level(slope) + slope * time


def _argmax(function: Callable[[F64], F64], low: F64, high: F64) -> F64:
    """Where a concave function is largest, by the golden section."""
    low, high = low.copy(), high.copy()
    a, b = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_a, at_b = function(a), function(b)
    for _ in range(_ROUNDS):
        left = at_a >= at_b
        high, low = np.where(left, b, high), np.where(left, low, a)
        c = np.where(left, high - _GOLDEN * (high - low), low + _GOLDEN * (high - low))
        at_c = function(c)
        a, b = np.where(left, c, b), np.where(left, a, c)
        at_a, at_b = np.where(left, at_c, at_b), np.where(left, at_a, at_c)
    best: F64 = np.where(at_a >= at_b, a, b)
    return best


def _edge(room: Callable[[F64], F64], inside: F64, outside: F64) -> F64:
    """The slope furthest towards `outside` for which there is room."""
    far = np.where(room(outside) >= 0, outside, inside)
    out = outside.copy()
    for _ in range(_ROUNDS):
        middle = (far + out) / 2
        fits = room(middle) >= 0
        far, out = np.where(fits, middle, far), np.where(fits, out, middle)
    return far
