"""Waiting for one another: transfer and wait of every rank, and who is waited for.

Transfer and wait need no common clock; who came last does, so it is told only where the ranks' arrivals lie
further apart than matched ends do after the clocks were aligned (the residual).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from perfdoc.analyzers.base.intervals import exact_sum
from perfdoc.analyzers.clocks.alignment import ClockAlignment, align_clocks
from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.matching.calls import CollectiveCalls
from perfdoc.analyzers.matching.collectives import REMEDY, match_collectives
from perfdoc.analyzers.matching.matches import Matches
from perfdoc.analyzers.skew.arrivals import Arrivals, Lateness, arrivals, lateness
from perfdoc.analyzers.skew.limits import limits_of
from perfdoc.analyzers.skew.stragglers import Straggler, find_stragglers
from perfdoc.traces.job_facts import JobFacts

LARGEST_SPREADS = 20


@dataclass(frozen=True, kw_only=True)
class Residual:
    """By what ends of one collective still differ when the clocks are aligned."""

    p5: int | None
    """ns; 5th percentile of an end minus the mean of the collective's other ends."""
    p95: int | None


@dataclass(frozen=True, kw_only=True)
class RankClock:
    """One rank's clock."""

    rank: int | None
    name: str
    """`rank 3`; the device and its capture where the captures do not number the ranks."""
    rank_evidence: str
    component: int
    """Ranks of one component were compared with each other; of different ones nothing is said."""
    source: Literal["one_clock", "ends", "bounds", "utc", "none"]
    """one_clock: in one capture with the reference. ends: aligned through matched ends. bounds: those are too
    few, so it was placed within what is left by what cannot have come before what (`resolution_ns`). utc: the
    captures' UTC epochs as they are, which the ends agree with. none: nothing to compare with."""
    offset_ns: int | None
    """How far its clock was ahead of that of the component's reference; None where a UTC epoch is missing."""
    drift_ppm: float | None
    """How much faster it runs, millionths; None where the matches do not cover enough time."""
    resolution_ns: int | None
    """Differences to the reference up to this are not told from none; None where nothing was compared."""
    bound_ns: int | None
    """An offset could not be wrong by more: a rank would have left a collective before another came."""


@dataclass(frozen=True, kw_only=True)
class RankWait:
    """Communication of one rank in one dimension inside the window, as far as it could be matched.

    Sums over collectives; they overlap in time where the rank runs several at once.
    """

    rank: int | None
    name: str
    dimension: str
    collectives: int
    own_ns: int
    transfer_ns: int
    """Shortest duration of each collective over its ranks. An upper bound where a rank of the group is not
    here: if that one is late, all others wait."""
    wait_ns: int
    """own - transfer."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """One collective to which its ranks came far apart."""

    dimension: str
    operation: str
    group: str
    ranks: int
    start_spread_ns: int
    end_spread_ns: int
    transfer_ns: int | None
    """None where its completion is not known exactly."""
    first_rank: int | None
    first_name: str
    last_rank: int | None
    last_name: str
    step: int | None


@dataclass(frozen=True, kw_only=True)
class Skew:
    """What ranks wait for each other."""

    state: Literal["measured", "not_measured"]
    reason: str
    remedy: str
    residual_ns: Residual
    resolution_ns: int | None
    """Differences up to it are not told from none: the larger side of the residual, 1 µs at least, or what is
    left open of clocks that ends do not tie, if that is more."""
    clocks: list[RankClock]
    communications: int
    """Communications of all ranks, over the whole captures."""
    matched: int
    """Of them, those with a partner."""
    matched_by: dict[str, int]
    """Matched ones by how: `sequence`, `order`, `step`, `world_order`."""
    waits: list[RankWait]
    """Most waiting first."""
    largest_spreads: list[Spread]
    """Only those over the resolution."""
    stragglers: list[Straggler]
    """Who is waited for again and again; most first."""
    stragglers_state: Literal["found", "none", "not_distinguishable", "not_compared"]
    stragglers_reason: str
    """What was compared, and why the list is empty where it is."""
    compared: int
    """Collectives of which the order of arrival was looked at."""
    distinguishable: int
    """Of them, those whose ranks came further apart than the resolution."""
    limits: list[str]
    """What these figures do not cover."""


def analyse_skew(ranks: Sequence[CollectiveCalls], facts: JobFacts) -> Skew:
    """Match, align and measure. `ranks`: of all captures of one job, in any order."""
    matches = match_collectives(ranks, facts)
    return measure_skew(ranks, matches, align_clocks(matches, ranks))


def measure_skew(ranks: Sequence[CollectiveCalls], matches: Matches, clocks: ClockAlignment) -> Skew:
    """Transfer and wait by rank and dimension, spreads, stragglers. Arguments: see align_clocks."""
    times = arrivals(matches, ranks, clocks)
    late = lateness(matches, times, clocks.group_resolution_ns)
    stragglers, state, answer = find_stragglers(ranks, matches, times, late)
    measured = matches.state == "measured" and bool(times.in_window.any())
    reason, remedy = ("", "") if measured else _why_not(matches, clocks)
    return Skew(
        state="measured" if measured else "not_measured",
        reason=reason,
        remedy=remedy,
        residual_ns=Residual(p5=clocks.residual_p5_ns, p95=clocks.residual_p95_ns),
        resolution_ns=clocks.resolution_ns,
        clocks=_clocks(matches, clocks),
        communications=matches.rows_total,
        matched=len(matches.row),
        matched_by=_matched_by(matches),
        waits=_waits(matches, times),
        largest_spreads=_largest_spreads(matches, times, late),
        stragglers=stragglers,
        stragglers_state=state,
        stragglers_reason=answer,
        compared=len(late.collective),
        distinguishable=int(late.is_told.sum()),
        limits=limits_of(ranks, matches, clocks, times) if measured else [],
    )


def _why_not(matches: Matches, clocks: ClockAlignment) -> tuple[str, str]:
    """Reason and remedy where nothing is measured."""
    if matches.state != "measured":
        return matches.reason, matches.remedy
    if set(np.unique(matches.group).tolist()) <= clocks.contradicted:
        reason = "ranks leave collectives before others come, so what was matched is not of one group"
        return reason, REMEDY
    return "no matched collective lies inside the windows of its ranks", "Choose a window that they share."


def _clocks(matches: Matches, clocks: ClockAlignment) -> list[RankClock]:
    with_utc = {c.component for c in clocks.clocks if c.is_reference and c.has_utc}
    return [
        RankClock(
            rank=m.rank,
            name=m.name,
            rank_evidence=m.rank_evidence,
            component=c.component,
            source=c.source,
            offset_ns=c.offset_ns if c.has_utc and c.component in with_utc else None,
            drift_ppm=c.drift_ppm,
            resolution_ns=c.resolution_ns,
            bound_ns=c.bound_ns,
        )
        for m, c in zip(matches.members, clocks.clocks, strict=True)
    ]


def _matched_by(matches: Matches) -> dict[str, int]:
    found: Counter[str] = Counter()
    rows = np.bincount(matches.group, matches.count, len(matches.groups)).astype(np.int64)
    for group, count in zip(matches.groups, rows.tolist(), strict=True):
        if group.matched_by is not None and count:
            found[group.matched_by] += count
    return dict(sorted(found.items()))


def _waits(matches: Matches, times: Arrivals) -> list[RankWait]:
    told = (times.in_window & times.has_durations)[matches.collective]
    member = matches.member[told].astype(np.int64)
    dimension = matches.dimension[matches.collective[told]].astype(np.int64)
    key = member * len(DIMENSIONS) + dimension
    own, wait = times.own_ns[told], times.wait_ns[told]
    order = np.argsort(key, kind="stable")
    present, first = np.unique(key[order], return_index=True)
    rows = []
    for k, mine in zip(present.tolist(), np.split(order, first[1:]), strict=False):
        who = matches.members[k // len(DIMENSIONS)]
        own_ns, wait_ns = exact_sum(own[mine]), exact_sum(wait[mine])
        rows.append(
            RankWait(
                rank=who.rank,
                name=who.name,
                dimension=DIMENSIONS[k % len(DIMENSIONS)],
                collectives=len(mine),
                own_ns=own_ns,
                transfer_ns=own_ns - wait_ns,
                wait_ns=wait_ns,
            )
        )
    return sorted(rows, key=lambda r: (-r.wait_ns, r.rank is None, r.rank or 0, r.name, r.dimension))


def _largest_spreads(matches: Matches, times: Arrivals, late: Lateness) -> list[Spread]:
    told = late.collective[late.is_told]
    spread = times.last_ns[told] - times.first_ns[told]
    rows = []
    for i in told[np.argsort(-spread, kind="stable")[:LARGEST_SPREADS]].tolist():
        mine = slice(int(matches.first[i]), int(matches.first[i + 1]))
        start = times.start_ns[mine]
        came = matches.member[mine][np.argsort(start, kind="stable")]
        first, last = matches.members[came[0]], matches.members[came[-1]]
        rows.append(
            Spread(
                dimension=DIMENSIONS[matches.dimension[i]],
                operation=matches.operations[matches.operation[i]],
                group=matches.groups[matches.group[i]].label,
                ranks=len(start),
                start_spread_ns=int(times.last_ns[i] - times.first_ns[i]),
                end_spread_ns=int(times.end_spread_ns[i]),
                transfer_ns=int(times.transfer_ns[i]) if times.has_durations[i] else None,
                first_rank=first.rank,
                first_name=first.name,
                last_rank=last.rank,
                last_name=last.name,
                step=int(times.step[i]) if times.step[i] >= 0 else None,
            )
        )
    return rows
