"""Which ranks form a pipeline, and how its schedule is laid out: pp, vpp, micro-batches, and who says so."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.pipeline.pipeline_rank import PipelineRank
from perfdoc.analyzers.pipeline.pipeline_schedule import warm_up_forwards
from perfdoc.traces.job_facts import JobFacts


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


@dataclass(frozen=True, kw_only=True)
class Members:
    """A pipeline of which every stage was captured: positions of its ranks, first stage first."""

    positions: tuple[int, ...]


def find_layout(ranks: Sequence[PipelineRank], facts: JobFacts) -> Layout:
    """What was given; else the size of the pipelines' groups, and counts of passes in ranges."""
    sources = {n: facts.sources.get(n, "given") for n in ("pp", "vpp", "micro_batches") if getattr(facts, n)}
    pp, vpp, micro_batches = facts.pp or None, facts.vpp or None, facts.micro_batches or None
    sizes = {(len(r.group), r.group_source) for r in ranks if r.group}
    if pp is None and len({size for size, _ in sizes}) == 1:
        pp, sources["pp"] = min(sizes)
    forwards, numbers = _counted(ranks)
    if micro_batches is None and numbers is not None:
        micro_batches, sources["micro_batches"] = numbers, "ranges"
    if micro_batches is None and vpp is not None and forwards is not None and forwards % vpp == 0:
        micro_batches, sources["micro_batches"] = forwards // vpp, "ranges"
    if vpp is None and micro_batches is not None and forwards is not None and forwards % micro_batches == 0:
        vpp, sources["vpp"] = forwards // micro_batches, "ranges"
    notes = []
    if vpp is not None and micro_batches is not None and forwards not in (None, vpp * micro_batches):
        notes.append(
            f"the ranges show {forwards} forward passes in a step, not {vpp} x {micro_batches} of the layout"
        )
    return Layout(pp=pp, vpp=vpp, micro_batches=micro_batches, sources=sources, notes=tuple(notes))


def _counted(ranks: Sequence[PipelineRank]) -> tuple[int | None, int | None]:
    """Forward passes of a step, and micro-batches by their numbers; None where ranks or steps disagree."""
    forwards, numbers = set(), set()
    for rank in ranks:
        passes = rank.passes
        for step in np.unique(passes.step).tolist():
            mine = (passes.step == step) & passes.is_forward
            forwards.add(int(np.count_nonzero(mine)))
            named = passes.micro_batch[mine]
            numbers.add(len(np.unique(named)) if len(named) and (named >= 0).all() else 0)
    return (
        forwards.pop() if len(forwards) == 1 and forwards != {0} else None,
        numbers.pop() if len(numbers) == 1 and numbers != {0} else None,
    )


def find_pipelines(
    ranks: Sequence[PipelineRank], facts: JobFacts, pp: int
) -> tuple[list[Members], str, dict[int, int]]:
    """Complete pipelines, how their ranks were found, and the stage of every rank of which it is known."""
    grouped = [r.group if len(r.group) == pp else () for r in ranks]
    source = next((r.group_source for r, g in zip(ranks, grouped, strict=True) if g), "")
    stages = {i: g.index(r.rank) for i, (r, g) in enumerate(zip(ranks, grouped, strict=True)) if r.rank in g}
    keys: dict[int, object] = {i: grouped[i] for i in stages}
    if not stages:
        world = facts.world_size or max((r.world_size or 0 for r in ranks), default=0)
        numbers = [r.rank for r in ranks]
        if world and world % pp == 0 and None not in numbers and len(set(numbers)) == len(ranks):
            # megatron-core numbers stages outermost: rank = stage * (world / pp) + the rest.
            each = world // pp
            placed = [(i, n) for i, n in enumerate(numbers) if n is not None and n < world]
            stages = {i: n // each for i, n in placed}
            keys = {i: n % each for i, n in placed}
            source = "rank numbers, stages outermost"
    found: dict[object, dict[int, int]] = defaultdict(dict)
    for i, key in keys.items():
        found[key].setdefault(stages[i], i)
    complete = [
        Members(positions=tuple(at[s] for s in range(pp)))
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
    warm = set()
    for step in np.unique(passes.step).tolist():
        order = passes.is_forward[passes.step == step]
        warm.add(int(np.argmin(order)) if not order.all() else -1)
    if len(warm) != 1:
        return None
    # The forward that the first backward follows belongs to the steady phase.
    before = warm.pop() - 1
    behind = before if vpp == 1 else (before - (vpp - 1) * pp) // 2
    stage = pp - 1 - behind
    # Where all of a stage's forwards come first, the stages before it look the same.
    if not 0 <= stage < pp or (before + 1 >= micro_batches * vpp and stage > 0):
        return None
    expected = warm_up_forwards(pp=pp, vpp=vpp, stage=stage, micro_batches=micro_batches)
    return stage if expected == before else None
