"""Which ranks form a pipeline, how its schedule is laid out, and how that runs if nothing is in its way.

Passes of micro-batches run in a fixed order on every stage, each as soon as its stage is free and its input
is there; messages take no time. With equal stages the window is longer than a stage's own work by
(pp - 1) / (vpp * micro-batches) of it (Narayanan et al. 2021, arXiv 2104.04473): the bubble that no
implementation can avoid.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from perfdoc.analyzers.pipeline.passes import leading_forwards, numbered_micro_batches
from perfdoc.analyzers.pipeline.rank import PipelineRank
from perfdoc.records import dataclass
from perfdoc.results.waits import BY_NUMBERS
from perfdoc.traces.job_facts import JobFacts

Takes = float | Sequence[float]
Positions = tuple[int, ...]
"""Of the ranks of a pipeline of which every stage was captured, first stage first."""
MOST_PASSES = 400_000
"""A schedule of more passes is not laid out."""


def ideal_bubble_frac(*, pp: int, vpp: int, micro_batches: int) -> float:
    """Share of the pipeline's window that a perfect schedule with equal stages leaves idle.

    >>> ideal_bubble_frac(pp=4, vpp=1, micro_batches=8)  # (3 / 8) / (1 + 3 / 8)
    0.2727272727272727
    """
    return (pp - 1) / (vpp * micro_batches + pp - 1)


def warm_up_forwards(*, pp: int, vpp: int, stage: int, micro_batches: int, group: int | None = None) -> int:
    """Forward passes of a stage before the one that its first backward follows.

    group: micro-batches that a chunk takes before the next one's turn (microbatch_group_size_per_vp_stage);
    None as many as stages.
    """
    most = micro_batches * vpp
    before = 2 * (pp - stage - 1) + (vpp - 1) * (pp if group is None else group)
    return min(most, pp - stage - 1 if vpp == 1 else before)


@dataclass(frozen=True, kw_only=True)
class PerfectSchedule:
    """One step of a perfect schedule; times in the unit of the passes given."""

    window: float
    """From the start of the first pass to the end of the last."""
    own: tuple[float, ...]
    """By stage: the passes together."""

    def idle(self, stage: int) -> float:
        """What the window leaves over."""
        return self.window - self.own[stage]


def perfect_schedule(
    *, vpp: int, micro_batches: int, forward: Sequence[Takes], backward: Sequence[Takes]
) -> PerfectSchedule | None:
    """Lay out a step whose stages take `forward` and `backward` for one micro-batch in one chunk: a figure a
    stage, or where its chunks differ one for each of them.

    None where the schedule is not defined (interleaved, and the micro-batches are not a multiple of the
    stages) or has more than MOST_PASSES passes.
    """
    pp = len(forward)
    takes = {True: _by_chunk(forward, vpp), False: _by_chunk(backward, vpp)}
    if (vpp > 1 and micro_batches % pp) or 2 * pp * vpp * micro_batches > MOST_PASSES:
        return None
    orders = [pass_order(pp, vpp, stage, micro_batches) for stage in range(pp)]
    done: dict[tuple[bool, int, int, int], float] = {}
    free = [0.0] * pp
    at = [0] * pp
    # A stage goes on until it needs what another one has not done; some stage can always go on.
    waiting = set(range(pp))
    while waiting:
        moved = False
        for stage in sorted(waiting):
            while at[stage] < len(orders[stage]):
                is_forward, micro_batch, chunk = orders[stage][at[stage]]
                source = source_of(is_forward, micro_batch, chunk, stage, pp, vpp)
                if source is not None and source not in done:
                    break
                start = max(free[stage], 0.0 if source is None else done[source])
                free[stage] = start + takes[is_forward][stage][chunk]
                done[is_forward, micro_batch, chunk, stage] = free[stage]
                at[stage] += 1
                moved = True
            else:
                waiting.discard(stage)
        assert moved or not waiting, "the schedule has a dependency cycle"
    own = tuple(micro_batches * (sum(f) + sum(b)) for f, b in zip(*takes.values(), strict=True))
    return PerfectSchedule(window=max(free), own=own)


def _by_chunk(takes: Sequence[Takes], vpp: int) -> list[Sequence[float]]:
    return [t if isinstance(t, Sequence) else (t,) * vpp for t in takes]


def pass_order(pp: int, vpp: int, stage: int, micro_batches: int) -> list[tuple[bool, int, int]]:
    """(forward?, micro-batch, chunk) in the order in which a stage runs them."""
    group = pp if vpp > 1 else 1
    visits = [
        (first + i, chunk)
        for first in range(0, micro_batches, group)
        for chunk in range(vpp)
        for i in range(min(group, micro_batches - first))
    ]
    forwards = [(True, micro_batch, chunk) for micro_batch, chunk in visits]
    backwards = [(False, micro_batch, vpp - 1 - chunk) for micro_batch, chunk in visits]
    warm = warm_up_forwards(pp=pp, vpp=vpp, stage=stage, micro_batches=micro_batches)
    steady = [p for pair in zip(forwards[warm:], backwards, strict=False) for p in pair]
    return forwards[:warm] + steady + backwards[len(visits) - warm :]


def source_of(
    is_forward: bool, micro_batch: int, chunk: int, stage: int, pp: int, vpp: int
) -> tuple[bool, int, int, int] | None:
    """The pass that must be done before: the chunk before on the way forward, behind on the way back."""
    place = chunk * pp + stage
    if is_forward:
        return (True, micro_batch, *divmod(place - 1, pp)) if place > 0 else None
    if place == vpp * pp - 1:
        return True, micro_batch, chunk, stage
    return (False, micro_batch, *divmod(place + 1, pp))


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Sizes of the schedule; None unknown."""

    pp: int | None
    vpp: int | None
    micro_batches: int | None
    sources: dict[str, str]
    """Who says so, by field; `ranges` where passes were counted."""
    notes: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[str, ...]:
        """Fields that nothing tells."""
        values = {"pp": self.pp, "vpp": self.vpp, "micro_batches": self.micro_batches}
        return tuple(name for name, value in values.items() if value is None)


def find_layout(ranks: Sequence[PipelineRank], facts: JobFacts) -> Layout:
    """What was given; else the size of the pipelines' groups, counts of passes in ranges, and their order."""
    sources = {n: facts.sources.get(n, "given") for n in ("pp", "vpp", "micro_batches") if getattr(facts, n)}
    pp, vpp, micro_batches = facts.pp or None, facts.vpp or None, facts.micro_batches or None
    sizes = {(len(r.group), r.group_source) for r in ranks if r.group}
    if pp is None and len({size for size, _ in sizes}) == 1:
        pp, sources["pp"] = min(sizes)
    ranks = [r for r in ranks if r.passes_source == "ranges"]  # of those that messages tell some are missing
    forwards, numbers = counted_passes(ranks)
    if micro_batches is None and numbers is not None:
        micro_batches, sources["micro_batches"] = numbers, "ranges"
    if micro_batches is None and vpp is not None and forwards is not None and forwards % vpp == 0:
        micro_batches, sources["micro_batches"] = forwards // vpp, "ranges"
    if vpp is None and micro_batches is None and pp is not None and forwards is not None:
        world = facts.world_size
        stages = (stage_of(r.rank, r.group, world or r.world_size, pp) for r in ranks)
        warm_ups = zip(stages, (leading_forwards(r.passes) for r in ranks), strict=True)
        vpp = chunks_by_warm_up(pp, forwards, warm_ups)
        if vpp is not None:
            micro_batches = forwards // vpp
            sources |= dict.fromkeys(("vpp", "micro_batches"), "order of the passes")
    if vpp is None and micro_batches is not None and forwards is not None and forwards % micro_batches == 0:
        vpp, sources["vpp"] = forwards // micro_batches, "ranges"
    notes = []
    if vpp is not None and micro_batches is not None and forwards not in (None, vpp * micro_batches):
        notes.append(
            f"the ranges show {forwards} forward passes in a step, not {vpp} x {micro_batches} of the layout"
        )
    return Layout(pp=pp, vpp=vpp, micro_batches=micro_batches, sources=sources, notes=tuple(notes))


def chunks_by_warm_up(
    pp: int, forwards: int, warm_ups: Iterable[tuple[int | None, int | None]]
) -> int | None:
    """Model chunks of a stage, as the order of passes shows them; None where several numbers fit, or none.
    Several fit as well where a chunk's group of micro-batches may be larger than the stages are many.

    forwards: of a step on every stage. warm_ups: of ranks the stage and the forward passes before the first
    backward pass, None unknown. On the first of 4 stages those are 4 without chunks, 11 with two.
    """
    seen = {(stage, count) for stage, count in warm_ups if stage is not None and count is not None}
    if not seen:
        return None

    def fits(vpp: int, group: int) -> bool:
        each = forwards // vpp
        return all(
            count
            == min(
                forwards, 1 + warm_up_forwards(pp=pp, vpp=vpp, stage=stage, micro_batches=each, group=group)
            )
            for stage, count in seen
        )

    # megatron-core takes a last group that is smaller, but not than the stages are many.
    usual, any_group = set(), set()
    for vpp in (n for n in range(1, forwards + 1) if forwards % n == 0):
        each = forwards // vpp
        # A count below all forwards fits one group; where there is none, the largest fits if any does.
        groups = {pp}
        if vpp > 1:
            of_counts = {(count - 1 - 2 * (pp - stage - 1)) // (vpp - 1) for stage, count in seen}
            tried = {pp, each, *of_counts}
            groups = {g for g in tried if pp <= g <= each and not 0 < each % g < pp}
        fitting = [g for g in groups if fits(vpp, g)]
        usual |= {vpp for g in fitting if g == pp}
        any_group |= {vpp for _ in fitting}
    if len(any_group) != 1 or usual != any_group:
        return None
    (found,) = usual
    # All forwards first is also a schedule without chunks.
    return None if found > 1 and all(count == forwards for _, count in seen) else found


def stage_of(rank: int | None, group: Sequence[int], world_size: int | None, pp: int) -> int | None:
    """The stage of a rank by its pipeline's group, else by its number: megatron-core numbers stages
    outermost. None unknown."""
    if pp == 1:
        return 0
    if rank is None:
        return None
    if rank in group and len(group) == pp:
        return group.index(rank)
    if not world_size or world_size % pp or rank >= world_size:
        return None
    return rank // (world_size // pp)


def counted_passes(ranks: Sequence[PipelineRank]) -> tuple[int | None, int | None]:
    """Forward passes of a step, and micro-batches by their numbers; None where ranks or steps disagree."""
    forwards, numbers = set(), set()
    for rank in ranks:
        passes = rank.passes
        if len(passes):
            counts = np.bincount(passes.step, weights=passes.is_forward)
            forwards.update(counts[np.unique(passes.step)].astype(int).tolist())
            numbers.add(numbered_micro_batches(passes) or 0)
    return (
        forwards.pop() if len(forwards) == 1 and forwards != {0} else None,
        numbers.pop() if len(numbers) == 1 and numbers != {0} else None,
    )


def find_pipelines(
    ranks: Sequence[PipelineRank], facts: JobFacts, pp: int
) -> tuple[list[Positions], str, dict[int, int]]:
    """Complete pipelines, how their ranks were found, and the stage of every rank of which it is known."""
    grouped = [r.group if len(r.group) == pp else () for r in ranks]
    source = next((r.group_source for r, g in zip(ranks, grouped, strict=True) if g), "")
    stages = {i: g.index(r.rank) for i, (r, g) in enumerate(zip(ranks, grouped, strict=True)) if r.rank in g}
    keys: dict[int, object] = {i: grouped[i] for i in stages}
    if not stages:
        world = facts.world_size or max((r.world_size or 0 for r in ranks), default=0)
        numbers = [r.rank for r in ranks]
        if world and world % pp == 0 and None not in numbers and len(set(numbers)) == len(ranks):
            placed = [(i, n, stage_of(n, (), world, pp)) for i, n in enumerate(numbers) if n is not None]
            stages = {i: stage for i, _, stage in placed if stage is not None}
            # What is left of a number beside its stage is the same in one pipeline.
            keys = {i: n % (world // pp) for i, n, stage in placed if stage is not None}
            source = BY_NUMBERS
    found: dict[object, dict[int, int]] = defaultdict(dict)
    for i, key in keys.items():
        found[key].setdefault(stages[i], i)
    complete = [
        tuple(at[s] for s in range(pp))
        for at in found.values()
        if len(at) == pp and all(ranks[i].state == "measured" for i in at.values())
    ]
    return complete, source, stages


def stage_by_warm_up(rank: PipelineRank, layout: Layout) -> int | None:
    """The stage whose schedule begins with as many forwards as this rank's steps do; None where none does,
    or several do (fewer micro-batches than stages)."""
    passes = rank.passes
    pp, vpp, micro_batches = layout.pp, layout.vpp, layout.micro_batches
    if not len(passes) or pp is None or vpp is None or micro_batches is None:
        return None
    leading = leading_forwards(passes)
    if leading is None:
        return None
    # The forward that the first backward follows belongs to the steady phase.
    before = leading - 1
    behind = before if vpp == 1 else (before - (vpp - 1) * pp) // 2
    stage = pp - 1 - behind
    # Where all of a stage's forwards come first, the stages before it look the same.
    if not 0 <= stage < pp or (before + 1 >= micro_batches * vpp and stage > 0):
        return None
    expected = warm_up_forwards(pp=pp, vpp=vpp, stage=stage, micro_batches=micro_batches)
    return stage if expected == before else None
