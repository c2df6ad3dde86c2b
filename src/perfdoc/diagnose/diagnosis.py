"""From the measurements of all captures to the one Diagnosis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from perfdoc import results as d
from perfdoc.analyzers.job import JobMeasurement
from perfdoc.analyzers.measure import CaptureMeasurement
from perfdoc.analyzers.memory.job import RankMemory
from perfdoc.diagnose.account import (
    account_of,
    contradicted_words,
    mostly_words,
    unknown_class_words,
    waiting_words,
)
from perfdoc.diagnose.job import job_configuration, job_of
from perfdoc.diagnose.quality import contradiction_notes, mistakes_in, quality_of
from perfdoc.diagnose.ranks import host_gaps_of, kernels_of
from perfdoc.diagnose.verdict import Evidence, verdict_of
from perfdoc.diagnose.whole_case import WholeCase, whole_case
from perfdoc.knobs.configuration import Configuration
from perfdoc.profiling.environment import encodable
from perfdoc.results.bubble import exposed_bubble_ns
from perfdoc.results.names import natural, opening, shorten
from perfdoc.results.quality import HANG, PAGES, TAKEN
from perfdoc.results.roles import MANY
from perfdoc.results.tables import CollectiveSize, Tables
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.registry import Judged, judge
from perfdoc.rules.facts.capture import in_turns, shares_gpu, slowed_by
from perfdoc.rules.facts.culprit import LEADS_FRAC
from perfdoc.rules.facts.culprit_words import why_blamed
from perfdoc.rules.facts.degrees import CP, TP, expert_tp
from perfdoc.rules.facts.exposed import usual_link
from perfdoc.rules.facts.loading import REQUESTS, awaits_batch, awaits_requests, pause_words
from perfdoc.rules.facts.memory_room import out_of_memory
from perfdoc.rules.facts.pauses import least_far
from perfdoc.traces import NoGpuActivityError, TraceError
from perfdoc.traces.job_facts import common_facts
from perfdoc.version import __version__

if TYPE_CHECKING:
    from perfdoc.diagnose.measuring import Found

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
    diagnosis = diagnose(found.captures, found.silent, found.memory, configuration, found.unread)
    diagnosis.quality.extend(mistakes_in(config))
    return diagnosis, configuration


def diagnose(
    captures: Sequence[CaptureMeasurement],
    silent: Sequence[NoGpuActivityError] = (),
    memory: Sequence[RankMemory] = (),
    configuration: Configuration | None = None,
    unread: Sequence[TraceError] = (),
) -> d.Diagnosis:
    """Tie measurements and rules together.

    captures: each with at least one rank; none where memory alone was looked at. silent: captures that showed
    no GPU activity; they are no ranks, and the quality section says so. memory: by rank. configuration: what
    is known of the job's settings. unread: captures that were left out, which the quality section says too.
    """
    whole = whole_case(captures, memory, configuration or Configuration(), whole=not unread)
    case, job = whole.case, whole.case.job
    judged, (failed, _) = judge(case), out_of_memory(case)
    names = [natural(str(c.path)) for c in captures]  # a shell expands rank*.sqlite to rank0, rank10, rank1
    ranks = sorted(whole.ranks, key=lambda r: (r.rank is None, r.rank or 0, names[r.input]))
    facts = job_of(job, case.configuration, case.contradicted, case.framework)
    analyses = _analyses(captures, ranks, job, whole, judged, facts)
    verdict, why, told = _said(whole, ranks, analyses, judged, failed)
    where = _where_words(judged, ranks, [c.path for c in captures])
    return d.Diagnosis(
        perfdoc_version=__version__,
        verdict=verdict,
        why=f"{where}{why}{contradicted_words(case.contradicted)}".strip(),
        account=told,
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
        quality=contradiction_notes(case.contradicted) + quality_of(captures, silent, ranks, job, unread),
        capabilities=[
            d.CapabilityRow(input=i, name=n, available=x.available, reason=x.reason, remedy=x.remedy)
            for i, c in enumerate(captures)
            for n, x in c.capabilities.items()
            if n not in _OF_GPUS or not all(r.on_host for r in c.ranks)
        ],
        ranks=ranks,
        mfu=job.mfu,
        analyses=analyses,
        rules=judged.results,
        opportunities=judged.opportunities,
        combined=whole.replayed.combined,
        timeline=_timeline(job, ranks),
        tables=with_links(case),
        job=facts,
    )


_NEARLY_ALL = 0.9
"""Of kernel time, in kernels of unknown class, where names are missing."""


def _said(
    whole: WholeCase, ranks: Sequence[d.Rank], analyses: d.Analyses, judged: Judged, failed: int
) -> tuple[str, str, str]:
    """(verdict, why, account) in words."""
    case, job = whole.case, whole.case.job
    if not ranks:
        from perfdoc.diagnose.memory_verdict import memory_verdict

        return *memory_verdict(whole.memory, failed), ""
    slowed = slowed_by(case)
    awaits = REQUESTS if awaits_requests(case) else "its next batch" if awaits_batch(case) else ""
    times = job.step_times.analysed
    far = times is not None and (times.mean_ns or 0.0) - times.median_ns >= LEADS_FRAC * times.median_ns
    slow = (r for r in judged.results if far and r.code == "PD210" and r.state == "fires" and not r.blames)
    noted = {n.code: n.message for c in case.captures for n in c.notes}
    told = account_of(
        ranks,
        analyses.kernels,
        failed,
        slowed_by=slowed,
        skew=job.skew,
        pipeline=analyses.pipeline,
        stages=job.stages,
        awaits=awaits,
    )
    seen = Evidence(
        who_waits=waiting_words(ranks, job.skew, job.stages).strip(),
        blamed=why_blamed(case.what_if, judged.cause, case.prediction("balanced_layers")),
        late_host=judged.cause is not None and judged.cause.kind == "late_host",
        slowed_by=slowed,
        awaits=awaits,
        pauses=pause_words(case),
        bubble_ns=exposed_bubble_ns(analyses.pipeline, ranks),
        transfer_frac=analyses.pipeline.transfer_frac,
        failed_allocations=failed,
        hang=(noted.get(HANG, ""), least_far(case)),
        taken=noted.get(TAKEN, ""),
        aside=(noted.get(PAGES, ""), next((f"{opening(rule.reason)}." for rule in slow), "")),
        step_times=job.step_times,
        ranks_of_job=job.world_size or job.facts.world_size,
        collectives=job.tables.collectives,
        in_turns=in_turns(case),
        shared_gpu=shares_gpu(case),
        unnamed="missing-names" in noted and (analyses.kernels.other_frac or 0.0) > _NEARLY_ALL,
        doubts=unknown_class_words(ranks, analyses.kernels).strip(),
        mostly=mostly_words(analyses.kernels),
    )
    return *verdict_of(ranks, judged.opportunities, judged.results, seen), told


def _timeline(job: JobMeasurement, ranks: Sequence[d.Rank]) -> d.Timeline:
    """Ranks in the order of the others."""
    place = {rank.label: at for at, rank in enumerate(ranks)}
    return replace(job.timeline, ranks=sorted(job.timeline.ranks, key=lambda r: place[r.label]))


def _analyses(
    captures: Sequence[CaptureMeasurement],
    ranks: Sequence[d.Rank],
    job: JobMeasurement,
    whole: WholeCase,
    judged: Judged,
    facts: d.Job,
) -> d.Analyses:
    replayed = whole.replayed
    roles = None
    if len(ranks) > MANY:
        from perfdoc.analyzers.roles.measure import measure_roles

        roles = measure_roles(ranks, facts, job.pipeline)
    return d.Analyses(
        kernels=kernels_of(captures),
        host_gaps=host_gaps_of(ranks),
        replay=replayed.replay,
        step_times=job.step_times,
        host_jitter=job.host_jitter,
        norm_contention=job.contention,
        pipeline=job.pipeline,
        skew=job.skew,
        gains=replace(replayed.gains.analysis, predictions=judged.predictions),
        job_model=replayed.modelled,
        memory=whole.memory,
        kernel_efficiency=job.efficiency,
        roles=roles,
        what_if=whole.case.what_if,
    )


_NO_LINK = frozenset({"gloo", ""})
"""Transports that do not use the GPUs' links, or are not known."""


def with_links(case: Case) -> Tables:
    """The tables of all ranks, with the link of each collective where GPU and layout tell it."""
    tables = case.job.tables
    return replace(tables, collectives=[_with_link(case, row) for row in tables.collectives])


def _with_link(case: Case, row: CollectiveSize) -> CollectiveSize:
    if row.bus_bandwidth_gbps is None or row.ranks is None or row.transport in _NO_LINK:
        return row
    stride = _stride(case, row.dimension, row.ranks)
    link = None if stride is None else usual_link(case, row.ranks, stride)
    return row if link is None else replace(row, link_gbps=link.gbps, link=link.words)


def _stride(case: Case, dimension: str, ranks: int) -> int | None:
    """How far apart the ranks of a group are, with tensor parallelism innermost, then context and data
    parallelism; None where the layout does not tell, or the group is another one."""
    tp, cp, dp = case.degree(TP), case.degree(CP), case.dp
    if tp is None or cp is None or dp is None:
        return None
    known: dict[str, dict[int | None, int | None]] = {
        "tp": {tp: 1},
        "cp": {cp: tp},
        "dp": {dp * cp: tp, dp: tp * cp},
        "ep": {case.job.facts.ep: expert_tp(case)},
    }
    return known.get(dimension, {}).get(ranks)


_MOST_PLACES = 3
_NOBODYS = ("", "host", "localhost")  # names that say nothing
_OF_RANKS = ("slow_rank", "late_host", "slow_link")


def _where_words(judged: Judged, ranks: Sequence[d.Rank], files: Sequence[Path] = ()) -> str:
    """`Rank 5 is GPU 5 on node012. `; empty where the verdict names no few ranks, or no capture says.

    files: of the ranks' captures."""
    first, cause = next(iter(judged.opportunities), None), judged.cause
    if first is None or first.blamed != "cause":
        return ""
    late = {r.worst.label for r in judged.results if r.worst and r.code == "PD303" and r.code in first.codes}
    if cause is not None:
        named = {*cause.ranks, *cause.captures} if cause.kind in _OF_RANKS else set()
        late = {r.label for r in ranks if {r.rank, r.label} & named}
    said = [words for rank in ranks if rank.label in late and (words := _where(rank, ranks, files))]
    return f"{opening(', '.join(said))}. " if 0 < len(said) <= _MOST_PLACES else ""


def _where(rank: d.Rank, ranks: Sequence[d.Rank], files: Sequence[Path]) -> str:
    """By its place on the bus, else by its number, where processes see several GPUs; not that 6 is 6. A
    device whose rank no capture says is found by its file."""
    number = str(rank.device) if any(r.device for r in ranks) and rank.rank is not None else ""
    bus, host = rank.gpu.bus or "", shorten(rank.gpu.host or "", 48)
    gpu = f"GPU {shorten(bus if bus.strip('0:.') else number, 48)}"
    parts = [] if gpu in ("GPU ", rank.label) else [gpu]
    told = host.partition(".")[0] in _NOBODYS or rank.label.endswith(f", {host}")
    parts += [] if told else [f"on {host}"]
    if rank.rank is None and len(files) > 1:
        file = files[rank.input]
        alike = sum(other.name == file.name for other in files) > 1
        parts += [f"in {shorten(f'{file.parent.name}/{file.name}' if alike else file.name, 64)}"]
    return "" if parts in ([], [f"GPU {rank.rank}"]) else f"{shorten(rank.label, 64)} is {' '.join(parts)}"
