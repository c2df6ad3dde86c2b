"""Passes that no range names, as the messages of all ranks tell them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.pipeline.known_schedules import Pass
from perfdoc.analyzers.pipeline.layout import Layout
from perfdoc.analyzers.pipeline.operations import RankOperations
from perfdoc.analyzers.pipeline.passes import Passes
from perfdoc.analyzers.pipeline.rank import PipelineRank
from perfdoc.analyzers.pipeline.recorded_schedule import JobSchedule, RankSchedule

SOURCE = "order of the messages"


def with_recorded_passes(
    ranks: Sequence[PipelineRank], operations: Sequence[RankOperations], schedule: JobSchedule
) -> list[PipelineRank]:
    """Ranks with the passes and the pipeline's members that messages tell, where nothing else does."""
    found = []
    for i, rank in enumerate(ranks):
        one = schedule.ranks[i] if schedule.ranks else None
        if one is not None and not rank.group:
            rank = replace(rank, group=schedule.pipelines[one.pipeline], group_source=SOURCE)
        if one is not None and rank.state == "measured" and not len(rank.passes):
            rank = replace(
                rank,
                passes=_passes(rank.step_names, operations[i], one, schedule.micro_batches or 0),
                passes_source=SOURCE,
            )
        found.append(rank)
    return found


def completed(layout: Layout, schedule: JobSchedule) -> Layout:
    """The layout with what else the messages tell, unless they contradict it."""
    told = schedule.pp, schedule.vpp, schedule.micro_batches
    known = layout.pp, layout.vpp, layout.micro_batches
    if schedule.reason or any(k not in (None, t) for k, t in zip(known, told, strict=True)):
        return layout
    sources = dict.fromkeys(layout.missing, SOURCE) | layout.sources
    pp, vpp, micro_batches = told
    return replace(layout, pp=pp, vpp=vpp, micro_batches=micro_batches, sources=sources)


def _passes(
    step_names: Sequence[str], operations: RankOperations, schedule: RankSchedule, count: int
) -> Passes:
    """Of a pass that collectives cut from the first start to the last end. count: micro-batches of a step."""
    bounds: dict[Pass, list[tuple[I64, I64]]] = {}
    for i, passes in schedule.passes.items():
        start, end = operations.start_ns[i], operations.start_ns[i] + operations.duration_ns[i]
        if len(passes) == 1:
            bounds.setdefault(passes[0], []).append((start, end))
        elif len(passes) == 2 and (operations.split_ns[i] >= 0).all():
            cut = start + operations.split_ns[i]
            bounds.setdefault(passes[0], []).append((start, cut))
            bounds.setdefault(passes[1], []).append((cut, end))
    steps = np.array([step_names.index(n) for n in operations.step_names], np.int64)
    begin = np.array([np.min([a for a, _ in b], axis=0) for b in bounds.values()], np.int64).ravel()
    end = np.array([np.max([b for _, b in of], axis=0) for of in bounds.values()], np.int64).ravel()
    order = np.argsort(begin, kind="stable")
    each = np.repeat(np.array(list(bounds), np.int64).reshape(-1, 2), len(steps), axis=0)[order]
    return Passes(
        step=np.tile(steps, len(bounds))[order],
        is_forward=each[:, 0].astype(bool),
        micro_batch=each[:, 1] % max(count, 1),
        start_ns=begin[order],
        end_ns=end[order],
    )
