"""The stages of a pipeline: folded from the ranks that were captured, composed where none was.

A stage is its layers and what lies at its ends (embedding, output layer with the loss). Ranks of one stage
that work alike are one program. Where every stage of some pipelines was captured, the one that takes
longest is the job's: all others wait for it. A stage that nobody captured has the layers of those that
were; its output layer takes what its FLOPs take at the rate of the GEMMs that were seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np

from perfdoc.analyzers.memory.formula import parameters_of
from perfdoc.records import dataclass
from perfdoc.results.job_model import Origin
from perfdoc.simulator.job.settings import JobSettings
from perfdoc.simulator.work.rank import PassWork, RankWork
from perfdoc.traces.known_models import ModelShape

_FIXED_MAX_FRAC = 0.5


@dataclass(frozen=True, kw_only=True)
class Work:
    """Times in ns. The length is the longer of device and host, and idle time that no launch explains."""

    gemm: float = 0.0
    attention: float = 0.0
    other: float = 0.0
    tp: float = 0.0
    """Exposed communication of a dimension; likewise the next two."""
    cp: float = 0.0
    ep: float = 0.0
    idle: float = 0.0
    """Gaps that launches do not explain."""
    host: float = 0.0
    """What the host takes to issue it."""
    fixed: float = 0.0
    """Of compute: what its kernels or operators take whatever their size."""

    @property
    def compute(self) -> float:
        """Of all kinds."""
        return self.gemm + self.attention + self.other

    @property
    def busy(self) -> float:
        """What the device is busy for, or waits for communication."""
        return self.compute + self.tp + self.cp + self.ep

    @property
    def length(self) -> float:
        """From the first work to the last: launch-bound where the host takes longer than the device."""
        return max(self.busy, self.host) + self.idle

    def __add__(self, other: Work) -> Work:
        mine, its = vars(self), vars(other)  # fields() is ten times slower, and this runs by the million
        return Work(**{name: ns + its[name] for name, ns in mine.items()})

    def __mul__(self, factor: float) -> Work:
        return Work(**{name: ns * factor for name, ns in vars(self).items()})

    def scaled(self, factors: Mapping[str, float]) -> Work:
        """Each part times its factor, 1 where none is given."""
        return Work(**{name: ns * factors.get(name, 1.0) for name, ns in vars(self).items()})

    @classmethod
    def of(cls, measured: PassWork, chunks: int, *, on_host: bool) -> Self:
        """One micro-batch on a stage, from the mean pass of one of its chunks.

        chunks: on the stage. on_host: of a rank that trains on the CPU, whose host is the device.

        10 ms busy and 5 ms idle, of which the host explains 3 (it takes 13): length 15 = max(10, 13) + 2.
        """
        compute, exposed = measured.compute_ns, measured.exposed_ns
        busy = compute + sum(exposed.values())
        host = 0.0 if on_host else min(measured.host_ns or 0.0, busy + measured.idle_ns)
        whole = sum(measured.group_frac.values())
        frac = measured.group_frac if whole else {"gemm": 1.0}
        return cls(
            gemm=compute * frac.get("gemm", 0.0) * chunks,
            attention=compute * frac.get("attention", 0.0) * chunks,
            other=compute * frac.get("other", 0.0) * chunks,
            tp=exposed["tp"] * chunks,
            cp=exposed["cp"] * chunks,
            ep=exposed["ep"] * chunks,
            idle=(measured.idle_ns - max(host - busy, 0.0)) * chunks,
            host=host * chunks,
            fixed=min(measured.fixed_ns, _FIXED_MAX_FRAC * compute) * chunks,
        )


_LOSS_FRAC = 0.15
"""Cross entropy and its kin, on top of the output layer's GEMM: memory traffic of the logits."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One pipeline stage; work of one micro-batch."""

    layers: int
    is_first: bool
    forward: Work
    """Of one layer, like the next."""
    backward: Work
    forward_ends: Work
    """Of what is no layer: embedding on the first stage, output layer and loss on the last."""
    backward_ends: Work
    origin: Origin
    """captured: one rank. folded: several of them. composed: none."""
    ranks: tuple[int, ...]
    """Global ranks that it was measured on, those that are known."""
    spread_frac: float
    """Longest over shortest of its ranks, less 1."""

    def takes(self, chunks: int) -> tuple[list[float], list[float]]:
        """(forward, backward) by chunk. The embedding is in the first chunk, the output layer in the last."""
        found = []
        for layer, ends in ((self.forward, self.forward_ends), (self.backward, self.backward_ends)):
            each = layer * (self.layers / chunks)
            lengths = [each.length] * chunks
            lengths[0 if self.is_first else -1] = (each + ends).length
            found.append(lengths)
        return found[0], found[1]


def fold(ranks: Sequence[RankWork], settings: JobSettings) -> list[list[RankWork]]:
    """By stage the ranks that stand for it: those of the slowest pipeline of which every stage was captured,
    else all of them. ValueError where no rank's stage is known."""
    pp, world = settings.pp, ranks[0].world_size
    stages = [r.stage(pp) for r in ranks]
    if all(s is None for s in stages):
        raise ValueError("the pipeline stage of each rank is unknown: give --set world_size=N")
    by_place: dict[int, dict[int, RankWork]] = {}
    found: list[list[RankWork]] = [[] for _ in range(pp)]
    for r, stage in zip(ranks, stages, strict=True):
        if stage is not None:
            found[stage].append(r)
            if r.rank is not None and world and world % pp == 0:
                by_place.setdefault(r.rank % (world // pp), {})[stage] = r
    whole = [p for p in by_place.values() if len(p) == pp]
    if not whole:
        return found
    slowest = max(whole, key=lambda p: max(r.window_ns for r in p.values()))
    longest = max(r.window_ns for r in slowest.values())
    # Tensor and context ranks wait for each other in every pass: they are as slow, and average out noise.
    beside = settings.tp * settings.cp
    block = (slowest[0].rank or 0) // beside
    alike = [
        p
        for p in whole
        if (p[0].rank or 0) // beside == block
        or max(r.window_ns for r in p.values()) > (1 - _ALIKE_FRAC) * longest
    ]
    return [[p[stage] for p in alike] for stage in range(pp)]


_ALIKE_FRAC = 0.002


Both = tuple[Work, Work]
"""(forward, backward)."""


def stages_of(ranks: Sequence[RankWork], settings: JobSettings, shape: ModelShape | None) -> list[Stage]:
    """Every stage, in order. ValueError where no rank's stage is known."""
    pp, layers = settings.pp, [max(n, 1) for n in settings.layers]
    alike = shape is None or not shape.experts or shape.expert_layers in (None, shape.layers)
    folded = fold(ranks, settings)
    whole = {i: _mean_work(mine, settings.vpp) for i, mine in enumerate(folded) if mine}
    inner = [_per_layer(whole[i], NOTHING, layers[i]) for i in whole if 0 < i < pp - 1]
    ends: dict[int, Both] = {}
    for i, work in whole.items():
        if i in (0, pp - 1):
            frac = _outside_layers(folded[i])
            if frac is not None:
                ends[i] = _share(work, frac)
            elif inner:
                ends[i] = _beyond(work, mean_of(inner), layers[i])
            elif i == pp - 1 > 0 and 0 in whole and alike:
                # Of two stages the first has no more than the embedding beside its layers.
                ends[i] = _beyond(work, _per_layer(whole[0], NOTHING, layers[0]), layers[i])
            elif i == pp - 1:
                ends[i] = _limited(_output(work, layers[i], shape), work)
    own = {i: _per_layer(whole[i], ends.get(i, NOTHING), layers[i]) for i in whole}
    usual = mean_of(inner or list(own.values()))
    found = []
    for i in range(pp):
        lengths = [r.forward.length_ns + r.backward.length_ns for r in folded[i]]
        layer, at_ends = own.get(i, usual), ends.get(i, NOTHING)
        if i not in whole and i == pp - 1:
            at_ends = _output(usual, 1, shape)
        found.append(
            Stage(
                layers=layers[i],
                is_first=i == 0,
                forward=layer[0],
                backward=layer[1],
                forward_ends=at_ends[0],
                backward_ends=at_ends[1],
                origin="composed" if not lengths else "captured" if len(lengths) == 1 else "folded",
                ranks=tuple(r.rank for r in folded[i] if r.rank is not None),
                spread_frac=max(lengths) / min(lengths) - 1 if lengths else 0.0,
            )
        )
    return found


NOTHING: Both = (Work(), Work())


def _mean_work(ranks: Sequence[RankWork], chunks: int) -> Both:
    return mean_of(
        [
            (Work.of(r.forward, chunks, on_host=r.on_host), Work.of(r.backward, chunks, on_host=r.on_host))
            for r in ranks
        ]
    )


def mean_of(several: Sequence[Both]) -> Both:
    """The mean, part by part; at least one."""
    forward, backward = Work(), Work()
    for f, b in several:
        forward, backward = forward + f, backward + b
    return forward * (1 / len(several)), backward * (1 / len(several))


def _per_layer(whole: Both, ends: Both, layers: int) -> Both:
    return (whole[0] + ends[0] * -1) * (1 / layers), (whole[1] + ends[1] * -1) * (1 / layers)


def _outside_layers(ranks: Sequence[RankWork]) -> tuple[float, float] | None:
    fracs = [(r.forward.outside_layers_frac, r.backward.outside_layers_frac) for r in ranks]
    known = [(f, b) for f, b in fracs if f is not None and b is not None]
    return tuple(np.mean(known, axis=0).tolist()) if known else None


def _share(whole: Both, frac: tuple[float, float]) -> Both:
    return tuple(  # type: ignore[return-value]
        Work(gemm=w.gemm * f, attention=w.attention * f, other=w.other * f, host=w.host * f)
        for w, f in zip(whole, frac, strict=True)
    )


def _beyond(whole: Both, layer: Both, layers: int) -> Both:
    """What a stage takes beyond its layers."""
    return tuple(  # type: ignore[return-value]
        Work(gemm=max(w.length - (one * layers).length, 0.0)) for w, one in zip(whole, layer, strict=True)
    )


_ENDS_MAX_FRAC = 0.8


def _limited(ends: Both, whole: Both) -> Both:
    """No more than most of a pass."""
    return tuple(  # type: ignore[return-value]
        e * min(1.0, _ENDS_MAX_FRAC * w.length / e.length) if e.length else e
        for e, w in zip(ends, whole, strict=True)
    )


def _output(layers_work: Both, layers: int, shape: ModelShape | None) -> Both:
    """Output layer and loss at the rate of the GEMMs that were seen; nothing where the model is not known.

    A layer of 6 matrices of h x h takes 6 ms of GEMMs in the forward; V = 4 h: 4 ms, with the loss 4.6.
    """
    if shape is None or not shape.layers:
        return NOTHING
    dense, experts, table = parameters_of(shape)
    visited = experts * (shape.experts_per_token or 0) / (shape.experts or 1)
    of_layer = (dense + visited) / shape.layers
    forward, backward = (
        Work(gemm=w.gemm / layers * table / of_layer * (1 + _LOSS_FRAC)) for w in layers_work
    )
    return forward, backward
