"""One time for all ranks: how far each capture's clock is off, and what is known before the matching.

No rank leaves an all-reduce before all have joined, and all leave it within a short time:
where ends differ by a constant, that is the clocks. Starting from the captures' UTC epochs, every clock gets
an offset, and a drift where the ends cover enough time. Groups that overlap carry this from rank to rank;
ranks that are so tied are a cluster. Clusters that share too few ends are placed within what is left by what
cannot have come before what, messages between pipeline stages included. Ranks that nothing bounds are not
compared. What ends still differ by, and what bounds leave open, is the resolution: below it no statement
about who came late is possible.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.clocks.bounds import Moments
from perfdoc.analyzers.clocks.closeness import Closeness, group_resolutions
from perfdoc.analyzers.clocks.differences import UTC_ERROR_NS
from perfdoc.analyzers.clocks.ends import Ends, matched_ends, matched_messages
from perfdoc.analyzers.clocks.solve import (
    TICK_NS,
    ahead,
    from_the_others,
    percentiles,
    solve_clusters,
    violating,
    within_clusters,
)
from perfdoc.analyzers.clocks.whole import Source, Whole, join
from perfdoc.analyzers.communication.calls import CollectiveCalls
from perfdoc.analyzers.communication.matches import Matches, Member
from perfdoc.records import dataclass
from perfdoc.traces.table import Bool, among

_ENDS_OF_A_GROUP = 2_000
"""Collectives of each group, spread over its time, that clocks are fitted to; more make no clock better."""
_ATTEMPTS = 8


@dataclass(frozen=True, kw_only=True)
class MemberClock:
    """One member's clock against the reference of its component."""

    component: int
    """Members of one component can be compared. Numbered from 0 by their first member."""
    cluster: int
    """Members of one cluster are tied by ends. Likewise."""
    is_reference: bool
    source: Source
    """one_clock: one capture with the reference. ends: from matched ends. bounds: too few of those, so within
    what is left by what cannot have come before what. utc: the captures' epochs alone, since the ends agree
    with them as well as they can, or are too few to contradict them. none: nothing to compare with."""
    has_utc: bool
    """Without it `offset_ns` is against an arbitrary zero."""
    offset_ns: int
    """How far the clock was ahead of the reference's at the middle of the matches."""
    drift: float
    """How much faster it is taken to run; ns per ns."""
    drift_ppm: float | None
    """The same in millionths where ends tell it; None where they are too few or do not cover enough time."""
    ends: int
    """Matched ends of this member."""
    resolution_ns: int | None
    """Clock error against the reference; None if nothing was compared."""


@dataclass(frozen=True, kw_only=True)
class ClockAlignment:
    """Clocks of all members, in their order."""

    state: Literal["measured", "not_measured"]
    reason: str
    remedy: str
    clocks: tuple[MemberClock, ...]
    residual_p5_ns: int | None
    """5th percentile, over all matched ends, of the end minus the mean of the other members' ends."""
    residual_p95_ns: int | None
    ends: int
    """How many ends that is."""
    contradicted: frozenset[int]
    """Groups (index into Matches.groups) whose members leave before others come, so that what was matched is
    not one collective; nothing of them is in the figures."""
    origin_ns: tuple[int, ...]
    """Added to each member's times before its offset is taken off: its UTC epoch, or a stand-in."""
    middle_ns: int
    """When offsets hold, on the clock of the reference: the middle of the matched ends."""
    closeness: Closeness
    group_resolution_ns: tuple[int | None, ...]
    """By group: clock error of arrivals at one of its collectives. None: not compared."""

    @property
    def residual_ns(self) -> int | None:
        """The larger side of the residual, a clock's tick at least."""
        if self.residual_p5_ns is None or self.residual_p95_ns is None:
            return None
        return max(abs(self.residual_p5_ns), abs(self.residual_p95_ns), TICK_NS)

    @property
    def resolution_ns(self) -> int | None:
        """Clock error between any two ranks of one component. For some
        ranks less is enough, see `group_resolution_ns`."""
        parts: dict[int, list[int]] = {}
        for member, clock in enumerate(self.clocks):
            parts.setdefault(clock.component, []).append(member)
        apart = [self.closeness.between(members) for members in parts.values() if len(members) > 1]
        sides = (self.residual_ns, *apart, *(c.resolution_ns for c in self.clocks))
        return max((s for s in sides if s is not None), default=None)

    def resolution_between(self, members: Sequence[int]) -> int | None:
        """Clock error between these members; None: not compared."""
        return self.closeness.between(members)

    def aligned(self, member: int, time_ns: I64) -> I64:
        """Times of a member's capture on the clock of its component's reference, since `middle_ns`."""
        clock = self.clocks[member]
        since = time_ns + (self.origin_ns[member] - self.middle_ns)
        return since - ahead(since, clock.offset_ns, clock.drift)


def align_clocks(
    matches: Matches, ranks: Sequence[CollectiveCalls], messages: Moments | None = None
) -> ClockAlignment:
    """Put all ranks on one time.

    ranks: those that the matches were made of. messages: sends and the ends of their receives beside those
    that are matched, by member, on the clocks of the captures.
    """
    origin = _origins(ranks)
    ends = matched_ends(matches, ranks, origin)
    middle = min(origin, default=0)
    if len(ends.end_ns):
        middle = (int(ends.end_ns.min()) + int(ends.end_ns.max())) // 2
    ends = replace(ends, start_ns=ends.start_ns - middle, end_ns=ends.end_ns - middle)
    clock_of = np.array([m.clock for m in matches.members], np.int64)
    has_utc = np.ones(int(clock_of.max(initial=-1)) + 1, bool)
    rank_of = np.full(len(has_utc), np.iinfo(np.int64).max)
    for at, (member, calls) in enumerate(zip(matches.members, ranks, strict=True)):
        has_utc[member.clock] = calls.utc_origin_ns is not None
        rank_of[member.clock] = min(rank_of[member.clock], at if member.rank is None else member.rank)

    strict = np.array([g.matched_by == "world_order" for g in matches.groups], bool)
    contradicted: set[int] = set()
    for attempt in range(_ATTEMPTS):
        some = ends.thinned(_ENDS_OF_A_GROUP)
        found = solve_clusters(some, clock_of[some.member], has_utc, rank_of)
        inside = ends.take(within_clusters(ends, found.cluster[clock_of[ends.member]]))
        clock = clock_of[inside.member]
        came, left = found.read(clock, inside.start_ns), found.read(clock, inside.end_ns)
        wrong = violating(inside, came, left, strict)
        if not wrong:
            break
        # What is wrong may have spoilt the rest, so the rest is tried again; but not for ever.
        wrong = wrong if attempt < _ATTEMPTS - 2 else set(inside.group.tolist())
        contradicted |= wrong
        ends = ends.take(~among(ends.group, list(wrong)))

    shift = [o - middle for o in origin]
    whole, closeness = join(
        matches,
        ranks,
        Moments.joined([matched_messages(matches, ranks), messages or Moments.empty()]),
        found=found,
        ends=some,
        clock_of=clock_of,
        has_utc=has_utc,
        rank_of=rank_of,
        shift_ns=shift,
        believed=~among(matches.group, list(contradicted)),
    )
    clock = clock_of[ends.member]
    end = whole.read(clock, ends.end_ns)
    p5, p95 = percentiles(from_the_others(ends, end))
    measured = len(end) > 0 or len(set(whole.component.tolist())) < len(has_utc)
    return ClockAlignment(
        state="measured" if measured else "not_measured",
        reason="" if measured else "no collective was matched that all its ranks leave together",
        remedy="" if measured else matches.remedy,
        clocks=_member_clocks(whole, closeness, has_utc, ends),
        residual_p5_ns=p5,
        residual_p95_ns=p95,
        ends=len(end),
        contradicted=frozenset(contradicted),
        origin_ns=tuple(origin),
        middle_ns=middle,
        closeness=closeness,
        group_resolution_ns=group_resolutions(matches, ends, end, closeness),
    )


def _origins(ranks: Sequence[CollectiveCalls]) -> list[int]:
    """UTC of each capture's zero; where it is not known, what lets the capture begin with the others.

    Ranks of one capture have one: that one of them begins late is no fault of its clock."""
    begins = [c.utc_origin_ns + int(c.start_ns[0]) for c in ranks if c.utc_origin_ns is not None and len(c)]
    base = min(begins, default=0)
    first: dict[str, int] = {}
    for c in ranks:
        if len(c):
            first[c.clock] = min(int(c.start_ns[0]), first.get(c.clock, int(c.start_ns[0])))
    return [c.utc_origin_ns if c.utc_origin_ns is not None else base - first.get(c.clock, 0) for c in ranks]


def _member_clocks(whole: Whole, closeness: Closeness, has_utc: Bool, ends: Ends) -> tuple[MemberClock, ...]:
    clock_of = closeness.clock_of.tolist()
    component = _numbered([int(whole.component[c]) for c in clock_of])
    cluster = _numbered([int(closeness.cluster[c]) for c in clock_of])
    members = Counter(component)
    clocks = Counter(int(whole.component[c]) for c in set(clock_of))
    count = np.bincount(ends.member, minlength=len(clock_of))

    def source(member: int) -> Source:
        clock = clock_of[member]
        if clocks[int(whole.component[clock])] == 1:
            return "one_clock" if members[component[member]] > 1 else "none"
        found: Source = whole.source[clock]
        return found

    return tuple(
        MemberClock(
            component=component[i],
            cluster=cluster[i],
            is_reference=bool(whole.component[c] == c),
            source=source(i),
            has_utc=bool(has_utc[c]),
            offset_ns=round(whole.offset_ns[c]),
            drift=float(whole.drift[c]),
            drift_ppm=float(whole.drift[c]) * 1e6 if whole.has_drift[c] else None,
            ends=int(count[i]),
            resolution_ns=None if members[component[i]] == 1 else closeness.to(int(whole.component[c]), i),
        )
        for i, c in enumerate(clock_of)
    )


def _numbered(values: list[int]) -> list[int]:
    """Counted from 0 by first appearance."""
    order = {value: i for i, value in enumerate(dict.fromkeys(values))}
    return [order[value] for value in values]


_RESIDUALS = 10
_SMALLEST_ERROR_NS = 200_000
"""Clocks that matched ends have aligned are this far apart at most, or that many times the residual."""


@dataclass(frozen=True, kw_only=True)
class ClockGuess:
    """Ends of every member's calls on a common time, and how far that may be off."""

    end_ns: tuple[I64, ...]
    clock: tuple[int, ...]
    has_utc: tuple[bool, ...]
    component: tuple[int, ...]
    """Members with one number were aligned; all different where nothing was."""
    aligned_error_ns: int

    def error_ns(self, one: int, other: int) -> int | None:
        """How far two members' times may be apart; None where nothing is known."""
        if self.clock[one] == self.clock[other]:
            return 0
        if self.component[one] == self.component[other]:
            return self.aligned_error_ns
        return UTC_ERROR_NS if self.has_utc[one] and self.has_utc[other] else None

    @staticmethod
    def from_utc(ranks: Sequence[CollectiveCalls], members: Sequence[Member]) -> ClockGuess:
        """By the captures' epochs."""
        return ClockGuess(
            end_ns=tuple(c.end_ns + (c.utc_origin_ns or 0) for c in ranks),
            clock=tuple(m.clock for m in members),
            has_utc=tuple(c.utc_origin_ns is not None for c in ranks),
            component=tuple(range(len(ranks))),
            aligned_error_ns=0,
        )

    @staticmethod
    def from_alignment(
        ranks: Sequence[CollectiveCalls], members: Sequence[Member], alignment: ClockAlignment
    ) -> ClockGuess:
        """By an alignment through what could be matched so far."""
        return ClockGuess(
            end_ns=tuple(alignment.aligned(i, c.end_ns) for i, c in enumerate(ranks)),
            clock=tuple(m.clock for m in members),
            has_utc=tuple(c.utc_origin_ns is not None for c in ranks),
            component=tuple(
                c.cluster if c.source in ("ends", "bounds") else -1 - i
                for i, c in enumerate(alignment.clocks)
            ),
            aligned_error_ns=max(_SMALLEST_ERROR_NS, _RESIDUALS * (alignment.residual_ns or 0)),
        )
