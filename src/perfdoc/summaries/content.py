"""What a summary holds: the measurement of a capture, and apart from it what a replayed job alone reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from perfdoc.analyzers.device.ranks import marked_ranks
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.efficiency.bounds import KernelBounds
from perfdoc.analyzers.kernels.attributed import AttributedKernels
from perfdoc.analyzers.measure import CaptureMeasurement
from perfdoc.analyzers.measure_device import DeviceAnalysis, RankMeasurement
from perfdoc.records import dataclass
from perfdoc.results.replay import Replay
from perfdoc.simulator.replay.rebuilt import Rebuilt
from perfdoc.simulator.replay.unedited import KEPT_TASKS_MAX, KeptRank, may_keep, replay_and_keep
from perfdoc.simulator.work.rank import RankWork, rank_work
from perfdoc.traces.job_facts import JobFacts


@dataclass(frozen=True, kw_only=True)
class Above:
    """What rooms above the analyzers found on one device."""

    devices: int
    """Of the capture, which share what may be kept."""
    replay: Replay | None
    work: RankWork | None


@dataclass(frozen=True, kw_only=True)
class Silent:
    """A capture without GPU activity."""

    what: str
    remedy: str
    holds: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The first section. Paths, and the facts that ranks repeat, are left out."""

    capture: CaptureMeasurement | None
    silent: Silent | None
    above: tuple[Above, ...]
    """By rank of the capture."""


@dataclass(frozen=True, kw_only=True)
class KeptTasks:
    """What the replay of the whole job is made from, of one rank."""

    rebuilt: Rebuilt
    bounds: KernelBounds | None


@dataclass(frozen=True, kw_only=True)
class Kept:
    """The second section: nine tenths of the bytes, and read only where the job's ranks are few enough."""

    tasks: tuple[KeptTasks | None, ...]
    """By rank of the capture."""


@dataclass(frozen=True, kw_only=True)
class ForSummary:
    """What the analysis of one device gives while it is summarized."""

    kept: KeptRank | None
    work: RankWork | None
    devices: int
    ranks: int

    @property
    def bounds_until_ns(self) -> int | None:
        """As that of the replay."""
        return None if self.kept is None else self.kept.bounds_until_ns


def for_summary(
    view: DeviceView, kernels: AttributedKernels | None = None, *, replay: bool, ranks: int | None
) -> ForSummary:
    """The replay of a device, and the work of its rank.

    ranks: captures that are analysed together; None: as many as the job has ranks, 1 where nothing says.
    """
    marked = max((m.world_size for m in marked_ranks(view.trace).values()), default=1)
    ranks = ranks or view.facts.world_size or view.trace.world_size or marked
    kept = replay_and_keep(view, kernels, keep_tasks=KEPT_TASKS_MAX // ranks) if replay else None
    return ForSummary(
        kept=kept,
        work=kept.work if kept is not None else rank_work(view),
        devices=len(view.trace.devices),
        ranks=ranks,
    )


def split(capture: CaptureMeasurement) -> tuple[Measured, Kept]:
    """Both sections of a capture that was measured with for_summary."""
    found = [r.also for r in capture.ranks]
    above = tuple(
        Above(
            devices=f.devices,
            replay=None if f.kept is None else f.kept.replay,
            work=None if f.work is None else replace(f.work, facts=JobFacts()),
        )
        for f in found
    )
    tasks = tuple(_tasks(r, f.kept) for r, f in zip(capture.ranks, found, strict=True))
    ranks = [_without_clock(replace(r, also=None, bounds=None, last_may_go=False), "") for r in capture.ranks]
    facts = replace(capture.facts, run_directory=None)
    bare = replace(capture, path=Path(), ranks=ranks, facts=facts)
    return Measured(capture=bare, silent=None, above=above), Kept(tasks=tasks)


def _tasks(rank: RankMeasurement, kept: KeptRank | None) -> KeptTasks | None:
    if kept is None or kept.rebuilt is None:
        return None
    return KeptTasks(rebuilt=_with_facts(kept.rebuilt, JobFacts()), bounds=rank.bounds)


def _with_facts(rebuilt: Rebuilt, facts: JobFacts) -> Rebuilt:
    return replace(rebuilt, ranks=tuple(replace(frame, facts=facts) for frame in rebuilt.ranks))


def _without_clock(rank: RankMeasurement, clock: str) -> RankMeasurement:
    """Clocks are named for the file that they are of."""
    return replace(rank, calls=replace(rank.calls, clock=clock), pipeline=replace(rank.pipeline, clock=clock))


def keep_tasks_of(also: DeviceAnalysis | None) -> int | None:
    """The bound of a replay that was asked for; None where something else was."""
    if isinstance(also, partial) and also.func is replay_and_keep:
        return int(also.keywords["keep_tasks"])
    return None


def needs_kept(measured: Measured, keep_tasks: int) -> list[bool]:
    """By rank: whether its tasks are kept under a bound."""
    return [
        a.replay is not None and may_keep(a.replay, a.devices, a.work, keep_tasks) for a in measured.above
    ]


def joined(
    measured: Measured,
    tasks: Sequence[KeptTasks | None] | None,
    path: Path,
    facts: JobFacts,
    *,
    work_alone: bool = False,
) -> CaptureMeasurement:
    """The measurement as if the trace were at `path`.

    tasks: by rank what is kept; None where no replay is asked for. work_alone: of the rooms above only the
    rank's work is asked for.
    """
    assert measured.capture is not None
    ranks = []
    for i, (rank, above) in enumerate(zip(measured.capture.ranks, measured.above, strict=True)):
        work = None if above.work is None else replace(above.work, facts=facts)
        also: KeptRank | RankWork | None = work if work_alone else None
        bounds = None
        if tasks is not None and above.replay is not None:
            kept = tasks[i]
            rebuilt = None if kept is None else _with_facts(kept.rebuilt, facts)
            also = KeptRank(replay=above.replay, rebuilt=rebuilt, work=work)
            bounds = None if kept is None else kept.bounds
        ranks.append(_without_clock(replace(rank, also=also, bounds=bounds), str(path)))
    return replace(measured.capture, path=path, ranks=ranks, facts=facts)
