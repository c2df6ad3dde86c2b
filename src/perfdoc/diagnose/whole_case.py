"""The case that rules are asked about: everything measured, predicted and known of the job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from perfdoc import results as d
from perfdoc.analyzers.job import JobMeasurement, measure_job
from perfdoc.analyzers.measure import CaptureMeasurement
from perfdoc.analyzers.measure_device import RankMeasurement
from perfdoc.analyzers.memory.snapshot import RankMemory, job_memory
from perfdoc.diagnose.contradictions import without_contradictions
from perfdoc.diagnose.job import with_shown_degrees
from perfdoc.diagnose.ranks import rank_of, with_headroom
from perfdoc.diagnose.replays import ReplayTopic, replays_of
from perfdoc.knobs.configuration import Configuration
from perfdoc.records import dataclass
from perfdoc.results.what_if import WhatIfAnalysis, no_what_if
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.own_words import under_megatrons_names
from perfdoc.rules.engine.possible import why_left_out
from perfdoc.rules.facts.framework import framework_of_job
from perfdoc.simulator.recorded.what_if import what_if
from perfdoc.simulator.replay.gains import no_gains


@dataclass(frozen=True, kw_only=True)
class WholeCase:
    """A case, and what of it is published as it is."""

    case: Case
    ranks: list[d.Rank]
    """In the order of the captures."""
    replayed: ReplayTopic
    memory: d.MemoryAnalysis


def whole_case(
    captures: Sequence[CaptureMeasurement],
    memory: Sequence[RankMemory],
    configuration: Configuration,
    *,
    whole: bool = True,
) -> WholeCase:
    """Match the ranks, replay them, and predict what this configuration can have.

    Settings that contradict the captures count as unknown. whole: False where captures were left out: where
    nothing says how many ranks the job has, those at hand are not all of them.
    """
    job = _of_all_ranks(measure_job(captures, whole=whole))
    configuration = under_megatrons_names(framework_of_job(captures, configuration), configuration)
    as_given = (captures, job, configuration)
    settled = without_contradictions(captures, job, configuration)
    captures, job, configuration = settled.captures, _of_all_ranks(settled.job), settled.configuration
    configuration = with_shown_degrees(configuration, job.facts)
    contradicted = settled.contradicted
    measured = [(i, m) for i, capture in enumerate(captures) for m in capture.ranks]
    ranks = [
        rank_of(m, device, i, label)
        for (i, m), device, label in zip(measured, job.devices, job.labels, strict=True)
    ]
    remembered = with_headroom(job_memory(memory), ranks)
    case = Case(
        captures=captures,
        job=job,
        gains=no_gains("not replayed yet", ""),
        memory=remembered,
        configuration=configuration,
        what_if=_what_if(job, [m for _, m in measured]),
    )
    known, overlap = case.setting("overlap_p2p_comm")
    replayed = replays_of(
        captures,
        ranks,
        job,
        partial(why_left_out, case),
        case.framework,
        case.program,
        configuration=configuration,
        messages_overlap=overlap is True if known else None,
        ranks_per_server=case.setting("nproc_per_node")[1],
    )
    case = replace(case, gains=replayed.gains)
    if contradicted:
        given_captures, given_job, given = as_given
        before = replace(case, captures=given_captures, job=given_job, configuration=given)
        case = replace(case, contradicted=contradicted, as_given=before)
    return WholeCase(case=case, ranks=ranks, replayed=replayed, memory=remembered)


def _what_if(job: JobMeasurement, measured: Sequence[RankMeasurement]) -> WhatIfAnalysis:
    """The replay of what all ranks recorded."""
    why_not = next((w for r in measured if (w := r.withheld)), "")
    if why_not:
        return no_what_if(why_not)
    numbers = [device.rank for device in job.devices]
    return what_if([r.operations for r in measured], job.schedule, job.matches, numbers, job.world_size)


def _of_all_ranks(job: JobMeasurement) -> JobMeasurement:
    """Without MFU where the ranks at hand were counted as the job's and are not all of them."""
    if job.whole or job.world_size is not None or job.mfu.gpus is None:
        return job
    mfu = replace(
        job.mfu,
        value=None,
        reason="a capture was left out, and nothing says how many GPUs the job has",
        remedy="Give it: --set world_size=64.",
        gpus=None,
        gpus_source="",
        waterfall=[],
    )
    return replace(job, mfu=mfu)
