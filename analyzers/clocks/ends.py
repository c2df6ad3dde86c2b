"""Ends of matched collectives on the clocks that they were read from, and what they say of pairs of those."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.base.rows import occurrence, row_keys
from perfdoc.analyzers.clocks.bounds import Moments
from perfdoc.analyzers.clocks.differences import FEWEST_FOR_OFFSET, Edges, Line, fit_line
from perfdoc.analyzers.communication.calls import CollectiveCalls
from perfdoc.analyzers.communication.matches import Matches
from perfdoc.records import dataclass
from perfdoc.traces.table import F64, Bool


@dataclass(frozen=True, kw_only=True)
class Ends:
    """Rows of collectives that no rank leaves before all have joined, with exact ends, by collective.

    Times are on each member's own clock, whose zero was moved to a common epoch as well as that is known.
    """

    collective: I64
    """Counted from 0 over these collectives only."""
    group: I64
    """Index into Matches.groups, by collective."""
    member: I64
    start_ns: I64
    end_ns: I64

    @cached_property
    def first(self) -> I64:
        """Row at which each collective begins."""
        return np.searchsorted(self.collective, np.arange(len(self.group)))

    def thinned(self, most: int) -> Ends:
        """At most so many collectives of each group, evenly spread over them."""
        count = np.bincount(self.group, minlength=1)
        if count.max(initial=0) <= most:
            return self
        number, of = occurrence(self.group), np.maximum(count, most)[self.group]
        return self.take(number * most // of != (number - 1) * most // of)

    def take(self, collectives: Bool) -> Ends:
        """Some of the collectives."""
        rows = collectives[self.collective]
        number = np.cumsum(collectives) - 1
        return Ends(
            collective=number[self.collective[rows]],
            group=self.group[collectives],
            member=self.member[rows],
            start_ns=self.start_ns[rows],
            end_ns=self.end_ns[rows],
        )


@dataclass(frozen=True, kw_only=True)
class PairOfClocks:
    """How far one clock's ends lie behind another's in one group."""

    group: int
    source: int
    target: int
    time_ns: F64
    difference_ns: F64

    @cached_property
    def line(self) -> Line:
        """Through the differences; only of a pair with enough of them worth anything."""
        return fit_line(self.time_ns, self.difference_ns)

    def __len__(self) -> int:
        return len(self.time_ns)


def matched_ends(matches: Matches, ranks: Sequence[CollectiveCalls], origin_ns: Sequence[int]) -> Ends:
    """The ends that clocks can be aligned through. `origin_ns` is added to each member's times."""
    usable = matches.is_synchronising[matches.collective]
    start = np.empty(len(matches.row), np.int64)
    end = np.empty(len(matches.row), np.int64)
    for i, (calls, mine) in enumerate(zip(ranks, matches.of_member, strict=True)):
        rows = matches.row[mine]
        start[mine], end[mine] = calls.start_ns[rows] + origin_ns[i], calls.end_ns[rows] + origin_ns[i]
        usable[mine] &= calls.end_is_exact[rows]
    kept = np.bincount(matches.collective[usable], minlength=len(matches)) >= 2
    usable &= kept[matches.collective]
    number = np.cumsum(kept) - 1
    return Ends(
        collective=number[matches.collective[usable]],
        group=matches.group[kept].astype(np.int64),
        member=matches.member[usable].astype(np.int64),
        start_ns=start[usable],
        end_ns=end[usable],
    )


_SENDS, _RECEIVES = 1, 2
_WAYS = {"send": _SENDS, "recv": _RECEIVES, "send_recv": _SENDS | _RECEIVES}


def matched_messages(matches: Matches, ranks: Sequence[CollectiveCalls]) -> Moments:
    """Of every message with both its sides when it was sent and when its receive ended, which cannot be
    before; of a batch that sends and receives both ways. By member, on the clocks of the captures."""
    if "send_recv" not in matches.operations:
        return Moments.empty()
    of_two = (matches.operation == matches.operations.index("send_recv")) & (matches.count == 2)
    rows = np.concatenate([matches.first[:-1][of_two] + side for side in (0, 1)])
    start, end, way = (np.zeros(len(matches.row), np.int64) for _ in range(3))
    for calls, mine in zip(ranks, matches.of_member, strict=True):
        ways = np.array([*(_WAYS.get(name, 0) for name in calls.operations), 0], np.int64)
        call = matches.row[mine]
        start[mine], end[mine] = calls.start_ns[call], calls.end_ns[call]
        way[mine] = ways[calls.operation[call]]
    other = np.roll(rows, len(rows) // 2)
    sent = (way[rows] & _SENDS > 0) & (way[other] & _RECEIVES > 0)
    sender, receiver = rows[sent], other[sent]
    member = matches.member.astype(np.int64)
    return Moments(
        before=member[sender], before_ns=start[sender], after=member[receiver], after_ns=end[receiver]
    )


def pairs_of_clocks(ends: Ends, clock: I64, end_ns: I64) -> list[PairOfClocks]:
    """For each group, each of its clocks against the one that the most of its collectives have.

    clock, end_ns: of each row; times are on the reference's clock. Members on one clock count as one: the
    mean of their ends.
    """
    if not len(clock):
        return []
    first, key = row_keys(ends.collective, clock)
    collective, clock = ends.collective[first], clock[first]
    base = end_ns[ends.first]
    total = np.bincount(key, (end_ns - base[ends.collective]).astype(np.float64), len(first))
    # Differences within a collective are small, so floats hold them exactly enough.
    behind = total / np.bincount(key, minlength=len(first))

    group = ends.group[collective]
    pair_first, pair = row_keys(group, clock)
    count = np.bincount(pair, minlength=len(pair_first))
    reference = np.full(int(group.max()) + 1, -1, np.int64)
    # The last assignment wins: ascending by count, and among equals the smallest clock last.
    for i in np.lexsort((-clock[pair_first], count)).tolist():
        reference[group[pair_first[i]]] = clock[pair_first[i]]
    is_reference = clock == reference[group]
    zero = np.full(len(ends.group), np.nan)
    zero[collective[is_reference]] = behind[is_reference]
    rows = np.flatnonzero(~is_reference & ~np.isnan(zero[collective]))
    rows = rows[np.argsort(pair[rows], kind="stable")]
    bounds = np.flatnonzero(np.diff(pair[rows])) + 1
    found = []
    for mine in np.split(rows, bounds) if len(rows) else ():
        found.append(
            PairOfClocks(
                group=int(group[mine[0]]),
                source=int(reference[group[mine[0]]]),
                target=int(clock[mine[0]]),
                time_ns=base[collective[mine]].astype(np.float64) + zero[collective[mine]],
                difference_ns=behind[mine] - zero[collective[mine]],
            )
        )
    return found


def drift_edges(pairs: Sequence[PairOfClocks]) -> Edges:
    """Of the pairs whose ends cover enough time; ns per ns."""
    measured = [p for p in pairs if len(p) >= FEWEST_FOR_OFFSET and p.line.drift is not None]
    return Edges(
        source=np.array([p.source for p in measured], np.int64),
        target=np.array([p.target for p in measured], np.int64),
        difference=np.array([p.line.drift for p in measured], np.float64),
        error=np.array([p.line.drift_error for p in measured], np.float64),
    )


def offset_edges(pairs: Sequence[PairOfClocks], drift: F64) -> Edges:
    """Offsets at the middle once drifts are taken out, of the pairs with enough ends: fewer are no line, and
    what they leave open is for clock_bounds."""
    rows = []
    for p in pairs:
        if len(p) >= FEWEST_FOR_OFFSET:
            rest = p.difference_ns - (drift[p.target] - drift[p.source]) * p.time_ns
            rows.append((p.source, p.target, float(np.median(rest)), p.line.offset_error_ns))
    table = np.array(rows, np.float64).reshape(-1, 4)
    return Edges(
        source=table[:, 0].astype(np.int64),
        target=table[:, 1].astype(np.int64),
        difference=table[:, 2],
        error=table[:, 3],
    )
