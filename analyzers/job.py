"""What takes all captures together: are they of different ranks, MFU, and all that compares ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from perfdoc.analyzers.clocks.alignment import ClockAlignment, align_clocks
from perfdoc.analyzers.communication.calls import CollectiveCalls
from perfdoc.analyzers.communication.matches import Matches, no_matches
from perfdoc.analyzers.contention.job import job_contention
from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.device.event_counts import REMEDY
from perfdoc.analyzers.device.ranks import rank_labels
from perfdoc.analyzers.efficiency.tables import job_efficiency
from perfdoc.analyzers.host.jitter import RankHostSteps, host_jitter
from perfdoc.analyzers.kernel_class.number_format import captured_format
from perfdoc.analyzers.layout.degrees import filled, find_degrees
from perfdoc.analyzers.layout.job_uses import RankUses
from perfdoc.analyzers.ledger.mfu import MfuRank, measure_mfu
from perfdoc.analyzers.matching.collectives import match_collectives
from perfdoc.analyzers.measure import CaptureMeasurement
from perfdoc.analyzers.pipeline.job import measure_pipeline
from perfdoc.analyzers.pipeline.operations import MESSAGE, RankOperations
from perfdoc.analyzers.pipeline.recorded_passes import with_recorded_passes
from perfdoc.analyzers.pipeline.recorded_schedule import JobSchedule, find_schedule
from perfdoc.analyzers.pipeline.transfers import message_moments
from perfdoc.analyzers.skew.causes import rank_time
from perfdoc.analyzers.skew.stragglers import Latest
from perfdoc.analyzers.skew.waiting import measure_skew
from perfdoc.analyzers.steps.figures import RankSteps
from perfdoc.analyzers.steps.log import read_logged_steps
from perfdoc.analyzers.steps.times import measure_step_times
from perfdoc.analyzers.tables.job import job_tables
from perfdoc.analyzers.timeline.job import RankInput, job_timeline
from perfdoc.records import dataclass
from perfdoc.results import HostJitter, NormContentionAnalysis, StepTimes
from perfdoc.results.degrees import Degree
from perfdoc.results.efficiency import KernelEfficiency
from perfdoc.results.headline import Mfu
from perfdoc.results.tables import Tables
from perfdoc.results.timeline import Timeline
from perfdoc.results.waits import PipelineAnalysis, SkewAnalysis
from perfdoc.traces import Device, TraceError
from perfdoc.traces.job_facts import JobFacts, common_facts
from perfdoc.traces.table import among, median

_LITTLE = 8
"""A stage computes so many times less before its input comes than between messages, or than the first stage
does; no GPU is so much slower than another."""
_LEAST_TOGETHER = 8
"""Collectives from which on ends that coincide are no chance."""
_TOGETHER_NS = 100_000
_CLOSER_THAN_STARTS = 4
"""Ranks of one collective begin it when they come and leave it together."""


def check_distinct(captures: Sequence[CaptureMeasurement]) -> None:
    """Refuse two files of the same content, and two captures that say that they are one rank, or one process
    of a machine at different times: at one time these are of containers that name host and process alike.

    A profiler with a repeating schedule writes several captures of each rank into one folder, and shells copy
    files: the sums over ranks, and who waits for whom, would be wrong without a sign of it.
    Raises TraceError, which names the second.
    """
    contents: dict[str, Path] = {}
    ranks: dict[int | tuple[str, int], CaptureMeasurement] = {}
    for capture in captures:
        if (first := contents.setdefault(capture.sha256, capture.path)) != capture.path:
            raise TraceError(
                capture.path, f"is a copy of {first}, and would count twice.", "Give one of them."
            )
        said: dict[int | tuple[str, int], str] = {}
        for device in (r.device for r in capture.ranks):
            if device.rank is not None:
                said[device.rank] = f"rank {device.rank}"
            elif device.host:
                said[device.host, device.process] = f"process {device.process} of {device.host}"
            elif worker := _worker(capture.path):
                # Of one folder: machines may name their workers alike, and number their processes alike.
                in_folder = str(capture.path.parent / worker), device.process
                said[in_folder] = f"process {device.process} of the worker {worker}"
        for who, name in said.items():
            other = ranks.setdefault(who, capture)
            if other.path != capture.path and (isinstance(who, int) or _one_after_another(other, capture)):
                raise TraceError(
                    capture.path,
                    f"says that it is {name}, as {other.path} does.",
                    "Give one capture of each rank, all of the same steps of one job.",
                )


def _worker(path: Path) -> str | None:
    """How Lightning and vLLM have PyTorch's handler name a process: what stands before the time."""
    worker, found, _ = path.name.partition(".pt.trace.json")
    return worker.rpartition(".")[0] if found else None


def _one_after_another(one: CaptureMeasurement, other: CaptureMeasurement) -> bool:
    """Whether all that the GPUs of one did lies before all of the other's. A machine has one clock."""
    each = [[t + (r.calls.utc_origin_ns or 0) for r in c.ranks for t in r.span_ns] for c in (one, other)]
    first, second = sorted(each, key=min)
    return max(first) <= min(second)


@dataclass(frozen=True, kw_only=True)
class JobMeasurement:
    """What was measured over all captures."""

    facts: JobFacts
    """What all captures' surroundings agree on; degrees that nobody gave as the captures show them."""
    degrees: Sequence[Degree] = ()
    """How the job is spread over its ranks, and how that is known."""
    whole: bool
    """False where captures were left out."""
    world_size: int | None
    """Ranks of the job, as far as it is known."""
    devices: Sequence[Device]
    """Of every rank, in the order of the captures and of the ranks in them; with its rank where only the
    whole set of captures tells it."""
    labels: Sequence[str]
    """What reports call them."""
    mfu: Mfu
    efficiency: KernelEfficiency
    step_times: StepTimes
    host_jitter: HostJitter
    contention: NormContentionAnalysis
    skew: SkewAnalysis
    latest: Latest
    """For the worst moment of a straggler."""
    pipeline: PipelineAnalysis
    schedule: JobSchedule
    """Of the pipelines as their messages show it."""
    timeline: Timeline
    tables: Tables
    matches: Matches
    """For what a room above makes of all ranks together; like `clocks` in the order of `devices`."""
    clocks: ClockAlignment
    may_be_piped: bool = False
    """Whether messages may be those of stages, though nothing tells their dimension."""

    @property
    def stages(self) -> int | None:
        """Of the pipeline, as facts or else its messages tell; None unknown, 0 where there may be several."""
        return _stages(self.facts, self.pipeline, self.may_be_piped)


def measure_job(captures: Sequence[CaptureMeasurement], *, whole: bool = True) -> JobMeasurement:
    """Measure across captures; at least one, each with at least one rank.

    whole: False where captures were left out.
    Raises TraceError where a step log of the run directory cannot be read.
    """
    facts = common_facts([c.facts for c in captures])
    world_size = max((c.world_size for c in captures if c.world_size is not None), default=None)
    numbered = [(i, r) for i, c in enumerate(captures) for r in c.ranks]
    ranks = [r for _, r in numbered]
    calls = [r.calls for r in ranks]
    partial = next((r.events.work_missing for r in ranks if r.events.work_missing), "")
    matches = match_collectives(calls, facts, whole=whole)
    if partial:  # collectives of which some are missing are counted wrong
        matches = no_matches(partial, REMEDY, matches.members)
    uses = [RankUses(rank=r.device.rank, uses=() if partial else r.uses) for r in ranks]
    together = ranks_together(matches, calls)
    degrees = find_degrees(uses, facts, world_size, together=together)
    # Ranks that end together may be some of the job's: no figure of all ranks may rest on how many do.
    sure = {d.name: d for d in (degrees if together is None else find_degrees(uses, facts, world_size))}
    facts = filled(facts, [sure[d.name] if d.name in ("world_size", "dp") else d for d in degrees])
    devices = [r.device for r in ranks]
    if matches.members:
        # Where no capture says its rank, the communicator of the whole job numbers them.
        devices = [
            replace(d, rank=m.rank, rank_evidence=m.rank_evidence) if d.rank is None else d
            for d, m in zip(devices, matches.members, strict=True)
        ]
    labels = rank_labels([(i, device) for (i, _), device in zip(numbered, devices, strict=True)])
    labelled = list(zip(ranks, devices, labels, strict=True))
    # One device has one name in all that is published.
    matches = replace(
        matches,
        members=tuple(replace(m, label=label) for m, label in zip(matches.members, labels, strict=False)),
    )
    pipelines = [replace(r.pipeline, label=label) for r, label in zip(ranks, labels, strict=True)]
    operations = [r.operations for r in ranks]
    schedule = find_schedule(operations)
    pipelines = with_recorded_passes(pipelines, operations, schedule)
    clocks = align_clocks(matches, calls, message_moments(pipelines, facts))
    pipeline = measure_pipeline(pipelines, facts, clocks, schedule)
    piped = _stages(facts, pipeline, False) is None and _may_be_piped(calls, matches, operations)
    skew, latest = measure_skew(
        calls,
        matches,
        clocks,
        [rank_time(r.step_ledgers, r.ledger) for r in ranks],
        _stages(facts, pipeline, piped),
    )
    efficiency = job_efficiency([r.efficiency for r in ranks])
    shown = captured_format(ranks) if facts.model is not None and facts.dtype is None else None
    mfu = measure_mfu(
        [MfuRank(gpu_name=r.device.gpu_name, window=r.window, ledger=r.ledger) for r in ranks],
        replace(facts, dtype=shown[0]) if shown else facts,
        world_size,
        communicates=any(r.communication for r in ranks),
        efficiency=efficiency,
    )
    mfu = replace(mfu, value=None, reason=partial, remedy=REMEDY, waterfall=[]) if partial else mfu
    return JobMeasurement(
        facts=facts,
        degrees=degrees,
        whole=whole,
        may_be_piped=piped,
        world_size=facts.world_size or world_size,
        devices=devices,
        labels=labels,
        mfu=mfu,
        efficiency=efficiency,
        step_times=measure_step_times(
            [RankSteps(rank=d.rank, label=label, ledgers=r.step_ledgers) for r, d, label in labelled],
            read_logged_steps(facts.run_directory),
        ),
        host_jitter=host_jitter(
            [
                RankHostSteps(rank=d.rank, label=label, steps=r.host_steps, process=(i, d.process))
                for (i, r), d, label in zip(numbered, devices, labels, strict=True)
            ]
        ),
        contention=job_contention([r.contention for r in ranks]),
        skew=skew,
        latest=latest,
        pipeline=pipeline,
        schedule=schedule,
        timeline=job_timeline(
            [
                RankInput(
                    rank=d.rank,
                    label=label,
                    capture=i,
                    steps=r.timeline,
                    step_names=r.pipeline.step_names,
                    passes=r.pipeline.passes,
                )
                for (i, r), d, label in zip(numbered, devices, labels, strict=True)
            ],
            clocks,
        ),
        tables=job_tables([r.tables for r in ranks], labels, calls, matches, clocks.contradicted),
        matches=matches,
        clocks=clocks,
    )


def _stages(facts: JobFacts, pipeline: PipelineAnalysis, may_be_piped: bool) -> int | None:
    return facts.pp or pipeline.pp or (0 if may_be_piped else None)


def _may_be_piped(
    calls: Sequence[CollectiveCalls], matches: Matches, operations: Sequence[RankOperations]
) -> bool:
    """Whether messages of unknown dimension may be of stages: not all ranks have as many in a step, or the
    first brings one its input. Experts and rings exchange all at once, and have computed as long before.
    Where steps do not tell, whether they are of two ranks each."""
    words, unknown = ("send", "recv", "send_recv"), DIMENSIONS.index("unknown")
    if not any(o.reason for o in operations):
        found = [np.flatnonzero((o.kind == MESSAGE) & (o.dimension == unknown)) for o in operations]
        each = [(o, int(at[0])) for o, at in zip(operations, found, strict=True) if len(at)]
        before = [float(median(o.busy_ns[:at].sum(axis=0))) for o, at in each]
        first = max(before, default=0.0)
        usual = [max(first, float(o.busy_ns.mean()) if o.is_awaited[at] else 0.0) for o, at in each]
        brings = any(_LITTLE * b < u for b, u in zip(before, usual, strict=True))
        return brings or len({len(at) for at in found}) > 1
    sends = [(c.operation, [i for i, o in enumerate(c.operations) if o in words], c.dimension) for c in calls]
    count = sum(int((among(of, known) & (dimension == unknown)).sum()) for of, known, dimension in sends)
    several = among(matches.operation, [i for i, o in enumerate(matches.operations) if o in words])
    together = matches.count[several & (matches.dimension == unknown) & (matches.count > 2)].sum()
    return 2 * int(together) < count


def ranks_together(matches: Matches, calls: Sequence[CollectiveCalls]) -> int | None:
    """How many ranks leave all of their collectives together, all that were captured; None where they do not,
    or a capture tells its groups.

    Each rank's clock may be off by a constant. Two groups of a job that do the same end at different times.
    """
    ranks = len(calls)
    if ranks < 2 or any(c.groups for c in calls) or len(matches.members) != ranks:
        return None
    whole = np.flatnonzero((matches.count == ranks) & matches.is_synchronising)
    if len(whole) < _LEAST_TOGETHER or len(whole) * 2 < len(matches):
        return None
    at = matches.first[whole][:, None] + np.arange(ranks)
    member, row = matches.member[at], matches.row[at]
    start, end = np.empty(at.shape), np.empty(at.shape)
    for i, of_rank in enumerate(calls):
        mine = member == i
        start[mine], end[mine] = of_rank.start_ns[row[mine]], of_rank.end_ns[row[mine]]
    apart = end - end[:, :1]
    spread = np.ptp(apart - median(apart.T), axis=1)
    of_starts = np.ptp(start - start[:, :1] - median(apart.T), axis=1)
    close = float(median(spread))
    return ranks if close <= min(_TOGETHER_NS, float(median(of_starts)) / _CLOSER_THAN_STARTS) else None
