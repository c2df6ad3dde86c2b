"""The whole job as a model: what a step takes, as it was captured and with other settings.

A step is the schedule of its passes (`run_schedule`), what of the gradients' reduction outlasts it, and
the rest: optimizer, loading, weights gathered with no compute beside them. The rest is measured. The model
of the unedited job is held against the measured step; its error is that of every prediction, and stays in
it as it is.

Cost follows stages, chunks and micro-batches, and no number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from perfdoc.records import dataclass
from perfdoc.simulator.job.network import Network
from perfdoc.simulator.job.scaling import (
    Link,
    check_possible,
    link_with,
    recomputing,
    updated_frac,
    work_factors,
)
from perfdoc.simulator.job.schedule import Window, run_schedule
from perfdoc.simulator.job.settings import JobSettings
from perfdoc.simulator.job.stages import NOTHING, Stage, Work, mean_of
from perfdoc.simulator.work.rank import INSIDE_A_PASS
from perfdoc.traces.known_models import ModelShape

_KEPT = 10_000


@dataclass(frozen=True, kw_only=True)
class JobModel:
    """A job as it was captured. Times in ns, of one step."""

    settings: JobSettings
    shape: ModelShape | None
    stages: tuple[Stage, ...]
    message_ns: float
    """Between stages, once both sides are there."""
    network: Network
    on_host: bool
    """Whether ranks train on the CPU, where communication and compute share cores."""
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
        check_possible(base, new, self.shape, on_host=self.on_host)
        network = self.network
        slower = {name: network.slower(name, base, new) for name in INSIDE_A_PASS if getattr(new, name) > 1}
        factors = work_factors(base, new, network.latency_frac, slower)
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
        one = Work(tp=self.network.takes(moved, crosses=self.network.crosses("tp", new)))
        return one * 2, one, one

    def _activations(self, new: JobSettings) -> float:
        if self.activation_bytes is None:
            raise ValueError("what is sent is unknown: give the model, seq, mbs and dtype with --set")
        return self.activation_bytes * new.tokens / self.settings.tokens

    def _message(self, new: JobSettings) -> float:
        """Between stages; where there was one stage only, as long as others of its size. With sequence
        parallelism a rank sends its part of the activations."""
        base, network = self.settings, self.network
        if new.pp > 1 and base.pp == 1:
            part = 1 / new.tp if new.sequence_parallel else 1.0
            return network.takes(self._activations(new) * part, crosses=network.crosses("pp", new))
        part = base.tp / new.tp if new.sequence_parallel else 1.0
        return network.message_ns(self.message_ns, base, new, new.tokens / base.tokens * part)

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


def _layers(new: JobSettings, stages: Sequence[Stage]) -> Sequence[int]:
    return new.layers if all(new.layers) else [s.layers for s in stages]


def _composed(stages: Sequence[Stage], new: JobSettings) -> list[Stage]:
    """Another number of stages, of layers as those between the ends have them."""
    first, last = stages[0], stages[-1]
    forward, backward = mean_of([(s.forward, s.backward) for s in stages[1:-1] or stages])
    found = []
    for i, n in enumerate(new.layers):
        ends = NOTHING
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
