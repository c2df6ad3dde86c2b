"""All clocks on as few time bases as possible: the clusters that ends tie, joined by what bounds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.clocks.bounds import NO_MEETINGS, Meetings, Moments, bounds_of, meetings
from perfdoc.analyzers.clocks.closeness import Closeness, ties_of
from perfdoc.analyzers.clocks.ends import Ends, pairs_of_clocks
from perfdoc.analyzers.clocks.solve import TICK_NS, Solution, ahead
from perfdoc.analyzers.communication.calls import CollectiveCalls
from perfdoc.analyzers.communication.matches import Matches
from perfdoc.records import dataclass
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


Source = Literal["one_clock", "ends", "bounds", "utc", "none"]
Read: TypeAlias = Callable[[I64, I64], I64]
"""Times of members' captures on the time of their clusters' references: (member, time)."""


@dataclass(frozen=True, kw_only=True)
class Whole:
    """By clock, against the reference of its component."""

    component: I64
    """That reference."""
    offset_ns: F64
    drift: F64
    has_drift: Bool
    source: tuple[Source, ...]
    """ends, bounds or utc."""

    def read(self, clock: I64, time_ns: I64) -> I64:
        """Times of clocks on the time of their components' references."""
        return time_ns - ahead(time_ns, self.offset_ns[clock], self.drift[clock])


def join(
    matches: Matches,
    ranks: Sequence[CollectiveCalls],
    messages: Moments,
    *,
    found: Solution,
    ends: Ends,
    clock_of: I64,
    has_utc: Bool,
    rank_of: I64,
    shift_ns: Sequence[int],
    believed: Bool,
) -> tuple[Whole, Closeness]:
    """Put the clusters of `found` on one time, and tell how close that is.

    messages: by member, on the captures' clocks. ends: those that `found` was made of. clock_of: by member;
    shift_ns: added to its capture's times to make them the times of `ends`. has_utc, rank_of: by clock.
    believed: by collective.
    """
    reference, cluster = _in_order(found, rank_of)
    clock = clock_of[ends.member]
    of_member = cluster[clock_of]

    def on_cluster(member: I64, time_ns: I64) -> I64:
        return found.read(clock_of[member], time_ns + np.array(shift_ns, np.int64)[member])

    begin, end = _spans(ranks, of_member, on_cluster, len(reference))
    pairs = pairs_of_clocks(ends, clock, found.read(clock, ends.end_ns))
    ties = ties_of(pairs, begin[cluster], end[cluster])
    start = np.full((1, len(cluster)), np.inf)
    start[0, reference] = 0.0
    away = ties.distances(start)[0]
    error, uncorrected = np.zeros(len(reference)), np.ones(len(reference), bool)
    np.maximum.at(error, cluster, away)
    np.logical_and.at(uncorrected, cluster, has_utc & ~found.by_ends)
    clusters = Clusters(error_ns=error, on_utc=uncorrected, begin_ns=begin, end_ns=end)
    if len(reference) > 1:
        met = _meetings(matches, ranks, believed, of_member, on_cluster)
        joined = join_clusters(clusters, met, _between_clusters(messages, of_member, on_cluster))
    else:
        joined = apart(len(reference))
    placed = joined.component[cluster]
    drift = joined.drift[cluster]
    whole = Whole(
        component=reference[placed],
        offset_ns=found.offset_ns + joined.offset_ns[cluster] * (1.0 + found.drift),
        drift=drift + found.drift * (1.0 + drift),
        has_drift=found.has_drift & (placed == cluster),
        source=tuple(
            joined.by[k] or ("ends" if by_ends else "utc")
            for k, by_ends in zip(cluster.tolist(), found.by_ends.tolist(), strict=True)
        ),
    )
    closeness = Closeness(
        clock_of=clock_of, ties=ties, cluster=cluster, to_reference_ns=away, open_ns=joined.open_ns
    )
    return whole, closeness


def _in_order(found: Solution, rank_of: I64) -> tuple[I64, I64]:
    """The references of the clusters by rank, and of each clock the position of its cluster's."""
    order = np.argsort(rank_of[found.fixed], kind="stable")
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    _, code = np.unique(found.cluster, return_inverse=True)
    return found.fixed[order], position[code.ravel()]


def _spans(ranks: Sequence[CollectiveCalls], cluster: I64, read: Read, clusters: int) -> tuple[I64, I64]:
    """When the communication of each cluster begins and ends, by its own clock; 0 where it has none."""
    some = np.array([i for i, c in enumerate(ranks) if len(c)], np.int64)
    begin = np.full(clusters, np.iinfo(np.int64).max)
    end = np.full(clusters, np.iinfo(np.int64).min)
    np.minimum.at(begin, cluster[some], read(some, np.array([ranks[i].start_ns.min() for i in some])))
    np.maximum.at(end, cluster[some], read(some, np.array([ranks[i].end_ns.max() for i in some])))
    silent = begin > end
    begin[silent] = end[silent] = 0
    return begin, end


def _meetings(
    matches: Matches, ranks: Sequence[CollectiveCalls], believed: Bool, cluster: I64, read: Read
) -> Meetings:
    """Collectives of several clusters; times are read only of those."""
    if not len(matches):
        return NO_MEETINGS
    of_row = cluster[matches.member]
    least, most = (f.reduceat(of_row, matches.first[:-1]) for f in (np.minimum, np.maximum))
    rows = np.flatnonzero((matches.is_synchronising & believed & (least != most))[matches.collective])
    member = matches.member[rows].astype(np.int64)
    start, end = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    exact = np.empty(len(rows), bool)
    for at in np.unique(member).tolist():
        mine, calls = member == at, ranks[at]
        row = matches.row[rows[mine]]
        start[mine], end[mine], exact[mine] = calls.start_ns[row], calls.end_ns[row], calls.end_is_exact[row]
    return meetings(matches.collective[rows], of_row[rows], read(member, start), read(member, end), exact)


def _between_clusters(messages: Moments, cluster: I64, read: Read) -> Moments:
    before, after = cluster[messages.before], cluster[messages.after]
    some = np.flatnonzero(before != after)
    return Moments(
        before=before[some],
        before_ns=read(messages.before[some], messages.before_ns[some]),
        after=after[some],
        after_ns=read(messages.after[some], messages.after_ns[some]),
    )
