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

from perfdoc.simulator.job.rank import RankWork, Traffic
from perfdoc.simulator.job.scaling import Link, check_possible, moved_frac, recomputing, work_factors
from perfdoc.simulator.job.schedule import Window, run_schedule
from perfdoc.simulator.job.settings import JobSettings
from perfdoc.simulator.job.stages import Both, Stage, stages_of
from perfdoc.simulator.job.work import Work
from perfdoc.traces.known_models import ModelShape

_ROUNDS = 12
_INFERRED_MAX = 20.0
"""Output layers are not taken to be longer than so many times what their FLOPs say."""


@dataclass(frozen=True, kw_only=True)
class JobModel:
    """A job as it was captured. Times in ns, of one step."""

    settings: JobSettings
    shape: ModelShape | None
    stages: tuple[Stage, ...]
    message_ns: float
    overhead_ns: float
    """What every pass takes beyond its work."""
    dp: Link | None
    """Reduction of gradients and gathering of weights; None without."""
    reduced_after_ns: float
    """How long gradients are reduced after the last pass, as captured."""
    first_extra_ns: float
    """How much longer the first forward of a step takes: its weights are gathered meanwhile."""
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
        return self.measured_ns + self._step_ns(new) - self.modelled_ns

    def window(self, new: JobSettings) -> Window:
        """When each stage is done with its passes."""
        return self._window(new, self.stages_with(new))

    def stages_with(self, new: JobSettings) -> list[Stage]:
        """The stages under other settings: work scaled, layers spread anew."""
        base = self.settings
        check_possible(base, new, self.shape)
        factors = work_factors(base, new)
        first, last = self.stages[0], self.stages[-1]
        if new.pp == base.pp:
            some = [replace(s, layers=n) for s, n in zip(self.stages, _layers(new, self.stages), strict=True)]
        else:
            inner = self.stages[1:-1] or self.stages
            layer = _mean([(s.forward, s.backward) for s in inner])
            some = []
            for i, n in enumerate(new.layers):
                ends = (Work(), Work())
                if i == 0:
                    ends = (first.forward_ends, first.backward_ends)
                if i == new.pp - 1:
                    ends = (ends[0] + last.forward_ends, ends[1] + last.backward_ends)
                some.append(
                    replace(
                        first,
                        layers=n,
                        is_first=i == 0,
                        forward=layer[0],
                        backward=layer[1],
                        forward_ends=ends[0],
                        backward_ends=ends[1],
                        origin="composed",
                        ranks=(),
                    )
                )
        return [
            replace(
                s,
                forward=factors.applied(s.forward),
                backward=factors.applied(recomputing(base.recompute, new.recompute, s.forward, s.backward)),
                forward_ends=factors.applied(s.forward_ends),
                backward_ends=factors.applied(s.backward_ends),
            )
            for s in some
        ]

    def _window(self, new: JobSettings, stages: Sequence[Stage]) -> Window:
        takes = [s.takes(new.vpp) for s in stages]
        extra = self.first_extra_ns * moved_frac(self.settings, new) * self.settings.vpp / new.vpp
        return run_schedule(
            micro_batches=new.micro_batches,
            forward=[[ns + self.overhead_ns for ns in t[0]] for t in takes],
            backward=[[ns + self.overhead_ns for ns in t[1]] for t in takes],
            message=self.message_ns * new.tokens / self.settings.tokens,
            overlap=new.messages_overlap,
            first_extra=[extra] * new.pp,
        )

    def _step_ns(self, new: JobSettings) -> float:
        stages = self.stages_with(new)
        window = self._window(new, stages)
        return window.length + self._beside(new, stages) + self.rest_ns

    def _beside(self, new: JobSettings, stages: Sequence[Stage]) -> float:
        """Reduction that outlasts the passes, as captured and as the settings change it."""
        if self.dp is None:
            if new.replicas > 1 and self.settings.replicas == 1:
                raise ValueError("no communication over DP was captured: what it takes is unknown")
            return self.reduced_after_ns
        now = self._exposed_dp(self.settings, list(self.stages))
        return self.reduced_after_ns + self._exposed_dp(new, stages) - now

    def _exposed_dp(self, settings: JobSettings, stages: Sequence[Stage]) -> float:
        """What the first stage's reductions and gathers leave exposed: all where nothing overlaps; else
        what the passes of one micro-batch do not cover, at least one bucket."""
        assert self.dp is not None
        frac = moved_frac(self.settings, settings)
        reduce_ns, gather_ns = self.dp.reduce_ns * frac, self.dp.gather_ns * frac
        forward, backward = (sum(t) for t in stages[0].takes(settings.vpp))
        exposed = 0.0
        for ns, count, overlaps, beside in (
            (reduce_ns, self.dp.reductions, settings.overlap_reduce, backward),
            (gather_ns, self.dp.gathers, settings.overlap_gather, forward),
        ):
            if count:
                exposed += max(ns - beside, ns / count) if overlaps else ns
        return exposed


def build_model(
    ranks: Sequence[RankWork], settings: JobSettings, shape: ModelShape | None, *, output: float | None = None
) -> JobModel:
    """Model the job of these ranks. ValueError, one line, where their stages are unknown.

    output: what the output layer of a last stage that was not captured takes, over what its FLOPs say;
    None: as the waits of the first stage show it.
    """
    stages = tuple(stages_of(ranks, settings, shape))
    at = next(i for i, s in enumerate(stages) if s.origin != "composed")
    mine = [r for r in ranks if not stages[at].ranks or r.rank in stages[at].ranks]
    seen = max(mine, key=lambda r: r.step_ns)
    model = JobModel(
        settings=settings,
        shape=shape,
        stages=stages,
        message_ns=_message_ns(ranks, settings),
        overhead_ns=0.0,
        dp=_dp_link(seen.traffic),
        reduced_after_ns=seen.reduced_after_ns,
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
    """The fastest message that was seen; a rank alone may have waited in each, so no slower than the
    network was for gradients and weights."""
    if settings.pp == 1:
        return 0.0
    seen = [r.message_ns for r in ranks if r.message_ns is not None]
    size = min((t.bytes for r in ranks for t in r.traffic if t.dimension == "pp" and t.bytes > 0), default=0)
    rates = [
        t.fast_ns / t.bytes
        for r in ranks
        for t in r.traffic
        if t.dimension == "dp" and t.collective == "all_gather" and t.bytes > size / 4
    ]
    by_rate = [size * min(rates)] if size and rates else []
    return min([*seen, *by_rate], default=0.0)


def _dp_link(traffic: Sequence[Traffic]) -> Link | None:
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
