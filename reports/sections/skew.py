"""Skew between ranks, stragglers, and clock error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from perfdoc.reports.over_ranks import frac
from perfdoc.reports.sections.section import Grid, Section, count, name, share, time, word
from perfdoc.results import Diagnosis, Rank, figures
from perfdoc.results.names import opening, prose, shorten
from perfdoc.results.waits import LATE_WORDS, SkewAnalysis, waits_by_schedule

_STRAGGLERS = 5
_WAITS = 8
_SPREADS = 5
_LIMITS = 2
_ALL = 0.95
"""Share of communication: with less of it looked at, the sentence says so."""

_SHORT_CAUSES = {
    "waiting": "waiting elsewhere",
    "before": "late begin",
    "gc": "garbage collection",
    "dependency": "stream dependency",
    "launch_latency": "launch latency",
    "other": "no single cause",
}
_SOURCES = {
    "one_clock": "shared by several ranks",
    "ends": "aligned on ends of collectives",
    "bounds": "bounded by the order of messages",
    "utc": "UTC of the captures",
}


def build(diagnosis: Diagnosis) -> Section | None:
    """Nothing of a single rank, or where nothing could be matched."""
    found = diagnosis.analyses.skew
    if found.state != "measured" or not found.waits:
        return None
    grids = (_stragglers(found), _waits(found), _spreads(found))
    return Section(
        key="skew",
        title="Skew and stragglers",
        sentences=[
            *_cost(found, diagnosis.ranks, diagnosis.analyses.pipeline.pp),
            *_last(found),
            *_clocks(found),
        ],
        grids=[grid for grid in grids if grid.rows],
    )


def _cost(found: SkewAnalysis, ranks: Iterable[Rank], stages: int | None) -> Iterator[str]:
    own = sum(row.own_ns for row in found.waits)
    wait = sum(row.wait_ns for row in found.waits)
    if not wait:
        yield f"No skew: all {figures.duration(own)} of matched communication is transfer."
        return
    # Of some collectives only the arrival is known, and some have no partner here.
    whole = sum(row.total_ns for rank in ranks for row in rank.communication)
    partly = " whose transfer is known" if own < _ALL * whole else ""
    scheduled = any(row.wait_ns and waits_by_schedule(row.dimension, stages) for row in found.waits)
    schedule = " and, between stages of a pipeline, for its schedule" if scheduled else ""
    yield (
        f"{figures.share(frac(wait, own))} of communication{partly} is waiting for late ranks{schedule}: "
        f"{figures.duration(wait)} of {figures.duration(own)}, summed over ranks and collectives."
    )


def _collectives(dimension: str) -> str:
    if dimension == "unknown":
        return "collectives of unknown dimension"
    return f"{shorten(dimension, 48)} collectives"


def _last(found: SkewAnalysis) -> Iterator[str]:
    if found.stragglers:
        worst = max(found.stragglers, key=lambda row: row.wait_caused_ns)
        who = opening(shorten(worst.name, 64))
        where = f"{figures.share(worst.recurrence_frac)} of the {_collectives(worst.dimension)}"
        waits, known = figures.duration(worst.wait_caused_ns), figures.duration(worst.resolution_ns)
        if worst.delay_ns != worst.wait_caused_ns:
            waits += f" in sum, {figures.duration(worst.delay_ns)} of wall time"
        yield (
            f"{who} is last in {where} (by chance {figures.share(worst.chance_frac)}); others wait {waits} "
            f"(each arrival within {known}); it {LATE_WORDS[worst.cause]}."
        )
    elif found.stragglers_reason:
        yield f"No straggler: {prose(found.stragglers_reason, 240)}."


def _clocks(found: SkewAnalysis) -> Iterator[str]:
    if found.residual_ns.p5 is not None and found.residual_ns.p95 is not None:
        low, high = figures.duration(found.residual_ns.p5), figures.duration(found.residual_ns.p95)
        sources = dict.fromkeys(_SOURCES[clock.source] for clock in found.clocks if clock.source in _SOURCES)
        by = f"; clocks: {' and '.join(sources)}" if sources else ""
        error = figures.duration(found.resolution_ns)
        yield (
            f"Ends of one collective differ by {low} to {high} (5th to 95th percentile{by}). Skew below "
            f"{error} is within clock error."
        )
    for limit in found.limits[:_LIMITS]:
        yield opening(prose(limit, 240)).removesuffix(".") + "."


def _stragglers(found: SkewAnalysis) -> Grid:
    rows = sorted(found.stragglers, key=lambda row: -row.wait_caused_ns)
    # A single one is in the sentence already.
    rows = rows if len(rows) > 1 else []
    return Grid(
        caption="Ranks that are last more often than by chance",
        head=[
            "rank",
            "dimension",
            "others wait",
            "delay",
            "clock error",
            "last in",
            "by chance",
            "collectives",
            "cause",
        ],
        align="llrrrrrrl",
        rows=[
            [
                name(row.name, 64),
                name(row.dimension, 48),
                time(row.wait_caused_ns),
                time(row.delay_ns),
                time(row.resolution_ns),
                share(row.recurrence_frac),
                share(row.chance_frac),
                count(row.collectives),
                word(_SHORT_CAUSES.get(row.cause, row.cause)),
            ]
            for row in rows[:_STRAGGLERS]
        ],
        left_out=max(0, len(rows) - _STRAGGLERS),
    )


def _waits(found: SkewAnalysis) -> Grid:
    rows = sorted(found.waits, key=lambda row: (-row.wait_ns, row.name))
    return Grid(
        caption="Ranks that wait most",
        head=["rank", "dimension", "collectives", "time", "transfer", "wait", "wait share"],
        align="llrrrrr",
        rows=[
            [
                name(row.name, 64),
                name(row.dimension, 48),
                count(row.collectives),
                time(row.own_ns),
                time(row.transfer_ns),
                time(row.wait_ns),
                share(frac(row.wait_ns, row.own_ns)),
            ]
            for row in rows[:_WAITS]
        ],
        left_out=max(0, len(rows) - _WAITS),
    )


def _spreads(found: SkewAnalysis) -> Grid:
    rows = sorted(found.largest_spreads, key=lambda row: -row.start_spread_ns)
    steps = any(row.step is not None for row in rows)
    return Grid(
        caption="Collectives with the largest skew",
        head=["skew", "transfer", "dimension", "operation", "first", "last", *(["step"] if steps else [])],
        align="rrllll" + ("r" if steps else ""),
        rows=[
            [
                time(row.start_spread_ns),
                time(row.transfer_ns),
                name(row.dimension, 48),
                name(row.operation, 48),
                name(row.first_name, 64),
                name(row.last_name, 64),
                *([count(row.step)] if steps else []),
            ]
            for row in rows[:_SPREADS]
        ],
        left_out=max(0, len(rows) - _SPREADS),
    )
