"""The settings of a job that its model can change."""

from __future__ import annotations

from collections.abc import Sequence

from perfdoc.analyzers.memory.formula import Degrees
from perfdoc.analyzers.pipeline.layout import chunks_by_warm_up
from perfdoc.records import dataclass
from perfdoc.simulator.work.rank import RankWork, Traffic
from perfdoc.traces.job_facts import JobFacts

_STAGES_MAX = 4_096
_SHIFT_MAX = 4
"""Layers of a stage beyond an even share, or short of it."""


@dataclass(frozen=True, kw_only=True)
class JobSettings(Degrees):
    """Parallel degrees, batch and schedule of a job."""

    micro_batches: int
    """Of a step on each pipeline."""
    mbs: int
    """Sequences of a micro-batch; where that is unknown, 1 stands for the size as captured."""
    messages_overlap: bool
    """Whether send/recv between stages runs beside compute."""
    layers: tuple[int, ...]
    """Of each stage; 0 where they are unknown."""
    recompute: str
    """`none`, `selective` or `full`."""
    sharded_optimizer: bool
    overlap_reduce: bool
    """Whether gradients are reduced beside the last backward."""
    overlap_gather: bool
    """Whether weights are gathered beside the first forward."""
    sequence_parallel: bool = False
    """Whether activations between layers are split over TP, and with them what stages send."""

    @property
    def replicas(self) -> int:
        """Ranks that reduce a gradient together."""
        return self.dp * self.cp

    @property
    def tokens(self) -> float:
        """Of a micro-batch on a rank, in sequences: what most work is in proportion to."""
        return self.mbs / self.cp


def captured_settings(
    ranks: Sequence[RankWork], facts: JobFacts, messages_overlap: bool | None
) -> JobSettings:
    """The settings that a job was captured with. ValueError, one line, naming what is unknown and how to
    give it, or what the captures contradict.

    facts: what is known beside the captures; what is not follows from them where it can. messages_overlap:
    None where nobody says: with interleaving they do.
    """
    passes = {r.passes for r in ranks}
    if len(passes) > 1:
        raise ValueError(f"ranks show different numbers of forward passes: {sorted(passes)}")
    forwards = passes.pop()
    pp = facts.pp or next((len(r.group) for r in ranks if r.group), None)
    if pp is None and not any(t.dimension == "pp" for r in ranks for t in r.traffic):
        pp = 1
    if pp is None:
        raise ValueError("the number of pipeline stages is unknown: give --set pp=N")
    if not 1 <= pp <= _STAGES_MAX:
        raise ValueError(f"{pp:,} pipeline stages: at least 1, and no more stages than {_STAGES_MAX:,}")
    vpp, count = _chunks(ranks, facts, pp, forwards)
    return JobSettings(
        tp=facts.tp or 1,
        cp=facts.cp or 1,
        ep=facts.ep or 1,
        dp=facts.dp or 1,
        pp=pp,
        vpp=vpp,
        micro_batches=count,
        mbs=facts.micro_batch_sequences or 1,
        messages_overlap=vpp > 1 if messages_overlap is None else messages_overlap and vpp > 1,
        layers=_layers(ranks, facts, pp),
        recompute=facts.recompute or "none",
        sharded_optimizer=_any(ranks, "reduce_scatter"),
        overlap_reduce=_beside(ranks, ("reduce_scatter", "all_reduce")),
        overlap_gather=_beside(ranks, ("all_gather",)),
        # Without it activations are all-reduced.
        sequence_parallel=_any(ranks, "all_gather", "tp")
        if facts.sequence_parallel is None
        else facts.sequence_parallel,
    )


def _chunks(ranks: Sequence[RankWork], facts: JobFacts, pp: int, forwards: int) -> tuple[int, int]:
    """Chunks of a stage and micro-batches of a step: as given, as ranges number them, or as the order of
    passes shows them."""
    vpp, count = facts.vpp or (1 if pp == 1 else None), facts.micro_batches
    if vpp is None and count is None:
        numbered = {r.micro_batches for r in ranks}
        count = numbered.pop() if len(numbered) == 1 else None
    if vpp is None and count is None:
        vpp = chunks_by_warm_up(pp, forwards, ((r.stage(pp), r.leading) for r in ranks))
    if vpp is None and count is None:
        raise ValueError("virtual stages and micro-batches are unknown: give --set vpp=N (1 without)")
    vpp = vpp or forwards // (count or 1)
    count = count or forwards // vpp
    if count * vpp != forwards:
        raise ValueError(
            f"the captures show {forwards} forward passes in a step, not {count} micro-batches x {vpp} chunks"
        )
    return vpp, count


def spread_layers(layers: int, pp: int) -> tuple[int, ...]:
    """As even as can be, the first stages longer; zeros where the number is unknown."""
    each, rest = divmod(layers, pp)
    return tuple(each + (i < rest) for i in range(pp))


def uneven_split(layers: int, pp: int, first: int | None, last: int | None) -> tuple[int, ...] | None:
    """Layers by stage where both ends are named; None where the others cannot share the rest."""
    if pp == 1 or not layers or first is None or last is None:
        return None
    share, rest = layers // pp, layers - first - last
    if rest < 0 or (rest % (pp - 2) if pp > 2 else rest):
        return None
    found = (first, *[rest // max(pp - 2, 1)] * (pp - 2), last)
    return found if all(n > 0 and abs(n - share) <= _SHIFT_MAX for n in found) else None


def ends_near(share: int) -> list[int]:
    """Numbers of layers that an end stage is tried with, of an even share."""
    return [n for n in range(share - _SHIFT_MAX, share + _SHIFT_MAX + 1) if n > 0]


def _layers(ranks: Sequence[RankWork], facts: JobFacts, pp: int) -> tuple[int, ...]:
    """By stage: as ranges name them, else as even as the model's layers divide; of an unknown model stages
    that were not captured have as many as all that were. Zeros where nothing is known."""
    named = {stage: len(r.layers) for r in ranks if r.layers and (stage := r.stage(pp)) is not None}
    even = spread_layers(facts.model.layers if facts.model is not None else 0, pp)
    if facts.model is None and len(set(named.values())) == 1:
        even = (next(iter(named.values())),) * pp
    found = tuple(named.get(i, n) for i, n in enumerate(even))
    return found if all(found) else (0,) * pp


def _of(ranks: Sequence[RankWork], dimension: str, collectives: Sequence[str]) -> list[Traffic]:
    return [t for r in ranks for t in r.traffic if t.dimension == dimension and t.collective in collectives]


def _any(ranks: Sequence[RankWork], collective: str, dimension: str = "dp") -> bool:
    return bool(_of(ranks, dimension, (collective,)))


def _beside(ranks: Sequence[RankWork], collectives: Sequence[str]) -> bool:
    some = _of(ranks, "dp", collectives)
    whole = sum(t.per_step for t in some)
    return bool(some) and sum(t.per_step * t.in_passes_frac for t in some) > whole / 2
