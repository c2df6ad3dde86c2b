"""What ranks of a pipeline idle: the schedule's bubble, transfers, late peers, and the stage that is slow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from perfdoc.reports.charts.schedule import schedule_picture
from perfdoc.reports.sections.over_ranks import frac
from perfdoc.reports.sections.section import Cell, Grid, Section, name, opening, share, time, word
from perfdoc.results import Diagnosis, PipelineAnalysis, figures
from perfdoc.results.names import prose
from perfdoc.results.waits import PipelineStage

_STAGES = 12
_NOTES = 2


def build(diagnosis: Diagnosis) -> Section | None:
    """Nothing of a job without pipeline parallelism."""
    found = diagnosis.analyses.pipeline
    if found.state != "measured":
        return None
    grids = (_idle(found), _stages(found))
    return Section(
        key="pipeline",
        title="Pipeline",
        sentences=[*_lost(found), *_slowest(found, diagnosis), *_limits(found)],
        grids=[grid for grid in grids if grid.rows],
        draw=partial(schedule_picture, diagnosis),
    )


def _layout(found: PipelineAnalysis) -> str:
    chunks = f" of {found.vpp:,} chunks each" if (found.vpp or 1) > 1 else ""
    return (
        f"{figures.plural(found.pp or 0, 'stage')}{chunks} and "
        f"{figures.plural(found.micro_batches or 0, 'micro-batch', 'micro-batches')}"
    )


def _lost(found: PipelineAnalysis) -> Iterator[str]:
    part = figures.share(frac(found.idle_ns or 0, found.window_ns or 0))
    bubble = "" if found.bubble_frac is None else f"; the bubble here is {figures.share(found.bubble_frac)}"
    yield (
        f"From a step's first pass to its last, ranks of a pipeline wait for one another {part} of the "
        f"time ({figures.duration(found.idle_ns)} over all ranks). A perfect schedule of {_layout(found)} "
        f"leaves {figures.share(found.ideal_bubble_frac)} idle{bubble}."
    )


def _slowest(found: PipelineAnalysis, diagnosis: Diagnosis) -> Iterator[str]:
    if found.slowest_over_mean is None:
        return
    row = next(
        (s for s in found.stages if s.rank == found.slowest_rank and s.stage == found.slowest_stage), None
    )
    more = found.slowest_over_mean - 1
    who = f"stage {found.slowest_stage}" if found.slowest_stage is not None else "one stage"
    does = f", which has the {row.role}" if row is not None and row.role in ("embedding", "loss") else ""
    label = "" if found.slowest_rank is None else f" (rank {found.slowest_rank}{does})"
    said = f"The slowest, {who}{label}, has {figures.share(more)} more to do than the mean of its pipeline"
    if found.imbalance_ns:
        length = figures.duration(found.imbalance_ns)
        said += f"; stages of unequal length make {length} of the waiting for late peers"
    yield said + "."


def _limits(found: PipelineAnalysis) -> Iterator[str]:
    if found.reason:
        yield f"Not measured in part: {prose(found.reason, 240)}."
    if found.uncertainty_ns:
        yield (
            "Clocks may make the idle time of a rank in a step wrong by up to "
            f"{figures.duration(found.uncertainty_ns)}."
        )
    for note in found.notes[:_NOTES]:
        yield opening(prose(note, 240)).removesuffix(".") + "."


def _idle(found: PipelineAnalysis) -> Grid:
    apart = found.scope == "rank"
    parts = (
        ("bubble: what the schedule must leave", "bubble", found.bubble_frac),
        ("transfer of messages", "transfer", found.transfer_frac),
        ("short gaps between compute and messages", "handover", found.handover_frac),
        ("waiting for a late peer", "late_peer", found.late_peer_frac),
    )
    rows = [
        [word(words), share(part), time(sum(getattr(row, f"{key}_ns") for row in found.stages))]
        for words, key, part in parts
        if part is not None and part > 0
    ]
    if apart:
        rest = sum(row.late_peer_ns for row in found.stages)
        rows.append(
            [word("any other waiting for messages"), share(frac(rest, found.window_ns or 0)), time(rest)]
        )
    # A single part is in the sentence already.
    rows = rows if len(rows) > 1 else []
    return Grid(head=["idle of a pipeline", "of its time", "all ranks"], align="lrr", rows=rows)


def _stages(found: PipelineAnalysis) -> Grid:
    """A row per stage, or per rank where a rank's stage is not known."""
    members: dict[tuple[int, str], list[PipelineStage]] = {}
    for row in found.stages:
        key = (row.stage, "") if row.stage is not None else (-1, _who(row))
        members.setdefault(key, []).append(row)
    passes = any(row.forward_ns is not None for row in found.stages)
    late = found.late_peer_frac is not None
    head = ["stage", "ranks", "own work / mean", "idle", *(["late peer"] if late else [])]
    rows = [
        [
            word(stage) if stage >= 0 else name(label, 64),
            _ranks(group),
            Cell(text=_span([f"{row.own_over_mean:.2f}" for row in group if row.own_over_mean is not None])),
            _part(group, "idle_ns"),
            *([_part(group, "late_peer_ns")] if late else []),
            *([_mean(group, "forward_ns"), _mean(group, "backward_ns")] if passes else []),
        ]
        for (stage, label), group in members.items()
    ]
    return Grid(
        caption="By stage; idle and late peer as shares of its time, passes of one micro-batch",
        head=[*head, *(["forward", "backward"] if passes else [])],
        align="llrr" + ("r" if late else "") + ("rr" if passes else ""),
        rows=rows[:_STAGES],
        left_out=max(0, len(rows) - _STAGES),
    )


def _who(row: PipelineStage) -> str:
    return f"rank {row.rank}" if row.rank is not None else row.label


def _ranks(group: Sequence[PipelineStage]) -> Cell:
    """Which, or how many, and what they do besides their layers."""
    known = [row.rank for row in group if row.rank is not None]
    which = (
        ", ".join(f"{rank:,}" for rank in known) if len(known) == len(group) <= 4 else f"{len(group):,} ranks"
    )
    role = group[0].role
    return Cell(text=which + (f", {role}" if role in ("embedding", "loss") else ""))


def _span(texts: Sequence[str]) -> str:
    if not texts:
        return figures.UNKNOWN
    low, high = min(texts, key=float), max(texts, key=float)
    return low if low == high else f"{low} to {high}"


def _part(group: Sequence[PipelineStage], key: str) -> Cell:
    return share(frac(sum(getattr(row, key) for row in group), sum(row.window_ns for row in group)))


def _mean(group: Sequence[PipelineStage], key: str) -> Cell:
    known = [ns for row in group if (ns := getattr(row, key)) is not None]
    return time(round(sum(known) / len(known)) if known else None)
