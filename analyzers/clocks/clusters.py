"""Clusters of clocks put on one time by what cannot have come before what, where ends are too few.

Between two clusters that leaves an interval. Intervals along a way add up, and the best way over all clusters
counts (shortest paths, at the beginning and at the end of the time of interest, since a difference of clocks
is a line). Inside what is left clusters are placed by UTC if that was right elsewhere, by the few ends that
there are, or in the middle; how wrong that can be is part of the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.clocks.bounds import Meetings, Moments, bounds_of
from perfdoc.analyzers.clocks.solve import TICK_NS
from perfdoc.traces.table import F64, Bool

MOST_CLUSTERS = 512
"""Of more none are joined: time grows with the third power."""
By = Literal["utc", "bounds"]


@dataclass(frozen=True, kw_only=True)
class Clusters:
    """Clusters of clocks in the order of their lowest ranks, each on the time of its reference."""

    error_ns: F64
    """How far clocks of each may be off against its reference."""
    on_utc: Bool
    """All clocks have UTC and their ends agree with it."""
    begin_ns: I64
    """The result must hold from here, on the cluster's clock,"""
    end_ns: I64
    """to here."""

    def __len__(self) -> int:
        return len(self.error_ns)


@dataclass(frozen=True, kw_only=True)
class Joined:
    """By cluster, against the first cluster of its component."""

    component: I64
    offset_ns: F64
    drift: F64
    by: tuple[By | None, ...]
    """None for the first."""
    open_ns: F64
    """How far the placed difference of two clusters may be off, (clusters, clusters); 0 for one with itself,
    infinite where they were not joined. Of the first MOST_CLUSTERS; more are never joined."""


def join_clusters(clusters: Clusters, met: Meetings, moments: Moments) -> Joined:
    """Join what moments bound from both sides.

    met, moments: between clusters, by index; the latter beside what the former holds.
    """
    together = Moments.joined([met.moments, moments])
    if len(clusters) > MOST_CLUSTERS or not len(together.before):
        return apart(len(clusters))
    # Differences are bounded as one clock reads; how far the two are apart moves that by its drift, so what
    # is roughly known of it is taken off first.
    shift = _roughly(clusters, together)
    moved = Moments(
        before=together.before,
        before_ns=together.before_ns - shift[together.before],
        after=together.after,
        after_ns=together.after_ns - shift[together.after],
    )
    begin_ns = min(int((clusters.begin_ns - shift).min()), int(moved.before_ns.min()))
    end_ns = max(int((clusters.end_ns - shift).max()), int(moved.after_ns.max()))
    most = _most(clusters, moved, begin_ns, end_ns)
    component = _components(most)
    place = np.zeros((2, len(clusters)))
    by: list[By | None] = [None] * len(clusters)
    ends = _few_ends(met, shift)
    for at in range(len(clusters)):
        placed = np.flatnonzero(component[:at] == component[at])
        if len(placed):
            place[:, at], by[at] = _place(at, placed, place, most, clusters, shift, ends)
    span = max(end_ns - begin_ns, 1)
    drift = (place[1] - place[0]) / span
    off = np.maximum(most - (place[:, None, :] - place[:, :, None]), 0.0)
    # The places are as the clock reads; offset and drift as its reference does (clock_solve.ahead).
    level = place[0] - drift * begin_ns
    offset, drift = level / (1.0 - drift), drift / (1.0 - drift)
    return Joined(
        component=component,
        offset_ns=offset + shift - shift[component] - drift * shift[component],
        drift=drift,
        by=tuple(by),
        open_ns=np.maximum(off, off.transpose(0, 2, 1)).max(axis=0),
    )


def apart(clusters: int) -> Joined:
    """Every cluster by itself."""
    alone = np.full((min(clusters, MOST_CLUSTERS),) * 2, np.inf)
    np.fill_diagonal(alone, 0.0)
    return Joined(
        component=np.arange(clusters),
        offset_ns=np.zeros(clusters),
        drift=np.zeros(clusters),
        by=(None,) * clusters,
        open_ns=alone,
    )


def _roughly(clusters: Clusters, moments: Moments) -> I64:
    """How far each cluster is ahead of the first of its component, drifts aside; 0 where nothing says."""
    count = len(clusters)
    least = np.full((count, count), np.inf)
    np.minimum.at(
        least, (moments.before, moments.after), (moments.after_ns - moments.before_ns).astype(np.float64)
    )
    known = np.isfinite(least) & np.isfinite(least.T)
    middle = np.where(known, (np.where(known, least, 0) - np.where(known, least.T, 0)) / 2, 0.0)
    shift, seen = np.zeros(count), np.zeros(count, bool)
    for first in range(count):
        waiting = [] if seen[first] else [first]
        seen[first] = True
        while waiting:
            at = waiting.pop()
            following = np.flatnonzero(known[at] & ~seen)
            seen[following] = True
            shift[following] = shift[at] + middle[at, following]
            waiting += following.tolist()
    return np.round(shift).astype(np.int64)


def _most(clusters: Clusters, moments: Moments, begin_ns: int, end_ns: int) -> F64:
    """By how much at most each cluster (second index) is ahead of each other (first), at both times:
    (2, clusters, clusters). Infinite where nothing bounds it, or what does contradicts itself."""
    count = len(clusters)
    most = np.full((2, count, count), np.inf)
    loose = np.round(clusters.error_ns).astype(np.int64) + TICK_NS
    bounds = bounds_of(
        Moments(
            before=moments.before,
            before_ns=moments.before_ns - loose[moments.before],
            after=moments.after,
            after_ns=moments.after_ns + loose[moments.after],
        ),
        begin_ns,
        end_ns,
    )
    fits = bounds.possible
    one, other = bounds.one[fits], bounds.other[fits]
    most[:, one, other], most[:, other, one] = bounds.high_ns[:, fits], -bounds.low_ns[:, fits]
    own = np.arange(count)
    while True:
        most[:, own, own] = 0.0
        found = most.copy()
        for k in range(count):
            np.minimum(found, found[:, :, k, None] + found[:, k, None, :], out=found)
        # Bounds that contradict one another on a way round: nothing on that way is believed.
        wrong = (found[:, own, own] < 0).any(axis=0)
        if not wrong.any():
            return found
        most[:, wrong, :] = most[:, :, wrong] = np.inf


def _components(most: F64) -> I64:
    """Of each cluster the first one that it is bounded against from both sides."""
    joined = np.isfinite(most).all(axis=0)
    first: I64 = np.argmax(joined & joined.T, axis=1).astype(np.int64)
    return first


def _few_ends(met: Meetings, shift: I64) -> F64:
    """Median of what one cluster's ends lie behind another's, (clusters, clusters); nan where none are."""
    ends = np.full((len(shift), len(shift)), np.nan)
    order = np.lexsort((met.other, met.one))
    one, other = met.one[order], met.other[order]
    behind = met.behind_ns[order] - (shift[other] - shift[one])
    begin = np.flatnonzero((np.diff(one, prepend=-1) != 0) | (np.diff(other, prepend=-1) != 0))
    for mine in np.split(np.arange(len(order)), begin[1:]) if len(order) else ():
        middle = float(np.median(behind[mine]))
        ends[one[mine[0]], other[mine[0]]], ends[other[mine[0]], one[mine[0]]] = middle, -middle
    return ends


def _place(
    at: int, placed: I64, place: F64, most: F64, clusters: Clusters, shift: I64, ends: F64
) -> tuple[F64, By]:
    """Where to put a cluster, at both times, among those that have a place."""
    high = (place[:, placed] + most[:, placed, at]).min(axis=1)
    low = (place[:, placed] - most[:, at, placed]).max(axis=1)
    first = int(placed[0])
    if clusters.on_utc[at] and clusters.on_utc[first]:
        utc = float(shift[first] - shift[at])
        if (low <= utc).all() and (utc <= high).all():
            return np.full(2, utc), "utc"
    said = ends[placed, at]
    if not np.isnan(said).all():
        wanted = np.nanmedian(place[:, placed] + said, axis=1)
        return np.clip(wanted, low, high), "bounds"
    return (low + high) / 2, "bounds"
