"""Transfer and wait of every rank, and the stragglers that cause the wait.

Transfer and wait need no common clock; who came last does, so it is given only where the ranks' arrivals lie
further apart than matched ends do after the clocks were aligned (the residual).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from perfdoc.analyzers.base.intervals import exact_sum
from perfdoc.analyzers.clocks.alignment import ClockAlignment, align_clocks
from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.matching.calls import CollectiveCalls
from perfdoc.analyzers.matching.collectives import REMEDY, match_collectives
from perfdoc.analyzers.matching.matches import Matches
from perfdoc.analyzers.skew.arrivals import Arrivals, Lateness, arrivals, lateness
from perfdoc.analyzers.skew.causes import RankTime, compare_ranks
from perfdoc.analyzers.skew.limits import limits_of
from perfdoc.analyzers.skew.stragglers import Latest, find_stragglers
from perfdoc.results.waits import RankClock, RankWait, Residual, SkewAnalysis, Spread
from perfdoc.traces.job_facts import JobFacts

LARGEST_SPREADS = 20


def analyse_skew(ranks: Sequence[CollectiveCalls], facts: JobFacts) -> SkewAnalysis:
    """Match, align and measure. `ranks`: of all captures of one job, in any order."""
    matches = match_collectives(ranks, facts)
    return measure_skew(ranks, matches, align_clocks(matches, ranks))[0]


def measure_skew(
    ranks: Sequence[CollectiveCalls],
    matches: Matches,
    clocks: ClockAlignment,
    spent: Sequence[RankTime] = (),
    pp: int | None = None,
) -> tuple[SkewAnalysis, Latest]:
    """Transfer and wait by rank and dimension, spreads, stragglers; and to which collective each straggler
    came latest. spent: of each rank, to tell why one is late. pp: stages of
    the pipeline; None unknown. Other arguments: see align_clocks."""
    times = arrivals(matches, ranks, clocks)
    late = lateness(matches, times, clocks.group_resolution_ns)
    stragglers = find_stragglers(compare_ranks(ranks, matches, times, clocks, spent), late, pp)
    measured = matches.state == "measured" and bool(times.in_window.any())
    reason, remedy = ("", "") if measured else _why_not(matches, clocks)
    found = SkewAnalysis(
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
        stragglers=stragglers.found,
        stragglers_state=stragglers.state,
        stragglers_reason=stragglers.reason,
        compared=len(late.collective),
        distinguishable=int(late.is_resolved.sum()),
        limits=limits_of(ranks, matches, clocks, times) if measured else [],
        latest=stragglers.late_rank if measured else None,
    )
    return found, stragglers.latest


def _why_not(matches: Matches, clocks: ClockAlignment) -> tuple[str, str]:
    """Reason and remedy where nothing is measured."""
    if matches.state != "measured":
        return matches.reason, matches.remedy
    if set(np.unique(matches.group).tolist()) <= clocks.contradicted:
        reason = "ranks leave collectives before others join, so the matched calls are not of one group"
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
    has_wait = (times.in_window & times.has_durations)[matches.collective]
    member = matches.member[has_wait].astype(np.int64)
    dimension = matches.dimension[matches.collective[has_wait]].astype(np.int64)
    key = member * len(DIMENSIONS) + dimension
    own, wait = times.own_ns[has_wait], times.wait_ns[has_wait]
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
    resolved = late.collective[late.is_resolved]
    spread = times.last_ns[resolved] - times.first_ns[resolved]
    rows = []
    for i in resolved[np.argsort(-spread, kind="stable")[:LARGEST_SPREADS]].tolist():
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
