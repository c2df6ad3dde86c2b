"""Another pipeline schedule: virtual stages, even stages, other numbers of micro-batches.

The passes of every stage are taken as the graph runs them, and 1F1B is laid out with them: as it is now, and
as it would be. What the phase takes beyond the first layout is the passes' own overhead (messages): the time
that, added to every pass, makes the two equal, but no more than a message takes. Every pass of the new
schedule pays it too. What is left (passes that were slower than usual) stays. The difference of the two
phases is taken out of every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.pipeline.pipeline_schedule import perfect_schedule
from perfdoc.simulator.engine import Schedule, TaskKind, schedule
from perfdoc.simulator.engine.graph import I64
from perfdoc.simulator.replay.edits.edit import Edit
from perfdoc.simulator.replay.rank_tasks import NO_RELEASE
from perfdoc.simulator.replay.rebuilt import Rebuilt

_UNCERTAINTY_FRAC = 0.3
"""Passes differ between micro-batches, and messages of more chunks may hold one another up."""
_HALVINGS = 40


@dataclass(frozen=True, kw_only=True)
class _Pipeline:
    """Stages in order; times in ns."""

    vpp: int
    micro_batches: int
    forward: tuple[float, ...]
    """By stage: one micro-batch in one chunk."""
    backward: tuple[float, ...]
    starts_ns: I64
    """When the first pass of each step was begun, over all stages, as measured."""
    phase: float
    """From there to the end of the last pass, as the graph runs; mean over steps."""
    ranks_of_stage: tuple[tuple[int, ...], ...]

    def window(self, overhead: float) -> float:
        """What the schedule takes with this much more in every pass. ValueError where it is not defined."""
        found = perfect_schedule(
            vpp=self.vpp,
            micro_batches=self.micro_batches,
            forward=[f + overhead for f in self.forward],
            backward=[b + overhead for b in self.backward],
        )
        if found is None:
            raise ValueError(
                f"there is no schedule of {self.micro_batches} micro-batches on {len(self.forward)} stages "
                f"of {self.vpp} chunks"
            )
        return found.window


def virtual_stages(chunks: int) -> Edit:
    """As many model chunks on every stage (1: plain 1F1B). ValueError below 1."""
    if chunks < 1:
        raise ValueError(f"virtual_stages: {chunks} chunks")
    return Edit(
        name=f"{chunks} virtual stages on each",
        apply=lambda rebuilt: with_schedule(rebuilt, vpp=chunks),
        uncertainty_frac=_UNCERTAINTY_FRAC,
        leaves=("exposed_comm.pp", "idle"),
        assumptions=(
            "chunks share a stage's work evenly",
            "every pass of a chunk pays for its messages what a pass pays now",
        ),
        variants=tuple(
            partial(with_schedule, vpp=chunks, overhead_max_ns=most) for most in (0.0, float("inf"))
        ),
        may_cost=True,
    )


def even_stages() -> Edit:
    """Every stage takes the mean of all, with the same work in all."""
    return Edit(
        name="stages with the same work",
        apply=lambda rebuilt: with_schedule(rebuilt, even=True),
        uncertainty_frac=_UNCERTAINTY_FRAC,
        leaves=("exposed_comm.pp", "idle", "compute"),
        assumptions=("layers can be moved in parts small enough",),
        may_cost=True,
    )


def with_schedule(
    rebuilt: Rebuilt,
    *,
    vpp: int | None = None,
    even: bool = False,
    micro_batches: float = 1.0,
    fixed_ns: Sequence[tuple[float, float]] | None = None,
    overhead_max_ns: float | None = None,
) -> Rebuilt:
    """The step with its pipeline phase laid out anew; raises ValueError where the capture does not tell it.

    micro_batches: ratio of their new number to the old. fixed_ns: by rank, what of a forward and a backward
    is the same whatever the size of a micro-batch; the rest scales. overhead_max_ns: what every pass of
    either schedule pays at most; a message, if not given.
    """
    now = _pipeline(rebuilt)
    most = _message_ns(rebuilt) if overhead_max_ns is None else overhead_max_ns
    overhead = min(_overhead(now), most)
    forward, backward = now.forward, now.backward
    if micro_batches != 1:
        fixed = [
            [
                float(np.mean([fixed_ns[r][k] for r in ranks])) if fixed_ns else 0.0
                for ranks in now.ranks_of_stage
            ]
            for k in (0, 1)
        ]
        forward, backward = (
            tuple(min(f, t) + (t - min(f, t)) / micro_batches for f, t in zip(own, took, strict=True))
            for own, took in zip(fixed, (forward, backward), strict=True)
        )
    if even:
        forward, backward = (tuple([sum(t) / len(t)] * len(t)) for t in (forward, backward))
    if vpp is not None:
        forward, backward = (tuple(x * now.vpp / vpp for x in t) for t in (forward, backward))
    count = round(now.micro_batches * micro_batches)
    if count < 1 or abs(count - now.micro_batches * micro_batches) > 1e-6:
        raise ValueError(f"{now.micro_batches} x {micro_batches:g} is no whole number of micro-batches")
    new = replace(now, vpp=vpp or now.vpp, micro_batches=count, forward=forward, backward=backward)
    rest = now.phase - now.window(overhead)
    saved = now.phase - (new.window(overhead) + rest)
    return _shifted(rebuilt, now.starts_ns, round(saved))


def _pipeline(rebuilt: Rebuilt) -> _Pipeline:
    """The job's pipelines as one: the mean over replicas. ValueError, one line, where it cannot be told."""
    facts = rebuilt.ranks[0].facts
    if facts.pp is None or facts.micro_batches is None:
        raise ValueError("stages and micro-batches are not known: give them with --set pp=N micro_batches=N")
    pp, vpp, count = facts.pp, facts.vpp or 1, facts.micro_batches
    if pp < 2:
        raise ValueError("the job has one pipeline stage")
    stages = _stages(rebuilt, pp)
    if not all(stages):
        raise ValueError("not every stage of the pipeline is among the ranks that were joined")
    if any(not len(r.passes) for r in rebuilt.ranks):
        raise ValueError("no range of the capture shows the passes of micro-batches")
    times = schedule(rebuilt.graph)
    took = [_pass_ns(rebuilt, times, i, count * vpp) for i in range(len(rebuilt.ranks))]
    if len({len(t[3]) for t in took}) > 1:
        raise ValueError("ranks show different numbers of steps")
    ends = np.max([t[2][:, 0] for t in took], axis=0)
    begins = np.min([t[2][:, 1] for t in took], axis=0)
    return _Pipeline(
        vpp=vpp,
        micro_batches=count,
        forward=tuple(float(np.mean([took[r][0] for r in ranks])) for ranks in stages),
        backward=tuple(float(np.mean([took[r][1] for r in ranks])) for ranks in stages),
        starts_ns=np.min([t[3] for t in took], axis=0),
        phase=float(np.mean(ends - begins)),
        ranks_of_stage=stages,
    )


def _stages(rebuilt: Rebuilt, pp: int) -> tuple[tuple[int, ...], ...]:
    """Indices of ranks by stage; stages are the slowest of Megatron's rank order."""
    world = rebuilt.ranks[0].facts.world_size
    if world is None or world % pp or any(r.rank is None for r in rebuilt.ranks):
        raise ValueError("which rank is which stage is not known")
    per_stage = world // pp
    return tuple(
        tuple(i for i, r in enumerate(rebuilt.ranks) if r.rank is not None and r.rank // per_stage == stage)
        for stage in range(pp)
    )


def _pass_ns(rebuilt: Rebuilt, times: Schedule, rank: int, per_step: int) -> tuple[float, float, I64, I64]:
    """Mean forward, mean backward; (end, start) of every whole step's phase, all as the graph runs now; and
    when the phase was begun as measured.

    A pass lasts from its first to its last computation.
    """
    graph, frame = rebuilt.graph, rebuilt.ranks[rank]
    passes = frame.passes
    mine = np.flatnonzero((graph.rank == rank) & (rebuilt.launch_ns >= 0))
    at = passes.at(rebuilt.launch_ns[mine])
    inside, at = mine[at >= 0], at[at >= 0]
    counts = (graph.kind[inside] == TaskKind.COMPUTE) | (
        rebuilt.on_host[inside] & (graph.kind[inside] == TaskKind.HOST)
    )
    own, which = inside[counts], at[counts]
    if not len(own):
        raise ValueError("no work of the capture lies in the passes")
    begin = np.full(len(passes), np.iinfo(np.int64).max, np.int64)
    finish = np.full(len(passes), np.iinfo(np.int64).min, np.int64)
    np.minimum.at(begin, which, times.start_ns[own])
    np.maximum.at(finish, which, times.end_ns[own])
    ran = finish > begin
    length = np.where(ran, finish - begin, 0)
    steps = np.searchsorted(np.array(frame.step_starts_ns, np.int64), passes.start_ns, "right") - 1
    # A step that the window cuts, or that evaluates, has another number of passes.
    counted = np.bincount(steps[(steps >= 0) & ran], minlength=len(frame.step_starts_ns))
    full = np.flatnonzero(counted == 2 * per_step).tolist()
    chosen = np.isin(steps, full) & ran
    forward, backward = chosen & passes.is_forward, chosen & ~passes.is_forward
    if not full or not forward.any() or not backward.any():
        raise ValueError(f"no step of the capture shows {per_step} forward and {per_step} backward passes")
    ends = np.array([[finish[m].max(), begin[m].min()] for m in (chosen & (steps == s) for s in full)])
    cuts = np.array([passes.start_ns[chosen & (steps == s)].min() for s in full], np.int64)
    return float(length[forward].mean()), float(length[backward].mean()), ends, cuts


def _overhead(now: _Pipeline) -> float:
    """Added to every pass it makes the layout as long as the phase; 0 where that is shorter as it is."""
    low, high = 0.0, now.phase
    if now.window(0.0) >= now.phase:
        return 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if now.window(middle) < now.phase else (low, middle)
    return low


def _message_ns(rebuilt: Rebuilt) -> float:
    """What a message between stages takes once both sides are there; infinite where none is seen."""
    graph = rebuilt.graph
    ours = (graph.kind == TaskKind.COMMUNICATION) & (rebuilt.dimension == DIMENSIONS.index("pp"))
    return float(graph.duration_ns[ours].mean()) if ours.any() else float("inf")


def _shifted(rebuilt: Rebuilt, starts_ns: I64, saved_ns: int) -> Rebuilt:
    """Everything from the start of each step's phase on comes earlier by so much."""
    graph, edges = rebuilt.graph, rebuilt.graph.edges
    passed = np.searchsorted(np.sort(starts_ns), rebuilt.start_ns, "right")
    lag = edges.lag_ns - saved_ns * np.maximum(passed[edges.target] - passed[edges.source], 0)
    held = graph.release_ns > NO_RELEASE
    release = np.where(held, np.where(held, graph.release_ns, 0) - saved_ns * passed, NO_RELEASE)
    return replace(rebuilt, graph=replace(graph, release_ns=release, edges=replace(edges, lag_ns=lag)))
