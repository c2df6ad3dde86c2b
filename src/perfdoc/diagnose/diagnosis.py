"""From the measurements of all captures to the one Diagnosis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from perfdoc import __version__
from perfdoc import results as d
from perfdoc.analyzers.job import JobMeasurement, measure_job
from perfdoc.analyzers.measure import CaptureMeasurement
from perfdoc.analyzers.memory.job import RankMemory, job_memory
from perfdoc.diagnose.contradictions import contradictions, without
from perfdoc.diagnose.job import job_configuration, job_of
from perfdoc.diagnose.measuring import Found
from perfdoc.diagnose.quality import contradiction_notes, quality_of
from perfdoc.diagnose.ranks import host_gaps_of, kernels_of, rank_of, with_headroom
from perfdoc.diagnose.replays import ReplayTopic, replays_of
from perfdoc.diagnose.verdict import contradicted_words, memory_verdict, verdict_of
from perfdoc.knobs.configuration import Configuration
from perfdoc.profiling.environment import encodable
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.registry import run_rules
from perfdoc.traces import NoGpuActivityError
from perfdoc.traces.job_facts import common_facts

_OF_GPUS = frozenset(
    {
        *("kernels", "copies", "graph_nodes", "api_calls", "launch_correlation", "event_edges"),
        *("collective_payloads", "gpu_identity"),
    }
)
"""Capabilities that ask nothing of ranks that train on the CPU."""


def diagnosis_of(found: Found, config: Path | None) -> tuple[d.Diagnosis, Configuration]:
    """The diagnosis of what was measured, and the settings that it goes by.

    config: the file of --config, which goes before run.json.
    """
    facts = common_facts([c.facts for c in found.captures])
    configuration = job_configuration(facts, config)
    return diagnose(found.captures, found.silent, found.memory, configuration), configuration


def diagnose(
    captures: Sequence[CaptureMeasurement],
    silent: Sequence[NoGpuActivityError] = (),
    memory: Sequence[RankMemory] = (),
    configuration: Configuration | None = None,
) -> d.Diagnosis:
    """Tie measurements and rules together.

    captures: each with at least one rank; none where memory alone was looked at. silent: captures that showed
    no GPU activity; they are no ranks, and the quality section says so. memory: by rank. configuration: what
    is known of the job's settings.
    """
    settings = configuration or Configuration()
    given, job = (captures, settings), measure_job(captures)
    contradicted = contradictions(captures, job.facts, settings)
    as_given = job
    if contradicted:
        facts, settings = without(job.facts, settings, contradicted)
        captures = [replace(c, facts=facts) for c in captures]
        job = measure_job(captures)
    measured = [(i, m) for i, capture in enumerate(captures) for m in capture.ranks]
    ranks = [
        rank_of(m, device, i, label)
        for (i, m), device, label in zip(measured, job.devices, job.labels, strict=True)
    ]
    ranks.sort(key=lambda r: (r.rank is None, r.rank or 0))
    of_memory = job_memory(memory)
    remembered = with_headroom(of_memory, ranks)
    replayed = replays_of(captures, ranks, job)
    case = Case(captures=captures, job=job, gains=replayed.gains, memory=of_memory, configuration=settings)
    if contradicted:
        before = replace(case, captures=given[0], job=as_given, configuration=given[1])
        case = replace(case, contradicted=contradicted, as_given=before)
    return d.Diagnosis(
        perfdoc_version=__version__,
        verdict=(verdict_of(ranks) if ranks else memory_verdict(remembered))
        + contradicted_words(contradicted),
        inputs=[
            d.Input(
                path=encodable(str(c.path)),
                sha256=c.sha256,
                format=c.format,
                tool_version=c.tool_version,
                schema=c.schema,
            )
            for c in captures
        ]
        + [
            d.Input(
                path=encodable(str(p)),
                sha256=digest,
                format="memory-snapshot",
                tool_version=None,
                schema=None,
            )
            for m in memory
            for p, digest in m.sha256.items()
        ],
        quality=contradiction_notes(contradicted) + quality_of(captures, silent, ranks, job),
        capabilities=[
            d.CapabilityRow(input=i, name=n, available=x.available, reason=x.reason, remedy=x.remedy)
            for i, c in enumerate(captures)
            for n, x in c.capabilities.items()
            if n not in _OF_GPUS or not all(r.on_host for r in c.ranks)
        ],
        ranks=ranks,
        mfu=job.mfu,
        analyses=_analyses(captures, ranks, job, remembered, replayed),
        rules=run_rules(case),
        combined=replayed.combined,
        timeline=_timeline(job, ranks),
        job=job_of(job, case.configuration, contradicted),
    )


def _timeline(job: JobMeasurement, ranks: Sequence[d.Rank]) -> d.Timeline:
    """Ranks in the order of the others."""
    place = {rank.label: at for at, rank in enumerate(ranks)}
    return replace(job.timeline, ranks=sorted(job.timeline.ranks, key=lambda r: place[r.label]))


def _analyses(
    captures: Sequence[CaptureMeasurement],
    ranks: Sequence[d.Rank],
    job: JobMeasurement,
    memory: d.MemoryAnalysis,
    replayed: ReplayTopic,
) -> d.Analyses:
    return d.Analyses(
        kernels=kernels_of(captures),
        host_gaps=host_gaps_of(ranks),
        replay=replayed.replay,
        step_times=job.step_times,
        host_jitter=job.host_jitter,
        norm_contention=job.contention,
        pipeline=job.pipeline,
        skew=job.skew,
        gains=replayed.gains.analysis,
        memory=memory,
    )
