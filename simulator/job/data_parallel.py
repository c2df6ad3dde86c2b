"""Gradients and weights over the replicas: what of it no compute hides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfdoc.simulator.job.network import Network
from perfdoc.simulator.job.rank import RankWork, Traffic
from perfdoc.simulator.job.scaling import held_parameters, moved_over_dp, replicated_parameters
from perfdoc.simulator.job.settings import JobSettings
from perfdoc.traces.known_models import ModelShape

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
