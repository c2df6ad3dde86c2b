"""All clocks on as few time bases as possible: the clusters that ends tie, joined by what bounds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.clocks.bounds import NO_MEETINGS, Meetings, Moments, meetings
from perfdoc.analyzers.clocks.closeness import Closeness, ties_of
from perfdoc.analyzers.clocks.clusters import Clusters, apart, join_clusters
from perfdoc.analyzers.clocks.ends import Ends, pairs_of_clocks
from perfdoc.analyzers.clocks.solve import Solution, ahead
from perfdoc.analyzers.communication.calls import CollectiveCalls
from perfdoc.analyzers.communication.matches import Matches
from perfdoc.traces.table import F64, Bool

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
