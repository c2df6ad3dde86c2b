"""One time for all ranks: how far each capture's clock is off, from the ends of matched collectives.

Nobody leaves an all-reduce before everybody has come, and all leave it within a short time of one another:
where ends differ by a constant, that is the clocks. Starting from the captures' UTC epochs, every clock gets
an offset, and a drift where the ends cover enough time. Groups that overlap carry this from rank to rank;
ranks that no group connects are not compared. What the ends still differ by is the residual: below it no
statement about who came late is possible.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from perfdoc.analyzers.clock_checks import PERCENT, bounds, from_the_others, percentiles, violating
from perfdoc.analyzers.clock_ends import Ends, drift_edges, matched_ends, offset_edges, pairs_of_clocks
from perfdoc.analyzers.clock_graph import F64, components, solve
from perfdoc.analyzers.collective_calls import CollectiveCalls
from perfdoc.analyzers.intervals import I64
from perfdoc.analyzers.matches import Matches
from perfdoc.traces.table import Bool

_WORTH_FRAC = 0.6
"""A correction must bring some clock's ends this much closer to the others', or all stay on UTC: ends that
are late by chance would move clocks that are set well."""
_ENDS_OF_A_GROUP = 2_000
"""Collectives of each group, spread over its time, that clocks are fitted to; more make no clock better."""
_TICK_NS = 1_000
"""No timestamp of a GPU or of the PyTorch profiler is trusted further."""
_ATTEMPTS = 8
_SMALL_OFFSET_NS = 1_000_000
"""Taken off before drifts are fitted again: 100 ppm of it is less than a clock's tick."""

Source = Literal["one_clock", "ends", "utc", "none"]


@dataclass(frozen=True, kw_only=True)
class MemberClock:
    """One member's clock against the reference of its component."""

    component: int
    """Members of one component can be compared. Numbered from 0 by their first member."""
    is_reference: bool
    source: Source
    """one_clock: one capture with the reference. ends: from matched ends. utc: the captures' epochs alone,
    since the ends agree with them as well as they can, or are too few. none: nothing to compare with."""
    has_utc: bool
    """Without it `offset_ns` is against an arbitrary zero."""
    offset_ns: int
    """How far the clock was ahead of the reference's at the middle of the matches."""
    drift_ppm: float | None
    """How much faster it runs, in millionths; None where the ends do not cover enough time."""
    ends: int
    """Matched ends of this member."""
    bound_ns: int | None
    """No offset could be wrong by more: someone would leave a collective before all had come. None where no
    collective bounds it; negative where that happens as it is."""


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
    """When offsets hold, on the clock of the reference."""

    @property
    def resolution_ns(self) -> int | None:
        """Differences between ranks up to this are not told from none: the larger side of the residual."""
        if self.residual_p5_ns is None or self.residual_p95_ns is None:
            return None
        return max(abs(self.residual_p5_ns), abs(self.residual_p95_ns), _TICK_NS)

    def aligned(self, member: int, time_ns: I64) -> I64:
        """Times of a member's capture on the clock of its component's reference, since `middle_ns`."""
        clock = self.clocks[member]
        since = time_ns + (self.origin_ns[member] - self.middle_ns)
        return since - _ahead(since, clock.offset_ns, (clock.drift_ppm or 0.0) * 1e-6)


def _ahead(time_ns: I64, offset_ns: Any, drift: Any) -> I64:
    """How far a clock that reads this is ahead: where it should read t it reads t + offset + drift * t."""
    ahead: I64 = np.round(offset_ns + drift * (time_ns - offset_ns)).astype(np.int64)
    return ahead


@dataclass(frozen=True, kw_only=True)
class _Solution:
    """By clock."""

    component: I64
    fixed: I64
    """The reference of each component."""
    offset_ns: F64
    drift: F64
    has_drift: Bool
    by_ends: Bool


def align_clocks(matches: Matches, ranks: Sequence[CollectiveCalls]) -> ClockAlignment:
    """Put all ranks on one time. `ranks` are those that the matches were made of."""
    origin = _origins(ranks)
    ends = matched_ends(matches, ranks, origin)
    middle = (int(ends.end_ns.min()) + int(ends.end_ns.max())) // 2 if len(ends.end_ns) else 0
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
        clock = clock_of[ends.member]
        some = ends.thinned(_ENDS_OF_A_GROUP)
        found = _solve(some, clock_of[some.member], has_utc, rank_of)
        start = ends.start_ns - _ahead(ends.start_ns, found.offset_ns[clock], found.drift[clock])
        end = ends.end_ns - _ahead(ends.end_ns, found.offset_ns[clock], found.drift[clock])
        p5, p95 = percentiles(from_the_others(ends, end))
        wrong = violating(ends, start, end, strict)
        if not wrong:
            break
        # What is wrong may have spoilt the rest, so the rest is tried again; but not for ever.
        wrong = wrong if attempt < _ATTEMPTS - 2 else set(ends.group.tolist())
        contradicted |= wrong
        ends = ends.take(~np.isin(ends.group, list(wrong)))

    measured = len(end) > 0
    return ClockAlignment(
        state="measured" if measured else "not_measured",
        reason="" if measured else "no collective was matched that all its ranks leave together",
        remedy="" if measured else matches.remedy,
        clocks=_member_clocks(matches, found, has_utc, ends, bounds(ends, start, end, len(clock_of))),
        residual_p5_ns=p5,
        residual_p95_ns=p95,
        ends=len(end),
        contradicted=frozenset(contradicted),
        origin_ns=tuple(origin),
        middle_ns=middle,
    )


def _origins(ranks: Sequence[CollectiveCalls]) -> list[int]:
    """UTC of each capture's zero; where it is not known, what lets the capture begin with the others."""
    begins = [c.utc_origin_ns + int(c.start_ns[0]) for c in ranks if c.utc_origin_ns is not None and len(c)]
    base = min(begins, default=0)
    return [
        c.utc_origin_ns if c.utc_origin_ns is not None else base - int(c.start_ns[0]) if len(c) else base
        for c in ranks
    ]


def _solve(ends: Ends, clock: I64, has_utc: Bool, rank_of: I64) -> _Solution:
    """Offsets and drifts of all clocks; twice, since a drift needs the time at which a difference was seen,
    which is off by the offsets that the first round finds."""
    clocks = len(has_utc)
    offset, drift = np.zeros(clocks), np.zeros(clocks)
    pairs = pairs_of_clocks(ends, clock, ends.end_ns)
    component, _ = components(offset_edges(pairs, drift, has_utc), clocks)
    fixed = _references(component, rank_of)
    has_drift = np.zeros(clocks, bool)
    for _ in range(2):
        told = drift_edges(pairs)
        drift_component, _ = components(told, clocks)
        # A clock that no drift was measured against stands still with itself only.
        together = np.bincount(drift_component, minlength=clocks)[drift_component] > 1
        has_drift = np.isin(drift_component, drift_component[fixed]) & together
        drift = np.where(has_drift, solve(told, clocks, fixed), 0.0)
        offset += solve(offset_edges(pairs, drift, has_utc), clocks, fixed)
        if np.abs(offset).max(initial=0) <= _SMALL_OFFSET_NS:
            break
        pairs = pairs_of_clocks(ends, clock, ends.end_ns - np.round(offset).astype(np.int64)[clock])
    by_ends = _worth_correcting(ends, clock, component, offset, drift) | _without_utc(component, has_utc)
    return _Solution(
        component=component,
        fixed=fixed,
        offset_ns=np.where(by_ends, np.round(offset), 0.0),
        drift=np.where(by_ends, drift, 0.0),
        has_drift=has_drift,
        by_ends=by_ends,
    )


def _references(component: I64, rank_of: I64) -> I64:
    """The clock of the lowest rank of each component."""
    order = np.argsort(rank_of, kind="stable")
    _, first = np.unique(component[order], return_index=True)
    return order[first]


def _without_utc(component: I64, has_utc: Bool) -> Bool:
    """Clocks of components in which not all are on UTC, so that offsets must come from the ends."""
    lacking = np.bincount(component, ~has_utc, len(component)) > 0
    return lacking[component]


def _worth_correcting(ends: Ends, clock: I64, component: I64, offset: F64, drift: F64) -> Bool:
    """Clocks of components in which the ends of one clock at least lie clearly closer to the others'."""
    raw = from_the_others(ends, ends.end_ns)
    corrected = from_the_others(ends, ends.end_ns - _ahead(ends.end_ns, offset[clock], drift[clock]))
    worth = np.zeros(len(component), bool)
    order = np.argsort(clock, kind="stable")
    present, first = np.unique(clock[order], return_index=True)
    for k, mine in zip(present.tolist(), np.split(order, first[1:]), strict=False):
        before, after = (np.abs(np.percentile(d[mine], PERCENT)).max() for d in (raw, corrected))
        if after < _WORTH_FRAC * before:
            worth[component == component[k]] = True
    return worth


def _member_clocks(
    matches: Matches, found: _Solution, has_utc: Bool, ends: Ends, bound: I64
) -> tuple[MemberClock, ...]:
    clock_of = [m.clock for m in matches.members]
    order = {c: i for i, c in enumerate(dict.fromkeys(found.component[clock_of].tolist()))}
    fixed = set(found.fixed.tolist())
    others = Counter(int(found.component[c]) for c in clock_of)
    clocks = {int(c): len(set(np.flatnonzero(found.component == c).tolist())) for c in order}
    count = np.bincount(ends.member, minlength=len(clock_of))

    def source(clock: int) -> Source:
        component = int(found.component[clock])
        if clocks[component] == 1:
            return "one_clock" if others[component] > 1 else "none"
        return "ends" if found.by_ends[clock] else "utc"

    return tuple(
        MemberClock(
            component=order[int(found.component[c])],
            is_reference=c in fixed,
            source=source(c),
            has_utc=bool(has_utc[c]),
            offset_ns=int(found.offset_ns[c]),
            drift_ppm=float(found.drift[c]) * 1e6 if found.has_drift[c] else None,
            ends=int(count[i]),
            bound_ns=int(bound[i]) if bound[i] < np.iinfo(np.int64).max else None,
        )
        for i, c in enumerate(clock_of)
    )
