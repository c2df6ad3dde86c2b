"""The replays of all ranks in one place: the job's, and what changes would gain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfdoc import results as d
from perfdoc.analyzers.device.event_counts import REMEDY
from perfdoc.analyzers.job import JobMeasurement
from perfdoc.analyzers.measure import CaptureMeasurement
from perfdoc.analyzers.steps.log import read_logged_steps
from perfdoc.diagnose.framework import in_words_of
from perfdoc.diagnose.ranks import NO_TRACE
from perfdoc.results.headline import Framework
from perfdoc.simulator.replay.gains import Gains, WhyNot, no_gains
from perfdoc.simulator.replay.unedited import KeptRank
from perfdoc.simulator.replay.unprofiled import free_lengths
from perfdoc.simulator.replay.whole import WholeReplay, replay_whole

_GIVE = "Give a trace of the run too."
_LEAVE_OUT = "Leave --no-replay out."
_LATER = "Capture later steps, or give the part that counts: --window START,END."
_NOT_RUN = "the windows were not replayed"


@dataclass(frozen=True, kw_only=True)
class ReplayTopic:
    """What the diagnosis says of replays."""

    replay: d.ReplayAnalysis
    gains: Gains
    combined: d.Combined | None
    """None where nothing was replayed."""


def replays_of(
    captures: Sequence[CaptureMeasurement],
    ranks: Sequence[d.Rank],
    job: JobMeasurement,
    why_not: WhyNot,
    framework: Framework = "megatron",
) -> ReplayTopic:
    """Join the ranks and predict from them. ranks: the published ones, in the order of the captures. why_not:
    asked of every change whether the job can have it. framework: in whose words changes are named."""
    measured = [r for capture in captures for r in capture.ranks]
    if partial := next((r.events.partial for r in measured if r.events.partial), ""):
        gains = no_gains(partial, REMEDY)
        return ReplayTopic(replay=_nothing(partial, REMEDY), gains=gains, combined=gains.combined)
    kept = [
        _named(r.also, device.rank, label)
        for r, device, label in zip(measured, job.devices, job.labels, strict=True)
        if isinstance(r.also, KeptRank)
    ]
    if not measured:
        return ReplayTopic(replay=_nothing(NO_TRACE, _GIVE), gains=no_gains(NO_TRACE, _GIVE), combined=None)
    if not kept or len(kept) < len(measured):
        return ReplayTopic(
            replay=_nothing(_NOT_RUN, _LEAVE_OUT),
            gains=no_gains(_NOT_RUN, _LEAVE_OUT),
            combined=None,
        )
    whole = replay_whole(
        kept,
        [r.calls for r in measured],
        job.matches,
        job.clocks,
        [r.ledger for r in measured],
        free=free_lengths(read_logged_steps(job.facts.run_directory)),
        stragglers=late_by_compute(job),
        why_not=why_not,
    )
    gains = in_words_of(framework, whole.gains)
    if start_up := next((r.window.runs_once for r in measured if r.window.runs_once), ""):
        gains = no_gains(start_up, _LATER)
    return ReplayTopic(replay=_replay(ranks, whole), gains=gains, combined=gains.combined)


def late_by_compute(job: JobMeasurement) -> list[tuple[str, str]]:
    """Ranks that are late because they compute longer, which is what the replay takes away: not because of
    their host, nor because they waited for others, nor by the order in which stages of a pipeline end, which
    groups of unknown dimension may join."""
    pipeline = (job.facts.pp or job.pipeline.pp or 1) > 1
    return [
        (s.name, s.dimension)
        for s in job.skew.stragglers
        if s.cause == "compute" and not (pipeline and s.dimension == "unknown")
    ]


def _named(kept: KeptRank, rank: int | None, label: str) -> KeptRank:
    """With its rank as all captures together tell it."""
    if kept.rebuilt is None:
        return kept
    frames = tuple(replace(frame, rank=rank, name=label) for frame in kept.rebuilt.ranks)
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
