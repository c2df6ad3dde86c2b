"""The case that rules are asked about: everything measured, predicted and known of the job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial

from perfdoc import results as d
from perfdoc.analyzers.clocks.alignment import align_clocks
from perfdoc.analyzers.device.event_counts import REMEDY
from perfdoc.analyzers.device.frameworks import NOTHING_SHOWN, Program
from perfdoc.analyzers.efficiency.bounds import KernelBounds
from perfdoc.analyzers.job import JobMeasurement, measure_job
from perfdoc.analyzers.matching.collectives import match_collectives
from perfdoc.analyzers.measure import CaptureMeasurement
from perfdoc.analyzers.measure_device import RankMeasurement
from perfdoc.analyzers.memory.job import RankMemory, job_memory
from perfdoc.analyzers.steps.log import read_logged_steps
from perfdoc.diagnose.contradictions import without_contradictions
from perfdoc.diagnose.job import with_shown_degrees
from perfdoc.diagnose.ranks import NO_TRACE, rank_of, with_headroom
from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import Value
from perfdoc.profiling.copies import beside
from perfdoc.records import dataclass
from perfdoc.results.headline import Framework
from perfdoc.results.what_if import WhatIfAnalysis, no_what_if
from perfdoc.rules.engine.case import Case, gather_weights
from perfdoc.rules.engine.job_words import in_words_of
from perfdoc.rules.engine.own_words import under_megatrons_names
from perfdoc.rules.engine.possible import why_left_out
from perfdoc.rules.facts.framework import framework_of_job
from perfdoc.rules.facts.graphs import launching_ns, pausing_ns
from perfdoc.rules.facts.hardware import gpu_of, job_nvlink_domain
from perfdoc.simulator.job.analysis import ModelledJob, TooLarge, model_job
from perfdoc.simulator.job.settings import JobSettings
from perfdoc.simulator.replay.first_steps import cut
from perfdoc.simulator.replay.gains import Gains, WhyNot, no_gains
from perfdoc.simulator.replay.predict import ReplayedSteps, SplitLedger
from perfdoc.simulator.replay.unedited import KeptRank, is_of_first_pipeline, replay
from perfdoc.simulator.replay.whole import WholeReplay, free_lengths, replay_whole

_GIVE = "Give a trace of the run too."
_LEAVE_OUT = "Leave --no-replay out."
_LATER = "Capture later steps, or give the part that counts: --window START,END."
_NOT_RUN = "the windows were not replayed"
_FEW = 16
"""Ranks of which the replay of what they recorded takes less than a copy of this process."""


@dataclass(frozen=True, kw_only=True)
class ReplayTopic:
    """What the diagnosis says of replays."""

    replay: d.ReplayAnalysis
    gains: Gains
    combined: d.Combined | None
    """None where nothing was replayed."""
    modelled: d.JobModelAnalysis = d.NO_JOB_MODEL


def replays_of(
    captures: Sequence[CaptureMeasurement],
    ranks: Sequence[d.Rank],
    job: JobMeasurement,
    why_not: WhyNot,
    too_large: TooLarge,
    framework: Framework = "megatron",
    program: Program = NOTHING_SHOWN,
    *,
    configuration: Configuration,
    messages_overlap: bool | None = None,
    ranks_per_server: Value = None,
) -> ReplayTopic:
    """Join the ranks and predict from them. ranks: the published ones, in the order of the captures. why_not:
    asked of every change whether the job can have it; too_large: of other schedules. framework,
    program, configuration: in whose words changes are named. messages_overlap: whether send/recv between
    stages is set to overlap. None unknown, as ranks_per_server.
    """
    measured = [r for capture in captures for r in capture.ranks]
    if partial := next((r.events.partial for r in measured if r.events.partial), ""):
        gains = no_gains(partial, REMEDY)
        return ReplayTopic(replay=_nothing(partial, REMEDY), gains=gains, combined=gains.combined)
    kept = [
        _named(r.also, device.rank, label, r.bounds)
        for r, device, label in zip(measured, job.devices, job.labels, strict=True)
        if isinstance(r.also, KeptRank)
    ]
    if not measured:
        return ReplayTopic(replay=_nothing(NO_TRACE, _GIVE), gains=no_gains(NO_TRACE, _GIVE), combined=None)
    if not kept or len(kept) < len(measured):
        return ReplayTopic(
            replay=_nothing(_NOT_RUN, _LEAVE_OUT), gains=no_gains(_NOT_RUN, _LEAVE_OUT), combined=None
        )
    kept = _of_the_same_steps(kept, [next((s.name for s in r.window.step_list), "") for r in measured])
    mine = _standing_for_all(kept)
    matches, clocks = job.matches, job.clocks
    if len(mine) < len(kept):
        matches = match_collectives([measured[i].calls for i in mine], job.facts, whole=job.whole)
        clocks = align_clocks(matches, [measured[i].calls for i in mine])
    start_up = next((r.window.runs_once for r in measured if r.window.runs_once), "")
    whole = replay_whole(
        [kept[i] for i in mine],
        [measured[i].calls for i in mine],
        matches,
        clocks,
        [_split(measured[i], kept[i].replay.steps) for i in mine],
        free=free_lengths(read_logged_steps(job.facts.run_directory)),
        stragglers=late_by_compute(job),
        why_not=why_not,
        withheld=no_gains(start_up, _LATER) if start_up else None,
    )
    gains, modelled = whole.gains, d.NO_JOB_MODEL
    if not start_up:
        works = [k.work for k in kept if k.work is not None]
        gpu = gpu_of(next((w.gpu_name for w in works if w.gpu_name), None))
        model = model_job(
            works,
            job.facts,
            messages_overlap=messages_overlap,
            domain=job_nvlink_domain(gpu, ranks_per_server),
            why_not=why_not,
            too_large=too_large,
        )
        gains, modelled = _with_model(gains, model), model.analysis
    sharded = gather_weights(measured) and not any(capture.ddp for capture in captures)
    gains = in_words_of(framework, gains, configuration, program, sharded=sharded)
    return ReplayTopic(replay=_replay(ranks, whole), gains=gains, combined=gains.combined, modelled=modelled)


def _standing_for_all(kept: Sequence[KeptRank]) -> list[int]:
    """Indices of the ranks that are replayed together: all, or of more than can be the first pipeline's."""
    whole = [i for i, k in enumerate(kept) if k.rebuilt is not None]
    failed = any(k.replay.state != "measured" for k in kept)
    return whole if whole and not failed else list(range(len(kept)))


def _of_the_same_steps(kept: Sequence[KeptRank], first: Sequence[str]) -> list[KeptRank]:
    """All with as many steps as the one of which fewest were replayed, where some are not whole windows.
    first: the name of each one's first step; where these differ nothing is predicted of parts."""
    if all(k.replay.window_steps is None for k in kept):
        return list(kept)
    # All, or all of the first pipeline: some windows may be too large where parts of longer ones are not.
    needed = [k for k in kept if is_of_first_pipeline(k)] or kept
    if len(set(first)) > 1 or any(k.rebuilt is None for k in needed):
        return [replace(k, rebuilt=None) for k in kept]
    fewest = min((k.replay.steps for k in kept if k.rebuilt is not None), default=0)
    if not fewest:  # of one that is not made of steps
        return list(kept)
    found = [k if k.rebuilt is None or k.replay.steps == fewest else _cut(k, fewest) for k in kept]
    cannot = any(k.rebuilt is not None and f.rebuilt is None for k, f in zip(kept, found, strict=True))
    return [replace(k, rebuilt=None) for k in kept] if cannot else found


def _cut(kept: KeptRank, steps: int) -> KeptRank:
    assert kept.rebuilt is not None
    rebuilt = cut(kept.rebuilt, steps)
    if rebuilt is None:
        return replace(kept, rebuilt=None)
    of = kept.replay.window_steps or kept.replay.steps
    return replace(kept, rebuilt=rebuilt, replay=replace(replay(rebuilt), window_steps=of))


def _with_model(gains: Gains, model: ModelledJob) -> Gains:
    """The predictions of the replay, and of the job's model, which lays out other schedules."""
    merged = [*gains.predictions, *model.predictions]
    if gains.analysis.state != "measured" and merged:
        analysis = replace(gains.analysis, state="measured", reason="", remedy="", predictions=merged)
    else:
        analysis = replace(gains.analysis, predictions=merged)
    return replace(gains, analysis=analysis)


def _split(rank: RankMeasurement, steps: int) -> SplitLedger:
    """The ledger, with what of idle.host launching is not to blame for, and so many steps of it replayed."""
    part = None
    if 0 < steps < rank.window.steps:
        held = {leaf: int(ns[:steps].sum()) for leaf, ns in rank.step_ledgers.leaf_ns.items()}
        part = ReplayedSteps(steps=steps, of=rank.window.steps, by_leaf=held)
    other = rank.ledger.idle.host - launching_ns(rank)
    pausing = min(pausing_ns(rank), other)
    own = vars(rank.ledger)
    return SplitLedger(**own, host_pausing_ns=pausing, host_elsewhere_ns=other - pausing, replayed=part)


def late_by_compute(job: JobMeasurement) -> list[tuple[str, str]]:
    """Ranks that are late because they compute longer, which is what the replay takes away: not because of
    their host, nor because they waited for others, nor by the order in which stages of a pipeline end, which
    groups of unknown dimension may join."""
    pipeline = (job.stages or 1) > 1
    return [
        (s.name, s.dimension)
        for s in job.skew.stragglers
        if s.cause == "compute" and not (pipeline and s.dimension == "unknown")
    ]


def _named(kept: KeptRank, rank: int | None, label: str, bounds: KernelBounds | None) -> KeptRank:
    """With its rank as all captures together tell it, and what is known of its kernels' bounds."""
    if kept.work is not None:
        kept = replace(kept, work=replace(kept.work, rank=rank))
    if kept.rebuilt is None:
        return kept
    frames = tuple(replace(frame, rank=rank, name=label, bounds=bounds) for frame in kept.rebuilt.ranks)
    return replace(kept, rebuilt=replace(kept.rebuilt, ranks=frames))


def _replay(ranks: Sequence[d.Rank], whole: WholeReplay) -> d.ReplayAnalysis:
    """Of the job; where there is none the error that is largest either way, and critical paths summed."""
    job = whole.job
    replays = [r.replay for r in ranks if r.replay is not None]
    measured = [r for r in replays if r.state == "measured" and r.error_frac is not None]
    if job is not None and job.state == "measured":
        worst, path = job.worst_error_frac, job.critical_path
    elif measured:
        worst = max((r.error_frac or 0.0 for r in measured), key=abs)
        summed: Counter[str] = Counter()
        for replay in measured:
            summed.update(replay.critical_path)
        path = dict(summed.most_common())
    else:
        return _nothing(replays[0].reason, replays[0].remedy)
    return d.ReplayAnalysis(
        state="measured", reason="", remedy="", error_frac=worst, critical_path=path, job=job
    )


def _nothing(reason: str, remedy: str) -> d.ReplayAnalysis:
    return d.ReplayAnalysis(
        state="not_measured", reason=reason, remedy=remedy, error_frac=None, critical_path={}, job=None
    )


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
    captured = [
        replace(m.memory, path=str(captures[i].path), rank=device.rank)
        for (i, m), device in zip(measured, job.devices, strict=True)
        if m.memory is not None
    ]
    remembered = with_headroom(job_memory(memory, captured), ranks)
    case = Case(
        captures=captures,
        job=job,
        gains=no_gains("not replayed yet", ""),
        memory=remembered,
        configuration=configuration,
    )
    known, overlap = case.setting("overlap_p2p_comm")
    with beside(partial(_what_if, job, [m for _, m in measured]), worth=len(ranks) > _FEW) as study:
        studied = cache(lambda: replace(case, what_if=study()))  # what follows asks for it last
        replayed = replays_of(
            captures,
            ranks,
            job,
            lambda key, ways: why_left_out(studied(), key, ways),
            partial(_too_large, case, remembered),
            case.framework,
            case.program,
            configuration=configuration,
            messages_overlap=overlap is True if known else None,
            ranks_per_server=case.setting("nproc_per_node")[1],
        )
        case = replace(studied(), gains=replayed.gains)
    if contradicted:
        given_captures, given_job, given = as_given
        before = replace(case, captures=given_captures, job=given_job, configuration=given)
        case = replace(case, contradicted=contradicted, as_given=before)
    return WholeCase(case=case, ranks=ranks, replayed=replayed, memory=remembered)


def _too_large(case: Case, measured: d.MemoryAnalysis, now: JobSettings) -> Callable[[JobSettings], str]:
    """What `perfdoc tune` says of the memory of other settings."""
    from perfdoc.diagnose.job_memory import memory_of

    job = case.job
    memory = memory_of(now, job.facts, case.configuration, devices=job.devices, measured=measured)
    return lambda then: memory.against(memory.need_bytes(then))


def _what_if(job: JobMeasurement, measured: Sequence[RankMeasurement]) -> WhatIfAnalysis:
    """The replay of what all ranks recorded."""
    why_not = next((w for r in measured if (w := r.withheld)), "")
    if why_not:
        return no_what_if(why_not)
    if len(measured) < 2:
        return no_what_if("one rank has no peers", "Give the captures of several ranks.")
    from perfdoc.simulator.recorded.what_if import what_if

    numbers = [device.rank for device in job.devices]
    operations = [replace(r.operations, label=label) for r, label in zip(measured, job.labels, strict=True)]
    return what_if(operations, job.schedule, job.matches, numbers, job.world_size)


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
