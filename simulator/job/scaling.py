"""How work, and the communication of gradients and weights, follow the layout and the batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfdoc.analyzers.memory.formula import parameters_of
from perfdoc.records import dataclass
from perfdoc.simulator.job.network import Network
from perfdoc.simulator.job.settings import JobSettings
from perfdoc.simulator.job.stages import Work
from perfdoc.simulator.work.rank import RankWork, Traffic
from perfdoc.traces.known_models import ModelShape

_COMPUTE = ("gemm", "attention", "other")


@dataclass(frozen=True, kw_only=True)
class Factors:
    """What the parts of a pass are multiplied by."""

    by_part: Mapping[str, float]

    def applied(self, work: Work) -> Work:
        """The work so. Of compute, what kernels take whatever their size stays."""
        if not work.compute:
            return work.scaled(self.by_part)
        fixed = min(work.fixed / work.compute, 1.0)
        parts = {
            name: fixed + (1 - fixed) * factor if name in _COMPUTE else factor
            for name, factor in self.by_part.items()
        }
        return work.scaled(parts)


def work_factors(
    base: JobSettings,
    new: JobSettings,
    latency_frac: Mapping[str, float],
    slower: Mapping[str, float] | None = None,
) -> Factors:
    """From one layout to another. GEMMs follow tokens over TP, attention sequences over TP and CP; of TP
    communication each rank moves (tp - 1) / tp of the activations, whatever tp is, and the latency stays.

    slower: by dimension, what a byte takes over what it took; 1 where none is given.
    """
    tokens = new.tokens / base.tokens
    width = base.tp / new.tp

    def moved(name: str, new_size: int, base_size: int) -> float:
        stays = latency_frac.get(name, 0.0) if new_size > 1 else 0.0
        ring = ((new_size - 1) / new_size) / ((base_size - 1) / base_size) if base_size > 1 else 1.0
        return stays + (1 - stays) * tokens * ring * (slower or {}).get(name, 1.0)

    return Factors(
        by_part={
            "gemm": tokens * width,
            "attention": new.mbs / base.mbs * width * base.cp / new.cp,
            "other": tokens * width,
            "tp": moved("tp", new.tp, base.tp),
            "cp": moved("cp", new.cp, base.cp),
            "ep": moved("ep", new.ep, base.ep),
        }
    )


def recomputing(before: str, after: str, forward: Work, backward: Work) -> Work:
    """The backward of a layer with other recomputation: in `full`, it holds a forward.

    ValueError, one line, where only parts of the layers are recomputed, or no forward fits.
    """
    if before == after:
        return backward
    if {before, after} != {"none", "full"}:
        raise ValueError("what selective recomputation takes is not modelled")
    found = backward + forward * (1.0 if after == "full" else -1.0)
    if found.gemm < 0 or found.busy <= 0:
        raise ValueError("the backward passes are too short to hold a recomputed forward")
    return found


def held_parameters(settings: JobSettings, shape: ModelShape | None) -> tuple[float, float]:
    """(dense, of experts) on a rank; of a model that is not known in units of the whole."""
    dense, experts = 1.0, 0.0
    if shape is not None:
        dense, experts, table = parameters_of(shape)
        dense += 2 * table
    ranks = settings.tp * settings.pp
    return dense / ranks, experts / (ranks * settings.ep)


def moved_over_dp(settings: JobSettings, shape: ModelShape | None) -> float:
    """What a rank moves over DP when it reduces its gradients or gathers its weights once, in parameters.

    Experts have a replica on every ep-th rank of the replicas: with ep = dp none is moved.
    """
    dense, experts = held_parameters(settings, shape)
    r = settings.replicas
    each = max(r // settings.ep, 1)
    return dense * (r - 1) / r + experts * (each - 1) / each


def replicated_parameters(settings: JobSettings, shape: ModelShape | None) -> float:
    """Of a rank's parameters those that another rank holds too, which are reduced and gathered."""
    dense, experts = held_parameters(settings, shape)
    return dense * (settings.replicas > 1) + experts * (settings.replicas > settings.ep)


def check_possible(
    base: JobSettings, new: JobSettings, shape: ModelShape | None, *, on_host: bool = False
) -> None:
    """ValueError, one line, where nothing that was captured tells what the settings take, or the model
    does not divide so.

    on_host: of ranks that train on the CPU. There the all-reduces of TP wait at every layer for the slower
    process, and take cores from GEMMs: what gradients took once a step does not tell what they take.
    """
    for name, was, is_ in (("CP", base.cp, new.cp), ("EP", base.ep, new.ep), ("TP", base.tp, new.tp)):
        if was == 1 and is_ > 1 and (name != "TP" or on_host):
            raise ValueError(f"no communication over {name} was captured: what it takes is unknown")
    if min(new.tp, new.cp, new.ep, new.dp, new.pp, new.vpp, new.micro_batches, new.mbs) < 1:
        raise ValueError("a size is below 1")
    if len(new.layers) != new.pp:
        raise ValueError(f"{len(new.layers)} stages of layers for PP {new.pp}")
    if new.vpp > 1 and any(n % new.vpp for n in new.layers if n):
        raise ValueError(f"{max(new.layers)} layers of a stage do not divide into {new.vpp} chunks")
    if new.vpp > 1 and new.pp == 1:
        raise ValueError("virtual stages need more than one stage")
    if (new.vpp > 1 or new.pp != base.pp) and not all(new.layers):
        raise ValueError("the number of layers is unknown: give --set model=NAME")
    if shape is not None and new.tp != base.tp:
        if shape.attention_heads % new.tp:
            raise ValueError(f"TP {new.tp} does not divide {shape.attention_heads} heads")
        if shape.query_groups % new.tp and new.tp % shape.query_groups:
            raise ValueError(f"TP {new.tp} does not fit {shape.query_groups} query groups")


_GRADIENT_BYTES = 4
_BEHIND_MIN_FRAC = 0.01
_ALIKE = 4
"""Sizes of reductions and gathers that are compared differ by no more than this."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """A step's communication over DP where nobody is late; ns and counts."""

    reduce_ns: float
    reductions: float
    gather_ns: float
    gathers: float

    def scaled(self, moved: float, held: float) -> Link:
        """What is moved takes `moved` times as long; `held` times as many parameters, buckets of one size."""
        return Link(
            reduce_ns=self.reduce_ns * moved,
            reductions=self.reductions * held,
            gather_ns=self.gather_ns * moved,
            gathers=self.gathers * held,
        )

    def reduction(self, *, overlaps: bool, backward_ns: float) -> float:
        """What of the reduction follows the passes: all; with overlap what one micro-batch's backward does
        not cover, and at least the last bucket."""
        if not overlaps:
            return self.reduce_ns
        return max(self.reduce_ns - backward_ns, self.reduce_ns / max(self.reductions, 1.0))

    def gathering(self, *, overlaps: bool) -> float:
        """What of the gathering precedes the passes: all; with overlap the first bucket."""
        return self.gather_ns / max(self.gathers, 1.0) if overlaps else self.gather_ns

    def gathered_in_forward(self, *, forward_ns: float, layers: int) -> float:
        """By how much the first forward is longer with overlap: buckets are gathered one ahead.

        8 buckets of 1 ms, 4 layers of 2 ms: each layer hides one, so 8 - 1 - 4 = 3 ms. 2 buckets: the second
        is hidden behind the layers of the first.
        """
        count = max(self.gathers, 1.0)
        bucket = self.gather_ns / count
        hiding = min(count - 1, max(layers, 1))
        hidden = hiding * min(bucket, forward_ns / min(count, max(layers, 1)))
        return max(self.gather_ns - bucket - hidden, 0.0)


def link_of(traffic: Sequence[Traffic]) -> Link | None:
    """As one rank had it; None where it neither reduced nor gathered."""
    dp = [t for t in traffic if t.dimension == "dp"]
    reducing = [t for t in dp if t.collective in ("reduce_scatter", "all_reduce")]
    gathering = [t for t in dp if t.collective == "all_gather"]
    if not reducing and not gathering:
        return None
    return Link(
        reduce_ns=sum(t.per_step * t.fast_ns for t in reducing),
        reductions=sum(t.per_step for t in reducing),
        gather_ns=sum(t.per_step * t.fast_ns for t in gathering),
        gathers=sum(t.per_step for t in gathering),
    )


def link_with(
    link: Link | None, base: JobSettings, new: JobSettings, shape: ModelShape | None, network: Network
) -> Link | None:
    """The link with other settings. ValueError where it was not captured and nothing tells what it takes."""
    was, now = moved_over_dp(base, shape), moved_over_dp(new, shape)
    if link is not None and was > 0 and now == 0:
        return link.scaled(0.0, 0.0)
    if link is not None and was > 0:
        held = replicated_parameters(new, shape) / replicated_parameters(base, shape)
        return link.scaled(now / was * network.slower("dp", base, new), held)
    if base.replicas > 1 or now == 0:
        return link
    if shape is None:
        raise ValueError("no communication over DP was captured and the model is unknown: give --set model=")
    # An all-reduce of gradients, which a reduce-scatter and a gather of weights together take too.
    return Link(
        reduce_ns=network.takes(2 * now * _GRADIENT_BYTES, crosses=network.crosses("dp", new)),
        reductions=1.0,
        gather_ns=0.0,
        gathers=0.0,
    )


def updated_frac(base: JobSettings, new: JobSettings, shape: ModelShape | None) -> float:
    """Parameters that a rank's optimizer updates, over what it did."""
    return _updated(new, shape) / _updated(base, shape)


def _updated(settings: JobSettings, shape: ModelShape | None) -> float:
    dense, experts = held_parameters(settings, shape)
    if not settings.sharded_optimizer:
        return dense + experts
    return dense / settings.replicas + experts / max(settings.replicas // settings.ep, 1)


def behind_ns(rank: RankWork) -> float:
    """How long a rank waits for another replica to begin with the reduction: what that takes beyond the
    rate at which its weights are gathered. 0 below 1 % of its passes, and where nothing compares."""
    dp = [t for t in rank.traffic if t.dimension == "dp" and t.bytes > 0]
    waited = 0.0
    for one in dp:
        after = one.per_step * (1 - one.in_passes_frac)
        alike = [
            t.fast_ns / t.bytes
            for t in dp
            if t.collective == "all_gather" and one.bytes <= _ALIKE * t.bytes <= _ALIKE**2 * one.bytes
        ]
        if one.collective == "reduce_scatter" and alike:
            waited += after * max(one.mean_ns - min(alike) * one.bytes, 0.0)
    waited = min(waited, rank.reduced_after_ns)
    return waited if waited > _BEHIND_MIN_FRAC * rank.window_ns else 0.0
