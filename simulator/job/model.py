"""The whole job as a model: what a step takes, as it was captured and with other settings.

A step is the schedule of its passes (`run_schedule`), what of the gradients' reduction outlasts it, and
the rest: optimizer, loading, weights gathered with no compute beside them. The rest is measured. The model
of the unedited job is held against the measured step; its error is that of every prediction, and stays in
it as it is.

Cost follows stages, chunks and micro-batches, and no number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from perfdoc.simulator.job.data_parallel import Link, behind_ns, link_of, link_with, updated_frac
from perfdoc.simulator.job.network import Network, network_of
from perfdoc.simulator.job.rank import RankWork
from perfdoc.simulator.job.scaling import check_possible, recomputing, work_factors
from perfdoc.simulator.job.schedule import Window, run_schedule
from perfdoc.simulator.job.settings import JobSettings
from perfdoc.simulator.job.stages import Both, Stage, stages_of
from perfdoc.simulator.job.work import Work
from perfdoc.traces.job_facts import JobFacts
from perfdoc.traces.known_models import ModelShape

_ROUNDS = 12
_KEPT = 10_000
_INFERRED_MAX = 20.0
"""Output layers are not taken to be longer than so many times what their FLOPs say."""


@dataclass(frozen=True, kw_only=True)
class JobModel:
    """A job as it was captured. Times in ns, of one step."""

    settings: JobSettings
    shape: ModelShape | None
    stages: tuple[Stage, ...]
    message_ns: float
    """Between stages, once both sides are there."""
    network: Network
    activation_bytes: float | None
    """Of a micro-batch between two layers; None unknown."""
    overhead_ns: float
    """What every pass takes beyond its work."""
    dp: Link | None
    """Reduction of gradients and gathering of weights; None without."""
    reduced_after_ns: float
    """How long gradients are reduced after the last pass, as captured."""
    behind_ns: float
    """What of it is waiting for another replica, which is slower and was not captured."""
    optimizer_ns: float
    """What follows the reduction."""
    first_extra_ns: float
    """How much longer the first forward of a step takes in each chunk: its weights are gathered meanwhile."""
    rest_ns: float
    measured_ns: float
    """The mean step."""
    output_inferred: float | None
    """Where the last stage was not captured: what its output layer takes, over what its FLOPs say, so that
    the first stage waits for it as long as it did; None where it was captured, or there is one stage."""
    notes: tuple[str, ...] = ()

    @cached_property
    def modelled_ns(self) -> float:
        """The unedited step."""
        return self._step_ns(self.settings)

    @property
    def error_frac(self) -> float:
        """Modelled over measured, less 1."""
        return self.modelled_ns / self.measured_ns - 1

    def step_ns(self, new: JobSettings) -> float:
        """The step with other settings: the measured one, and what the model says that they change.
        ValueError, one line, where they cannot be modelled."""
        if new not in self._steps:
            if len(self._steps) >= _KEPT:
                self._steps.clear()
            self._steps[new] = self._step_ns(new)
        return self.measured_ns + self._steps[new] - self.modelled_ns

    @cached_property
    def _steps(self) -> dict[JobSettings, float]:
        """Settings that were tried: a band tries those between the captured ones and each."""
        return {self.settings: self.modelled_ns}

    @cached_property
    def _passes_ns(self) -> float:
        """The passes as captured; the next two likewise."""
        return self._window(self.settings, self.stages).length

    @cached_property
    def _exposed_ns(self) -> float:
        return self._exposed_dp(self.settings, self.stages)

    @cached_property
    def _gathered_ns(self) -> float:
        return self._gathered(self.settings, self.stages)

    def window(self, new: JobSettings) -> Window:
        """When each stage is done with its passes."""
        return self._window(new, self.stages_with(new))

    def stages_with(self, new: JobSettings) -> list[Stage]:
        """The stages under other settings: work scaled, layers spread anew."""
        base = self.settings
        check_possible(base, new, self.shape)
        factors = work_factors(base, new, self.network.latency_frac)
        if new.pp == base.pp:
            some = [replace(s, layers=n) for s, n in zip(self.stages, _layers(new, self.stages), strict=True)]
        else:
            some = _composed(self.stages, new)
        layer, at_first, at_last = self._reductions(new)
        return [
            replace(
                s,
                forward=factors.applied(s.forward) + layer,
                backward=factors.applied(recomputing(base.recompute, new.recompute, s.forward, s.backward))
                + layer,
                forward_ends=factors.applied(s.forward_ends) + at_first * (i == 0),
                backward_ends=factors.applied(s.backward_ends) + at_last * (i == new.pp - 1),
            )
            for i, s in enumerate(some)
        ]

    def _reductions(self, new: JobSettings) -> tuple[Work, Work, Work]:
        """TP where none was captured, all of it exposed: two all-reduces of the activations for a layer, one
        for the embedding and for the output layer's input gradient."""
        if self.settings.tp > 1 or new.tp == 1:
            return Work(), Work(), Work()
        moved = 2 * (new.tp - 1) / new.tp * self._activations(new)
        one = Work(tp=self.network.takes(moved))
        return one * 2, one, one

    def _activations(self, new: JobSettings) -> float:
        if self.activation_bytes is None:
            raise ValueError("what is sent is unknown: give the model, seq, mbs and dtype with --set")
        return self.activation_bytes * new.tokens / self.settings.tokens

    def _message(self, new: JobSettings) -> float:
        """Between stages; where there was one stage only, as long as others of its size."""
        if new.pp > 1 and self.settings.pp == 1:
            return self.network.takes(self._activations(new))
        return self.message_ns * new.tokens / self.settings.tokens

    def _window(self, new: JobSettings, stages: Sequence[Stage]) -> Window:
        takes = [s.takes(new.vpp) for s in stages]
        return run_schedule(
            micro_batches=new.micro_batches,
            forward=[[ns + self.overhead_ns for ns in t[0]] for t in takes],
            backward=[[ns + self.overhead_ns for ns in t[1]] for t in takes],
            message=self._message(new),
            overlap=new.messages_overlap,
            first_extra=[self._first_extra(new, stages)] * new.pp,
        )

    def _first_extra(self, new: JobSettings, stages: Sequence[Stage]) -> float:
        """Of each chunk: as captured, and what the settings change of the weights gathered meanwhile."""
        base = self.settings
        others = self.first_extra_ns * base.vpp - self._gathered_ns
        return max(others + self._gathered(new, stages), 0.0) / new.vpp

    def _gathered(self, settings: JobSettings, stages: Sequence[Stage]) -> float:
        link = link_with(self.dp, self.settings, settings, self.shape, self.network)
        if link is None or not settings.overlap_gather:
            return 0.0
        forward = sum(stages[0].takes(settings.vpp)[0])
        return link.gathered_in_forward(forward_ns=forward, layers=settings.layers[0])

    def _step_ns(self, new: JobSettings) -> float:
        stages = self.stages_with(new)
        window = self._window(new, stages)
        rest = self.rest_ns + self.optimizer_ns * (updated_frac(self.settings, new, self.shape) - 1)
        if self.behind_ns:
            rest += self.behind_ns * (window.length / self._passes_ns - 1)
        exposed = self._exposed_dp(new, stages) - self._exposed_ns
        return window.length + self.reduced_after_ns + exposed + rest

    def _exposed_dp(self, settings: JobSettings, stages: Sequence[Stage]) -> float:
        """What of the first stage's reductions and gathers lies outside of the passes."""
        link = link_with(self.dp, self.settings, settings, self.shape, self.network)
        if link is None:
            return 0.0
        backward = sum(stages[0].takes(settings.vpp)[1])
        after = link.reduction(overlaps=settings.overlap_reduce, backward_ns=backward)
        return after + link.gathering(overlaps=settings.overlap_gather)


def build_model(
    ranks: Sequence[RankWork], settings: JobSettings, shape: ModelShape | None, *, output: float | None = None
) -> JobModel:
    """Model the job of these ranks. ValueError, one line, where their stages are unknown.

    output: what the output layer of a last stage that was not captured takes, over what its FLOPs say;
    None: as the waits of the first stage show it.
    """
    stages = tuple(stages_of(ranks, settings, shape))
    at = next(i for i, s in enumerate(stages) if s.origin != "composed")
    numbers = set(stages[at].ranks)
    mine = [r for r in ranks if not numbers or r.rank in numbers]
    seen = max(mine, key=lambda r: r.step_ns)
    dp = link_of(seen.traffic)
    gathered_after = 0.0 if dp is None or settings.overlap_gather else dp.gather_ns
    model = JobModel(
        settings=settings,
        shape=shape,
        stages=stages,
        message_ns=_message_ns(_standing(ranks, stages), settings),
        network=network_of(seen.traffic, _sizes(settings)),
        activation_bytes=_activation_bytes(seen.facts, settings, shape),
        overhead_ns=0.0,
        dp=dp,
        reduced_after_ns=seen.reduced_after_ns,
        behind_ns=behind_ns(seen),
        optimizer_ns=max(seen.after_ns - seen.reduced_after_ns - gathered_after, 0.0),
        first_extra_ns=max(r.first_extra_ns for r in ranks),
        rest_ns=0.0,
        measured_ns=seen.step_ns,
        output_inferred=None,
    )
    if stages[-1].origin == "composed":
        model = _with_output(model, at, seen.window_ns, output)
    most = model.message_ns if settings.pp > 1 else seen.window_ns / max(2 * seen.passes, 1)
    overhead = _solved(lambda ns: _own_window(replace(model, overhead_ns=ns), at) - seen.window_ns, most)
    model = replace(model, overhead_ns=overhead)
    window = model.window(settings)
    if at == 0:
        rest = seen.step_ns - seen.window_ns - seen.reduced_after_ns
    else:
        rest = max(seen.step_ns - window.length - seen.reduced_after_ns, 0.0)
    return replace(model, rest_ns=rest)


def _own_window(model: JobModel, stage: int) -> float:
    window = model.window(model.settings)
    return window.end[stage] - window.start[stage]


def _with_output(model: JobModel, at: int, window_ns: float, given: float | None) -> JobModel:
    """The last stage's output layer as long as the captured stage's waits show it."""
    last = model.stages[-1]
    base: Both = (last.forward_ends, last.backward_ends)
    if not any(w.length for w in base):
        base = (last.forward, last.backward)

    def with_(times: float) -> JobModel:
        stage = replace(last, forward_ends=base[0] * times, backward_ends=base[1] * times)
        return replace(model, stages=(*model.stages[:-1], stage), output_inferred=times)

    if given is not None:
        return with_(given)
    return with_(_solved(lambda times: _own_window(with_(times), at) - window_ns, _INFERRED_MAX))


def _solved(over: Callable[[float], float], most: float) -> float:
    """Where a rising function crosses 0, between 0 and most; the end that comes nearest where it does not."""
    low, high = 0.0, most
    below, above = over(low), over(high)
    if below >= 0 or most <= 0:
        return low
    if above <= 0:
        return high
    for _ in range(_ROUNDS):
        # By the chord, but never close to an end: the function is linear in parts.
        share = min(max(-below / (above - below), 0.02), 0.98)
        middle = low + share * (high - low)
        value = over(middle)
        if abs(value) < 1.0:
            return middle
        if value < 0:
            low, below = middle, value
        else:
            high, above = middle, value
    return (low + high) / 2


def _layers(new: JobSettings, stages: Sequence[Stage]) -> Sequence[int]:
    return new.layers if all(new.layers) else [s.layers for s in stages]


def _mean(several: Sequence[Both]) -> Both:
    forward, backward = Work(), Work()
    for f, b in several:
        forward, backward = forward + f, backward + b
    return forward * (1 / len(several)), backward * (1 / len(several))


def _message_ns(ranks: Sequence[RankWork], settings: JobSettings) -> float:
    """The fastest message of a pipeline, the slowest of pipelines that wait for each other; a rank alone may
    have waited in each, so no slower than the network was for gradients and weights."""
    if settings.pp == 1:
        return 0.0
    fastest: dict[int, float] = {}
    for r in ranks:
        if r.message_ns is not None:
            place = (r.rank or 0) % ((r.world_size or 0) // settings.pp or 1)
            fastest[place] = min(fastest.get(place, r.message_ns), r.message_ns)
    seen = [max(fastest.values())] if fastest else []
    size = min((t.bytes for r in ranks for t in r.traffic if t.dimension == "pp" and t.bytes > 0), default=0)
    rates = [
        t.fast_ns / t.bytes
        for r in ranks
        for t in r.traffic
        if t.dimension == "dp" and t.collective == "all_gather" and t.bytes > size / 4
    ]
    by_rate = [size * min(rates)] if size and rates else []
    return min([*seen, *by_rate], default=0.0)


def _backward(stage: Stage, base: JobSettings, new: JobSettings) -> Work:
    return recomputing(base.recompute, new.recompute, stage.forward, stage.backward)


def _composed(stages: Sequence[Stage], new: JobSettings) -> list[Stage]:
    """Another number of stages, of layers as those between the ends have them."""
    first, last = stages[0], stages[-1]
    forward, backward = _mean([(s.forward, s.backward) for s in stages[1:-1] or stages])
    found = []
    for i, n in enumerate(new.layers):
        ends = (Work(), Work())
        if i == 0 and len(stages) > 1:
            ends = first.forward_ends, first.backward_ends
        if i == new.pp - 1:  # of a single stage nearly all of it is the output layer
            ends = ends[0] + last.forward_ends, ends[1] + last.backward_ends
        found.append(
            replace(
                first,
                layers=n,
                is_first=i == 0,
                forward=forward,
                backward=backward,
                forward_ends=ends[0],
                backward_ends=ends[1],
                origin="composed",
                ranks=(),
            )
        )
    return found


def _standing(ranks: Sequence[RankWork], stages: Sequence[Stage]) -> Sequence[RankWork]:
    """The ranks that the stages were made of."""
    numbers = {n for s in stages for n in s.ranks}
    return [r for r in ranks if r.rank in numbers] or ranks


def _sizes(settings: JobSettings) -> dict[str, int]:
    return {"tp": settings.tp, "cp": settings.cp, "ep": settings.ep, "dp": settings.replicas}


_WIDTHS = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 2}


def _activation_bytes(facts: JobFacts, settings: JobSettings, shape: ModelShape | None) -> float | None:
    width, length = _WIDTHS.get(facts.dtype or ""), facts.sequence_length
    if shape is None or width is None or length is None or facts.micro_batch_sequences is None:
        return None
    return settings.tokens * length * shape.hidden_size * width
