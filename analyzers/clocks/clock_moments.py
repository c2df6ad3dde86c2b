"""Moments of two clocks of which one cannot lie behind the other, whatever the clocks say.

Nobody leaves a collective before all have come, and a receive does not end before its send began. Each such
pair bounds the difference of two clocks from one side; enough of them from both sides leave an interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.base.row_keys import row_keys
from perfdoc.analyzers.clocks.clock_graph import F64
from perfdoc.traces.table import Bool

_ALL_PAIRS = 16
"""Clusters of one collective that are compared with one another; of more each with the first one only."""
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, kw_only=True)
class Moments:
    """`before` is not later than `after`. The two are members or clusters of clocks, as it says."""

    before: I64
    before_ns: I64
    after: I64
    after_ns: I64

    @staticmethod
    def joined(parts: Sequence[Moments]) -> Moments:
        """All of them."""
        return Moments(
            before=np.concatenate([_NONE, *(p.before for p in parts)]),
            before_ns=np.concatenate([_NONE, *(p.before_ns for p in parts)]),
            after=np.concatenate([_NONE, *(p.after for p in parts)]),
            after_ns=np.concatenate([_NONE, *(p.after_ns for p in parts)]),
        )


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
    moments=Moments(before=_NONE, before_ns=_NONE, after=_NONE, after_ns=_NONE),
    one=_NONE,
    other=_NONE,
    behind_ns=np.empty(0),
)


def meetings(collective: I64, cluster: I64, start_ns: I64, end_ns: I64, end_is_exact: Bool) -> Meetings:
    """Of rows of collectives that nobody leaves before all have come, each in several clusters.

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
    told = exact[a] & exact[b]
    return Meetings(
        moments=Moments.joined(
            [
                Moments(before=who[x], before_ns=came[x], after=who[y], after_ns=left[y])
                for x, y in ((a, b), (b, a))
            ]
        ),
        one=who[a][told],
        other=who[b][told],
        behind_ns=(mean[b] - mean[a])[told],
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
