"""Clock error between ranks: how closely ends align clocks, and how far bounds leave them open.

Two clocks in one group are as far apart as their ends there still are, once the clocks are aligned. Over
clocks in between these add up: each hop may be off its own way.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import ceil, inf

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.clocks.differences import FEWEST_FOR_OFFSET, STEEPEST
from perfdoc.analyzers.clocks.ends import Ends, PairOfClocks
from perfdoc.analyzers.clocks.solve import FEW_ENDS, PERCENT, TICK_NS, reach_ns
from perfdoc.analyzers.communication.matches import Matches
from perfdoc.records import dataclass
from perfdoc.traces.table import F64, at_percent, unique


@dataclass(frozen=True, kw_only=True)
class Ties:
    """Pairs of clocks that share enough ends, and by how much those may be off; every pair both ways."""

    source: I64
    target: I64
    """Ascending."""
    error_ns: F64

    def distances(self, start: F64) -> F64:
        """Sum of the errors along the best way to every clock from where `start` is 0, a row for each start:
        (starts, clocks); infinite where there is none."""
        found = start.copy()
        first = np.flatnonzero(np.diff(self.target, prepend=-1))
        if not len(first):
            return found
        reached = self.target[first]
        while True:
            through = np.minimum.reduceat(found[:, self.source] + self.error_ns, first, axis=1)
            if not (through < found[:, reached]).any():
                return found
            found[:, reached] = np.minimum(found[:, reached], through)


def ties_of(pairs: Sequence[PairOfClocks], begin_ns: I64, end_ns: I64) -> Ties:
    """The ties of pairs of aligned clocks over the time in which they are read, [begin, end) by clock.

    Ends that differ by r (percentiles) may belong to lines that are tilted by 2 r over the time that they
    cover (likewise); beyond it the clocks may drift apart that fast, though never faster than clocks do.
    """
    rows = []
    kept = [p for p in pairs if len(p) >= FEWEST_FOR_OFFSET]
    scatter: dict[int, float] = {}
    for p in kept:
        scatter[p.group] = max(scatter.get(p.group, 0.0), reach_ns(p.difference_ns))
    for p in kept:
        # That a few ends agree by chance shows in those of the group's other clocks, which do not.
        off = scatter[p.group] if len(p) < FEW_ENDS else reach_ns(p.difference_ns)
        first, last = at_percent(p.time_ns, PERCENT).tolist()
        tilt = min(STEEPEST, 2 * max(off, TICK_NS) / max(last - first, 1.0))
        off += tilt * max(first - float(begin_ns[p.source]), float(end_ns[p.source]) - last, 0.0)
        rows += [(p.source, p.target, off), (p.target, p.source, off)]
    table = np.array(rows, np.float64).reshape(-1, 3)
    table = table[np.argsort(table[:, 1], kind="stable")]
    return Ties(
        source=table[:, 0].astype(np.int64), target=table[:, 1].astype(np.int64), error_ns=table[:, 2]
    )


_AT_ONCE = 128
"""Clocks from which distances are found together: what that takes grows with these times all ties."""
_TABLE_CLOCKS = 2_048
"""Of so many clocks the distances of all pairs are found once and kept: 32 MB."""


@dataclass(frozen=True, kw_only=True)
class Closeness:
    """How far clocks may still be apart."""

    clock_of: I64
    """By member."""
    ties: Ties
    cluster: I64
    """By clock."""
    to_reference_ns: F64
    """By clock, against the reference of its cluster."""
    open_ns: F64
    """Between clusters, as in clusters.Joined."""

    def across(self, one: I64, other: I64) -> F64:
        """How far clocks of different clusters may be apart; infinite where those were not joined."""
        a, b = self.cluster[one], self.cluster[other]
        joined = np.maximum(a, b) < len(self.open_ns)
        open_ns = self.open_ns[np.where(joined, a, 0), np.where(joined, b, 0)]
        away = self.to_reference_ns[one] + self.to_reference_ns[other]
        return np.where(a == b, 0.0, np.where(joined, open_ns, inf)) + away

    def to(self, reference: int, member: int) -> int | None:
        """How far a member's clock may be off against a clock that is a reference; None: not compared."""
        apart = float(self.across(self.clock_of[member], np.array(reference)))
        return None if apart == inf else max(TICK_NS, ceil(apart))

    def between(self, members: Sequence[int]) -> int | None:
        """The largest difference that may lie between two of some members, a tick at least; None where not
        all of them are compared."""
        clocks = unique(self.clock_of[list(members)])
        if len(clocks) < 2:
            return TICK_NS
        cluster, apart = self.cluster[clocks], 0.0
        for some in _parts(clocks):
            within = self._within(some)[:, clocks]
            across = self.across(some[:, None], clocks)
            apart = max(apart, float(np.where(self.cluster[some][:, None] == cluster, within, across).max()))
        return None if apart == inf else max(TICK_NS, ceil(apart))

    def _within(self, some: I64) -> F64:
        """From some clocks to every clock along ties."""
        if len(self.cluster) <= _TABLE_CLOCKS:
            return self._every_way[some]
        return self._ways_from(some)

    @cached_property
    def _every_way(self) -> F64:
        """Every pipeline of the job asks for its own clocks."""
        return np.concatenate([self._ways_from(some) for some in _parts(np.arange(len(self.cluster)))])

    def _ways_from(self, some: I64) -> F64:
        start = np.full((len(some), len(self.cluster)), np.inf)
        start[np.arange(len(some)), some] = 0.0
        return self.ties.distances(start)


def _parts(clocks: I64) -> list[I64]:
    return np.split(clocks, range(_AT_ONCE, len(clocks), _AT_ONCE))


def group_resolutions(
    matches: Matches, ends: Ends, end_ns: I64, closeness: Closeness
) -> tuple[int | None, ...]:
    """Smallest resolvable difference of arrivals at the collectives of each group; None where its
    members' clocks are not compared.

    What the ends of the group itself differ by, where it has enough of them in one cluster; else no less than
    what its members' clocks may be apart. end_ns: of each row of `ends`, aligned.
    """
    spread = np.empty(0)
    if len(end_ns):
        latest, earliest = (f.reduceat(end_ns, ends.first) for f in (np.maximum, np.minimum))
        spread = (latest - earliest).astype(np.float64)
    order = np.argsort(ends.group, kind="stable")
    bounds = np.searchsorted(ends.group[order], np.arange(1, len(matches.groups)))
    collectives = np.split(order, bounds)
    synchronising = np.bincount(matches.group[matches.is_synchronising], minlength=len(matches.groups)) > 0
    between: dict[tuple[int, ...], int | None] = {}
    found: list[int | None] = []
    for at, members in enumerate(g.members for g in matches.groups):
        if not synchronising[at] and len(members) <= 2:  # more may leave together whatever it is called
            found.append(None)
            continue
        mine = collectives[at]
        seen = float(spread[mine].max(initial=TICK_NS))
        clusters = unique(closeness.cluster[closeness.clock_of[list(members)]])
        if len(mine) < FEWEST_FOR_OFFSET or len(clusters) > 1:
            key = tuple(sorted(set(closeness.clock_of[list(members)].tolist())))
            if key not in between:
                between[key] = closeness.between(members)
            apart = between[key]
            found.append(None if apart is None else max(ceil(seen), apart))
        else:
            own = _reach_over_time(spread[mine], end_ns[ends.first[mine]])
            found.append(max(TICK_NS, ceil(own)))
    return tuple(found)


def _reach_over_time(spread_ns: F64, time_ns: I64) -> float:
    """How far apart clocks may be at any of these times, whose ends differ by so much (see ties_of)."""
    reach = reach_ns(spread_ns)
    first, last = at_percent(time_ns, PERCENT).tolist()
    tilt = min(float(STEEPEST), 2 * max(reach, TICK_NS) / max(last - first, 1.0))
    beyond = max(first - float(time_ns.min()), float(time_ns.max()) - last)
    apart: float = reach + tilt * beyond
    return apart
