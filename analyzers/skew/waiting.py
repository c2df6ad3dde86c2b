"""Transfer and wait of every rank, and the stragglers that cause the wait.

Transfer and wait need no common clock; who came last does, so it is given only where the ranks' arrivals lie
further apart than matched ends do after the clocks were aligned (the residual).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from perfdoc.analyzers.base.intervals import exact_sum
from perfdoc.analyzers.clocks.alignment import ClockAlignment
from perfdoc.analyzers.communication.calls import CollectiveCalls
from perfdoc.analyzers.communication.matches import Matches
from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.matching.collectives import REMEDY
from perfdoc.analyzers.skew.arrivals import Arrivals, Lateness, arrivals, lateness
from perfdoc.analyzers.skew.causes import RankTime
from perfdoc.analyzers.skew.stragglers import Latest, find_stragglers
from perfdoc.results.figures import duration
from perfdoc.results.names import listed
from perfdoc.results.waits import RankClock, RankWait, Residual, SkewAnalysis, Spread
from perfdoc.traces.table import unique

LARGEST_SPREADS = 20


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
    stragglers = find_stragglers(matches, times, late, spent, pp)
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
        limits=_find_limits(ranks, matches, clocks, times) if measured else [],
        latest=next(iter(stragglers.late_ranks), None) if measured else None,
        also_late=stragglers.late_ranks[1:] if measured else [],
    )
    return found, stragglers.latest


def _why_not(matches: Matches, clocks: ClockAlignment) -> tuple[str, str]:
    """Reason and remedy where nothing is measured."""
    if matches.state != "measured":
        return matches.reason, matches.remedy
    if set(unique(matches.group).tolist()) <= clocks.contradicted:
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
                transfer_ns=int(times.transfer_ns[i]) if times.has_durations[i] else None,
                first_rank=first.rank,
                first_name=first.name,
                last_rank=last.rank,
                last_name=last.name,
                step=int(times.step[i]) if times.step[i] >= 0 else None,
            )
        )
    return rows


_REASONS = 5
"""Reasons for what was not matched; more would not be read."""


def _find_limits(
    ranks: Sequence[CollectiveCalls], matches: Matches, clocks: ClockAlignment, times: Arrivals
) -> list[str]:
    """What the comparison does not cover, each a sentence of its own; empty where everything was compared."""
    return [
        *_missing_ranks(matches),
        *_apart(clocks),
        *_bounded(matches, clocks),
        *_contradicted(matches, clocks),
        *_not_matched(matches),
        *_partial(matches, times),
        *_without_end(matches, times),
        *_unnumbered(ranks, matches),
    ]


def _missing_ranks(matches: Matches) -> list[str]:
    """A group's ranks that are not here may be the ones that all others wait for."""
    called = set(unique(matches.group).tolist())
    lacking = [g for i, g in enumerate(matches.groups) if i in called and g.missing]
    if not lacking:
        return []
    return [
        f"Ranks are missing in {len(lacking):,} groups (up to {max(g.missing for g in lacking):,}): if "
        "one of those is last, no straggler is named and its delay counts as transfer."
    ]


def _bounded(matches: Matches, clocks: ClockAlignment) -> list[str]:
    """Clocks that ends do not tie."""
    loose = [i for i, c in enumerate(clocks.clocks) if c.source == "bounds"]
    if not loose:
        return []
    names = listed([matches.members[i].name for i in loose], _REASONS)
    worst = max(clocks.clocks[i].resolution_ns or 0 for i in loose)
    return [
        f"The clocks of {names} share too few ends with the others': they are "
        f"bounded by the order of messages, with a clock error of up to {duration(worst)}."
    ]


def _apart(clocks: ClockAlignment) -> list[str]:
    components = Counter(c.component for c in clocks.clocks)
    if len(components) < 2:
        return []
    alone = sum(members == 1 for members in components.values())
    what = f"; {alone:,} ranks share none with any other" if alone else ""
    return [
        f"The ranks fall into {len(components):,} sets that no matched collective and no two-way messages "
        f"connect; they are not compared across{what}."
    ]


def _contradicted(matches: Matches, clocks: ClockAlignment) -> list[str]:
    names = [matches.groups[g].label for g in sorted(clocks.contradicted)]
    if not names:
        return []
    return [
        f"Left out: ranks leave before others join, so the calls are not of one group: "
        f"{', '.join(names[:_REASONS])}{' and others' if len(names) > _REASONS else ''}."
    ]


def _not_matched(matches: Matches) -> list[str]:
    missing = matches.rows_total - len(matches.row)
    if not missing:
        return []
    reasons = [f"{g.label}: {g.reason}" for g in matches.groups if g.reason]
    text = f"{missing:,} of {matches.rows_total:,} communications have no partner in another rank"
    listed = "; ".join(reasons[:_REASONS])
    more = f"; and {len(reasons) - _REASONS:,} more groups" if len(reasons) > _REASONS else ""
    return [f"{text}{': ' if reasons else ''}{listed}{more}."]


def _partial(matches: Matches, times: Arrivals) -> list[str]:
    count = int((times.in_window & ~matches.is_complete).sum())
    if not count:
        return []
    return [
        f"{count:,} collectives are not in the captures of all given ranks of their group, since captures "
        "begin and end at different times: they are left out."
    ]


def _without_end(matches: Matches, times: Arrivals) -> list[str]:
    """On a CPU; everything else that is complete has durations."""
    count = int((times.in_window & matches.is_complete & ~times.has_durations).sum())
    if not count:
        return []
    return [
        f"Of {count:,} collectives on the CPU (reduce-scatter, send, receive) only the end of the wait is "
        "known, not the completion: they count in no transfer and no wait."
    ]


def _unnumbered(ranks: Sequence[CollectiveCalls], matches: Matches) -> list[str]:
    count = sum(m.rank is None for m in matches.members)
    if not count:
        return []
    return [f"{count:,} of {len(ranks):,} captures do not name their rank: they are named by device."]
