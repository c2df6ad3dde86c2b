"""Captures of small jobs of several ranks with known answers, for tests of what looks across ranks.

    job = planted_job("tp2_pp2_dp2")                       # or a JobSpec; see spec.KINDS
    paths = job.write(folder)                              # one Nsight SQLite per rank
    job.answer.ranks[3].exposed_comm_ns["tp"]              # on the clock of rank 3's file
    job.answer.pipelines[0].stages[1].bubble_ns            # true time

The answer is what was laid: every stretch of a rank's time was put into its leaf as it was laid down, and
no analyzer was asked.

This engine shares no code with the replay (simulator.engine, simulator.replay) and none with the forward
simulator, which runs on the replay's engine and so cannot prove it. From simulator/ it takes the writers of
captures alone (tests.captures). What a fault costs here, laid with it and laid without, is therefore
what the replay's predictions are held against: tests/simulator/test_planted_bands.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from statistics import fmean

from perfdoc.simulator.captures.groups import BACKWARD
from perfdoc.simulator.captures.nsys import Clock
from perfdoc.traces.job_facts import JobFacts
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import Timeline, TimelineBuilder
from tests.planted.answer import CollectiveAnswer, JobAnswer, PipelineAnswer, RankAnswer, StageAnswer
from tests.planted.engine import Engine
from tests.planted.rank import LaidPass, RankLane, Stretch
from tests.planted.spec import KINDS, JobSpec
from tests.planted.step import MESSAGE_BYTES, RankProgram, message_ns
from tests.planted.unrecorded import Unrecorded

UTC_ZERO_NS = 1_750_000_000_000_000_000
"""UTC time of true time 0."""
FIRST_PID = 41000


@dataclass(frozen=True, kw_only=True)
class PlantedJob:
    """A job: its captures as timelines, and the truth about them."""

    spec: JobSpec
    timelines: Sequence[Timeline]
    """By rank; a single one where all ranks share a file."""
    answer: JobAnswer

    def facts(self) -> JobFacts:
        """The layout, as a user gives it with `--set`."""
        s = self.spec
        return JobFacts(
            world_size=s.world_size,
            tp=s.tp,
            cp=s.cp,
            dp=s.dp,
            pp=s.pp,
            ep=s.ep,
            vpp=s.vpp,
            micro_batches=s.micro_batches,
        )

    def write(self, folder: Path, *, generation: str = "2026.3", force: bool = False) -> list[Path]:
        """Write the captures as rank<N>.sqlite (or job.sqlite) and return their paths."""
        names = ["job"] if self.spec.one_file else [f"rank{i}" for i in range(len(self.timelines))]
        return [
            write_nsys_sqlite(t, Path(folder) / f"{name}.sqlite", generation=generation, force=force)
            for name, t in zip(names, self.timelines, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class _Laid:
    """Everything that was laid down, before any question is asked."""

    builders: list[TimelineBuilder]
    lanes: list[RankLane]
    programs: list[RankProgram]
    engine: Engine


@lru_cache(maxsize=8)
def planted_job(what: str | JobSpec) -> PlantedJob:
    """Lay a job down. ValueError for a name that is not in KINDS, and for a job of which not every
    nanosecond is certain.

    The last ones are kept: a fault's test asks for the captures of a job, for its answer, and for the job
    without the fault, which is that of the next test as well.
    """
    if isinstance(what, str) and what not in KINDS:
        raise ValueError(f"planted_job: {what!r} is none of {', '.join(KINDS)}")
    spec = KINDS[what] if isinstance(what, str) else what
    if not spec.has_answer:
        raise ValueError("planted_job: vpp above 1 goes with dp only")
    laid = _lay(spec)
    return PlantedJob(
        spec=spec,
        timelines=[b.build() for b in laid.builders],
        answer=JobAnswer(
            ranks=tuple(_rank_answer(lane) for lane in laid.lanes),
            collectives=_collectives(laid),
            lay_pipelines=partial(_pipelines, spec, laid.lanes),
        ),
    )


@dataclass(frozen=True, kw_only=True)
class PlantedSteps:
    """Captures of some ranks of a job, and how long its steps take: all that is certain of any job."""

    step_ns: float
    """From the first step's start on any rank to the last one's end, over the steps."""
    starts_ns: Sequence[Sequence[int]]
    """Of the steps, by rank."""
    timelines: Mapping[int, Timeline]
    """By rank, those asked for."""

    def first_steps_ns(self, count: int) -> float:
        """The mean of the first ones where others follow: from start to start on each rank."""
        if count >= len(self.starts_ns[0]):
            return self.step_ns
        return fmean((starts[count] - starts[0]) / count for starts in self.starts_ns)

    def write(self, folder: Path) -> list[Path]:
        """Write the captures as rank<N>.sqlite and return their paths."""
        return [
            write_nsys_sqlite(t, Path(folder) / f"rank{r}.sqlite", generation="2026.3", force=True)
            for r, t in self.timelines.items()
        ]


def planted_steps(spec: JobSpec, ranks: Collection[int] = ()) -> PlantedSteps:
    """Lay down all ranks of a job, and record what these did."""
    laid = _lay(spec, ranks)
    begin = min(lane.step_starts[0] for lane in laid.lanes)
    end = max(lane.now_ns for lane in laid.lanes)
    timelines = {r: laid.builders[r].build() for r in sorted(ranks)}
    starts_ns = [lane.step_starts for lane in laid.lanes]
    return PlantedSteps(step_ns=(end - begin) / spec.steps, starts_ns=starts_ns, timelines=timelines)


def _lay(spec: JobSpec, recorded: Collection[int] | None = None) -> _Laid:
    """recorded: ranks that a capture is made of; None: all."""
    builders: list[TimelineBuilder] = []
    lanes = []
    for rank in range(spec.world_size):
        if not builders or not spec.one_file:
            clock: Clock = spec.clock(rank)
            origin = UTC_ZERO_NS + clock.session_start_ns + clock.utc_error_ns
            builders.append(TimelineBuilder(utc_origin_ns=origin))
        process = builders[-1].process(pid=FIRST_PID + rank, rank=rank)
        if recorded is not None and rank not in recorded:
            process = Unrecorded(process.info.pid)
        lanes.append(RankLane(spec, rank, process))
    programs = [RankProgram(lane) for lane in lanes]
    engine = Engine(pp_transfer_ns=lambda channel: spec.slowed(message_ns(spec, channel), channel[:2], "pp"))
    engine.run([p.run() for p in programs])
    times = {c: list(zip(m.starts, m.ends, strict=True)) for c, m in engine.channels.items()}
    for program in programs:
        program.lay_messages(times)
    return _Laid(builders=builders, lanes=lanes, programs=programs, engine=engine)


def _rank_answer(lane: RankLane) -> RankAnswer:
    local = lane.clock.local
    first = lane.step_starts[0]
    inside = [s for s in lane.log if s.start_ns >= first]
    assert inside[0].start_ns == first, "a step starts where a stretch does"
    leaves: dict[str, int] = defaultdict(int)
    for s in inside:
        leaves[s.leaf] += local(s.end_ns) - local(s.start_ns)
    hidden = {dimension: _hidden_ns(lane, dimension, inside) for dimension in {d for d, _, _ in lane.comm}}
    norms = [(_beside_ns(lane, a, b) / (b - a), local(b) - local(a)) for a, b in lane.norms]
    return RankAnswer(
        rank=lane.rank,
        pid=lane.process.pid,
        device=lane.device.info.ordinal,
        stage=lane.place.stage,
        step_start_ns=tuple(local(s) for s in lane.step_starts),
        window_end_ns=local(inside[-1].end_ns),
        compute_ns=leaves["compute"],
        exposed_comm_ns=_below(leaves, "comm."),
        exposed_memcpy_ns=leaves["memcpy"],
        idle_ns=_below(leaves, "idle."),
        hidden_comm_ns=hidden,
        norm_alone_ns=tuple(d for beside, d in norms if beside == 0),
        norm_contended_ns=tuple(d for beside, d in norms if beside == 1),
    )


def _beside_ns(lane: RankLane, start_ns: int, end_ns: int) -> int:
    """How long of [start, end) communication was resident."""
    total, reached = 0, start_ns
    for a, b in sorted((a, b) for _, a, b in lane.comm if a < end_ns and b > start_ns):
        begin, end = max(a, reached), min(b, end_ns)
        total, reached = total + max(0, end - begin), max(reached, end)
    return total


def _below(leaves: dict[str, int], prefix: str) -> dict[str, int]:
    return {name.removeprefix(prefix): ns for name, ns in leaves.items() if name.startswith(prefix)}


def _hidden_ns(lane: RankLane, dimension: str, stretches: list[Stretch]) -> int:
    """What compute covers of a dimension's kernels, one stretch of compute after the other."""
    spans = sorted((a, b) for d, a, b in lane.comm if d == dimension)
    total = 0
    for s in stretches:
        if s.leaf != "compute":
            continue
        reached = s.start_ns
        for a, b in spans:
            if a >= s.end_ns:
                break
            begin, end = max(a, reached), min(b, s.end_ns)
            if end > begin:
                total += lane.clock.local(end) - lane.clock.local(begin)
                reached = end
    return total


def _collectives(laid: _Laid) -> tuple[CollectiveAnswer, ...]:
    found = []
    for key, members in laid.engine.joins.items():
        first = next(iter(members.values()))
        dimension, operation, size = laid.programs[first.rank].facts[key]
        starts = tuple(members[r].start_ns for r in first.ranks)
        found.append(
            CollectiveAnswer(
                dimension=dimension,
                operation=operation,
                communicator=key[0],
                sequence=key[1],
                bytes=size,
                ranks=first.ranks,
                start_ns=starts,
                end_ns=max(starts) + first.transfer_ns,
            )
        )
    for (sender, receiver, way), messages in laid.engine.channels.items():
        groups = laid.lanes[sender].groups
        group = groups.get(BACKWARD, groups["pp"]) if way == "backward" else groups["pp"]
        for number, (starts_of, end) in enumerate(zip(messages.starts, messages.ends, strict=True)):
            found.append(
                CollectiveAnswer(
                    dimension="pp",
                    operation="send_recv",
                    communicator=group.communicator,
                    sequence=number,
                    bytes=MESSAGE_BYTES,
                    ranks=(sender, receiver),
                    start_ns=(starts_of[sender], starts_of[receiver]),
                    end_ns=end,
                )
            )
    return tuple(sorted(found, key=lambda c: (c.end_ns, c.communicator, c.ranks)))


def _pipelines(spec: JobSpec, lanes: list[RankLane]) -> tuple[PipelineAnswer, ...]:
    if spec.pp == 1:
        return ()
    plain = replace(spec, clocks=())
    instant = _lay(replace(plain, pp_transfer_ns=0)).lanes
    gapless = _lay(replace(plain, pp_transfer_ns=0, pp_handover_ns=0)).lanes
    rank_sets = sorted({lane.groups["pp"].ranks for lane in lanes})
    return tuple(
        _pipeline(spec, step, ranks, (lanes, instant, gapless))
        for step in range(spec.steps)
        for ranks in rank_sets
    )


def _pipeline(
    spec: JobSpec, step: int, ranks: tuple[int, ...], layings: tuple[list[RankLane], ...]
) -> PipelineAnswer:
    windows = []
    for lanes in layings:
        passes = [p for r in ranks for p in _passes(lanes[r], step)]
        windows.append((min(p.start_ns for p in passes), max(p.end_ns for p in passes)))
    (start, end), *_ = windows
    whole, instant, gapless = (b - a for a, b in windows)
    transfer, handover = whole - instant, instant - gapless
    own = {r: sum(p.end_ns - p.start_ns for p in _passes(layings[0][r], step)) for r in ranks}
    ideal = (spec.pp - 1) * sum(own.values()) // (spec.pp * spec.vpp * spec.micro_batches)
    stages = []
    for rank in ranks:
        idle = whole - own[rank]
        bubble = min(ideal, idle - transfer - handover)
        stages.append(
            StageAnswer(
                rank=rank,
                stage=layings[0][rank].place.stage,
                own_ns=own[rank],
                idle_ns=idle,
                bubble_ns=bubble,
                transfer_ns=transfer,
                handover_ns=handover,
                late_peer_ns=idle - transfer - handover - bubble,
            )
        )
    return PipelineAnswer(
        step=step, ranks=ranks, start_ns=start, end_ns=end, ideal_bubble_ns=ideal, stages=tuple(stages)
    )


def _passes(lane: RankLane, step: int) -> list[LaidPass]:
    return [p for p in lane.passes if p.step == step]


__all__ = ["KINDS", "Clock", "JobSpec", "PlantedJob", "PlantedSteps", "planted_job", "planted_steps"]
