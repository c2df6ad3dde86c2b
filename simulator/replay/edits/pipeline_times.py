"""A job's pipeline as its graph runs it: what passes of every stage take, and what 1F1B makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.pipeline.layout import perfect_schedule
from perfdoc.simulator.engine import Schedule, TaskKind, schedule
from perfdoc.simulator.engine.graph import I64
from perfdoc.simulator.replay.rebuilt import Rebuilt

_HALVINGS = 40
Stages = tuple[tuple[int, ...], ...]
"""By stage, indices of ranks."""


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """Stages in order; times in ns."""

    vpp: int
    micro_batches: int
    forward: tuple[float, ...]
    """By stage: one micro-batch in one chunk, the mean of its chunks."""
    backward: tuple[float, ...]
    ends: tuple[tuple[float, float], ...]
    """By stage, of forward and of backward: the share of its passes that is no layer. On the first stage it
    is the embedding, in the first chunk; on the last the output, in the last chunk."""
    starts_ns: I64
    """When the first pass of each step was begun, over all stages, as measured."""
    phase: float
    """From there to the end of the last pass, as the graph runs; mean over steps."""
    ranks_of_stage: Stages

    def window(self, overhead: float) -> float:
        """What the schedule takes with this much more in every pass. ValueError where it is not defined."""
        found = perfect_schedule(
            vpp=self.vpp,
            micro_batches=self.micro_batches,
            forward=self._by_chunk(self.forward, 0, overhead),
            backward=self._by_chunk(self.backward, 1, overhead),
        )
        if found is None:
            raise ValueError(
                f"there is no schedule of {self.micro_batches} micro-batches on {len(self.forward)} stages "
                f"of {self.vpp} chunks"
            )
        return found.window

    def _by_chunk(self, takes: Sequence[float], direction: int, overhead: float) -> list[list[float]]:
        found = []
        for stage, mean in enumerate(takes):
            of_ends = self.ends[stage][direction] if stage in (0, len(takes) - 1) else 0.0
            each = [mean * (1 - of_ends) + overhead] * self.vpp
            each[0 if stage == 0 else -1] += mean * self.vpp * of_ends
            found.append(each)
        return found


def pipeline_of(rebuilt: Rebuilt) -> Pipeline:
    """The pipeline that takes longest, since all others wait for it in the end; where ranks of none are there
    for every stage, the mean of all that are. ValueError, one line, where it is unknown."""
    facts = rebuilt.ranks[0].facts
    if facts.pp is None or facts.micro_batches is None:
        raise ValueError("stages and micro-batches are unknown: give --set pp=N micro_batches=N")
    pp, vpp, count = facts.pp, facts.vpp or 1, facts.micro_batches
    if pp < 2:
        raise ValueError("the job has one pipeline stage")
    stages = stages_of(rebuilt, pp)
    if any(not len(r.passes) for r in rebuilt.ranks):
        raise ValueError("no range of the capture shows forward and backward passes")
    times = schedule(rebuilt.graph)
    took = [_pass_ns(rebuilt, times, i, count * vpp) for i in range(len(rebuilt.ranks))]
    if len({len(t[3]) for t in took}) > 1:
        raise ValueError("ranks show different numbers of steps")
    found: list[Pipeline] = []
    for of_stage in _replicas(rebuilt, stages):
        mine = [r for ranks in of_stage for r in ranks]
        ends = np.max([took[r][2][:, 0] for r in mine], axis=0)
        begins = np.min([took[r][2][:, 1] for r in mine], axis=0)
        found.append(
            Pipeline(
                vpp=vpp,
                micro_batches=count,
                forward=tuple(float(np.mean([took[r][0] for r in ranks])) for ranks in of_stage),
                backward=tuple(float(np.mean([took[r][1] for r in ranks])) for ranks in of_stage),
                ends=tuple(_ends(rebuilt, ranks[0]) for ranks in of_stage),
                starts_ns=np.min([t[3] for t in took], axis=0),
                phase=float(np.mean(ends - begins)),
                ranks_of_stage=of_stage,
            )
        )
    return max(found, key=lambda p: p.phase)


def _replicas(rebuilt: Rebuilt, stages: Stages) -> list[Stages]:
    """Ranks at the same place of every stage send to each other; all as one where none are whole."""
    per_stage = (rebuilt.ranks[0].facts.world_size or 0) // len(stages)
    places: dict[int, list[int]] = {}
    for ranks in stages:
        for r in ranks:
            places.setdefault((rebuilt.ranks[r].rank or 0) % per_stage, []).append(r)
    return [tuple((r,) for r in mine) for mine in places.values() if len(mine) == len(stages)] or [stages]


def stages_of(rebuilt: Rebuilt, pp: int) -> Stages:
    """Indices of ranks by stage, of each one at least; stages are the slowest of Megatron's rank order."""
    world = rebuilt.ranks[0].facts.world_size
    if not world or world % pp or any(r.rank is None for r in rebuilt.ranks):
        raise ValueError("the pipeline stage of each rank is unknown")
    per_stage = world // pp
    found: dict[int, list[int]] = {}
    for i, r in enumerate(rebuilt.ranks):
        found.setdefault((r.rank or 0) // per_stage, []).append(i)
    # What is given of a job may be any number; the ranks that are here are few.
    if len(found) < pp or max(found) >= pp:
        raise ValueError("not every pipeline stage is among the joined ranks")
    return tuple(tuple(found[stage]) for stage in range(pp))


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
        raise ValueError("the passes of the capture hold no work")
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


def _ends(rebuilt: Rebuilt, rank: int) -> tuple[float, float]:
    """Of what a rank computes in forward and in backward passes the share outside of layers; 0 where no range
    shows layers."""
    graph, frame = rebuilt.graph, rebuilt.ranks[rank]
    if not len(frame.layers):
        return 0.0, 0.0
    mine = np.flatnonzero((graph.kind == TaskKind.COMPUTE) & (graph.rank == rank) & (rebuilt.launch_ns >= 0))
    at = frame.passes.at(rebuilt.launch_ns[mine])
    mine, at = mine[at >= 0], at[at >= 0]
    took = graph.duration_ns[mine]
    outside = frame.layers.at(rebuilt.launch_ns[mine]) < 0
    of_forward = frame.passes.is_forward[at]
    shares = [took[d & outside].sum() / max(int(took[d].sum()), 1) for d in (of_forward, ~of_forward)]
    return float(shares[0]), float(shares[1])


def overhead_ns(now: Pipeline) -> float:
    """Added to every pass it makes the layout as long as the phase; 0 where that is shorter as it is."""
    low, high = 0.0, now.phase
    if now.window(0.0) >= now.phase:
        return 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if now.window(middle) < now.phase else (low, middle)
    return low


def message_ns(rebuilt: Rebuilt) -> float:
    """What a message between stages takes once both sides are there; infinite where none is seen."""
    graph = rebuilt.graph
    ours = (graph.kind == TaskKind.COMMUNICATION) & (rebuilt.dimension == DIMENSIONS.index("pp"))
    return float(graph.duration_ns[ours].mean()) if ours.any() else float("inf")
