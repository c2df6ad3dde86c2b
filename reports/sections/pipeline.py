"""Pipeline idle time: bubble, transfers, late peers, the slowest stage; and the model of the whole job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

from perfdoc.reports.over_ranks import frac, windows_ns
from perfdoc.reports.sections.section import Cell, Grid, Section, name, share, time, word
from perfdoc.results import Diagnosis, JobModelAnalysis, figures
from perfdoc.results.bubble import exposed_bubble_ns
from perfdoc.results.names import opening, prose
from perfdoc.results.waits import PipelineAnalysis, PipelineStage

_STAGES = 12
_NOTES = 2


def build(diagnosis: Diagnosis) -> Section | None:
    """Nothing of a job without pipeline parallelism."""
    found = diagnosis.analyses.pipeline
    if found.state != "measured":
        return None
    from perfdoc.reports.charts.schedule import schedule_picture

    grids = (_idle(found), _stages(found))
    return Section(
        key="pipeline",
        title="Pipeline",
        sentences=[*_lost(found, diagnosis), *_slowest(found, diagnosis), *_limits(found)],
        grids=[grid for grid in grids if grid.rows],
        draw=partial(schedule_picture, diagnosis),
    )


def _layout(found: PipelineAnalysis) -> str:
    chunks = f" of {found.vpp:,} chunks each" if (found.vpp or 1) > 1 else ""
    return (
        f"{figures.plural(found.pp or 0, 'stage')}{chunks} and "
        f"{figures.plural(found.micro_batches or 0, 'micro-batch', 'micro-batches')}"
    )


def _lost(found: PipelineAnalysis, diagnosis: Diagnosis) -> Iterator[str]:
    part = figures.share(frac(found.idle_ns or 0, found.window_ns or 0))
    bubble = "" if found.bubble_frac is None else f"; here it is {figures.share(found.bubble_frac)}"
    ledgers = figures.share(frac(exposed_bubble_ns(found, diagnosis.ranks), windows_ns(diagnosis.ranks)))
    if bubble and not bubble.endswith(f" {ledgers}"):
        bubble += f", waits in collectives included; without them {ledgers} of the windows (ledger)"
    yield (
        f"Pipeline idle: {part} of the time from a step's first pass to its last "
        f"({figures.duration(found.idle_ns)} over all ranks). The ideal bubble of {_layout(found)} is "
        f"{figures.share(found.ideal_bubble_frac)}{bubble}."
    )


def _slowest(found: PipelineAnalysis, diagnosis: Diagnosis) -> Iterator[str]:
    if found.slowest_over_mean is None:
        return
    row = next(
        (s for s in found.stages if s.rank == found.slowest_rank and s.stage == found.slowest_stage), None
    )
    more = found.slowest_over_mean - 1
    who = f"stage {found.slowest_stage}" if found.slowest_stage is not None else "one stage"
    does = f", with the {row.role}" if row is not None and row.role in ("embedding", "loss") else ""
    label = "" if found.slowest_rank is None else f" (rank {found.slowest_rank}{does})"
    said = f"Slowest: {who}{label}, {figures.share(more)} more work than the mean of its pipeline"
    if found.imbalance_ns:
        length = figures.duration(found.imbalance_ns)
        said += f"; unequal stages cause {length} of the waiting for late peers"
    yield said + "."


def _limits(found: PipelineAnalysis) -> Iterator[str]:
    if found.reason:
        yield f"Partly measured: {prose(found.reason, 240)}."
    if found.uncertainty_ns:
        yield (
            f"Clock error: up to {figures.duration(found.uncertainty_ns)} of a rank's idle time in a step."
        )
    for note in found.notes[:_NOTES]:
        yield opening(prose(note, 240)).removesuffix(".") + "."


def _idle(found: PipelineAnalysis) -> Grid:
    apart = found.scope == "rank"
    parts = (
        ("bubble of the schedule", "bubble", found.bubble_frac),
        ("send/recv transfer", "transfer", found.transfer_frac),
        ("short gaps between compute and send/recv", "handover", found.handover_frac),
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
            [word("other waiting for send/recv"), share(frac(rest, found.window_ns or 0)), time(rest)]
        )
    # A single part is in the sentence already.
    rows = rows if len(rows) > 1 else []
    return Grid(head=["pipeline idle time", "share", "all ranks"], align="lrr", rows=rows)


def _stages(found: PipelineAnalysis) -> Grid:
    """A row per stage, or per rank if stages are unknown."""
    members: dict[tuple[int, str], list[PipelineStage]] = {}
    for row in found.stages:
        who = f"rank {row.rank}" if row.rank is not None else row.label
        key = (row.stage, "") if row.stage is not None else (-1, who)
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
        caption="By stage: idle and late peer as shares of its time, passes of one micro-batch",
        head=[*head, *(["forward", "backward"] if passes else [])],
        align="llrr" + ("r" if late else "") + ("rr" if passes else ""),
        rows=rows[:_STAGES],
        left_out=max(0, len(rows) - _STAGES),
    )


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


_STAGES_MOST = 32
_RANKS_MOST = 3


def build_model(diagnosis: Diagnosis) -> Section | None:
    """The stages of a job with a pipeline; None without."""
    found = diagnosis.analyses.job_model
    if found.state != "measured" or len(found.stages) < 2:
        return None
    rows = [
        [
            word(stage.stage),
            word("—" if stage.layers is None else stage.layers),
            time(stage.forward_ns),
            time(stage.backward_ns),
            word(stage.origin),
            word(_listed(stage.ranks)),
            share(stage.spread_frac if len(stage.ranks) > 1 else None),
        ]
        for stage in found.stages
    ]
    return Section(
        key="job-model",
        title="Model of the whole job",
        sentences=list(_model_words(found)),
        grids=[
            Grid(
                caption="A micro-batch on each stage",
                head=["stage", "layers", "forward", "backward", "from", "ranks", "spread"],
                align="rrrrllr",
                rows=rows[:_STAGES_MOST],
                left_out=max(len(rows) - _STAGES_MOST, 0),
            )
        ],
    )


def _model_words(found: JobModelAnalysis) -> Iterator[str]:
    off = figures.signed_share(abs(found.error_frac or 0.0), 2).removeprefix("+")
    counts = Counter(stage.origin for stage in found.stages)
    parts = [f"{n} {origin}" for origin in ("captured", "folded", "composed") if (n := counts[origin])]
    stages = f"{figures.plural(len(found.stages), 'stage')}: {', '.join(parts)}"
    yield f"{stages}. The modelled step is within {off} of the measured step."
    if found.stages[-1].origin == "composed":
        over = found.output_over_flops
        flops = "" if over is None else f", {over:.2f} times what its FLOPs take at the captured GEMM rate"
        yield (
            f"The output layer of stage {found.stages[-1].stage} follows from the waits of the captured "
            f"stage{flops}; the error is near 0 by construction."
        )
    if found.message_ns is not None:
        yield f"A message between stages takes {figures.duration(found.message_ns)}."
    yield from found.notes


def _listed(ranks: Sequence[int]) -> str:
    if not ranks:
        return "—"
    shown = ", ".join(map(str, ranks[:_RANKS_MOST]))
    return shown if len(ranks) <= _RANKS_MOST else f"{shown} … {ranks[-1]} ({len(ranks)})"
