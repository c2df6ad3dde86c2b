"""What other settings would gain by the job's model, with a band."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from perfdoc.records import dataclass
from perfdoc.results.replay import Gain
from perfdoc.simulator.job.model import JobModel
from perfdoc.simulator.job.network import crosses_domains, crossing_hops_frac, network_of, tiny_ns
from perfdoc.simulator.job.scaling import behind_ns, link_of
from perfdoc.simulator.job.settings import JobSettings
from perfdoc.simulator.job.stages import Both, Stage, Work, stages_of
from perfdoc.simulator.replay.unedited import ERROR_MAX_FRAC
from perfdoc.simulator.work.rank import RankWork
from perfdoc.traces.job_facts import JobFacts
from perfdoc.traces.known_models import ModelShape

_ROUNDS = 12
_INFERRED_MAX = 20.0
"""Output layers are not taken to be longer than so many times what their FLOPs say."""


def build_model(
    ranks: Sequence[RankWork],
    settings: JobSettings,
    shape: ModelShape | None,
    *,
    domain: int | None = None,
    output: float | None = None,
) -> JobModel:
    """Model the job of these ranks. ValueError, one line, where their stages are unknown.

    domain: GPUs of an NVLink domain; None: unknown, and groups keep their links.

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
    message_ns = _message_ns(_standing(ranks, stages), settings, domain)
    model = JobModel(
        settings=settings,
        shape=shape,
        stages=stages,
        message_ns=message_ns,
        network=network_of(
            seen.traffic,
            {"tp": settings.tp, "cp": settings.cp, "ep": settings.ep, "dp": settings.replicas},
            settings=settings,
            domain=domain,
            message_ns=message_ns,
            across_ns=_across_ns(ranks, domain),
        ),
        on_host=seen.on_host,
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


def _message_ns(ranks: Sequence[RankWork], settings: JobSettings, domain: int | None) -> float:
    """The fastest message of a pipeline, the slowest of pipelines that wait for each other; a rank alone may
    have waited in each, so no slower than the network was for gradients and weights, unless those stay inside
    an NVLink domain and messages do not."""
    if settings.pp == 1:
        return 0.0
    fastest: dict[int, float] = {}
    for r in ranks:
        if r.messages.quickest_ns is not None:
            place = (r.rank or 0) % ((r.world_size or 0) // settings.pp or 1)
            fastest[place] = min(fastest.get(place, r.messages.quickest_ns), r.messages.quickest_ns)
    seen = [max(fastest.values())] if fastest else []
    size = min((t.bytes for r in ranks for t in r.traffic if t.dimension == "pp" and t.bytes > 0), default=0)
    rates = [
        t.fast_ns / t.bytes
        for r in ranks
        for t in r.traffic
        if t.dimension == "dp" and t.collective == "all_gather" and t.bytes > size / 4
    ]
    alike = crossing_hops_frac(settings, domain) != 1 or crosses_domains("dp", settings, domain)
    latency = tiny_ns([t for r in ranks for t in r.traffic])
    by_rate = [latency + size * min(rates)] if size and rates and alike else []
    return min([*seen, *by_rate], default=0.0)


def _across_ns(ranks: Sequence[RankWork], domain: int | None) -> float | None:
    """The quickest message between two domains; None where none was captured, or nothing tells."""
    return min(
        (
            ns
            for r in ranks
            for peer, ns in r.messages.by_peer_ns.items()
            if domain and r.rank is not None and r.rank // domain != peer // domain
        ),
        default=None,
    )


def _standing(ranks: Sequence[RankWork], stages: Sequence[Stage]) -> Sequence[RankWork]:
    """The ranks that the stages were made of."""
    numbers = {n for s in stages for n in s.ranks}
    return [r for r in ranks if r.rank in numbers] or ranks


_WIDTHS = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 2}


def _activation_bytes(facts: JobFacts, settings: JobSettings, shape: ModelShape | None) -> float | None:
    width, length = _WIDTHS.get(facts.dtype or ""), facts.sequence_length
    if shape is None or width is None or length is None or facts.micro_batch_sequences is None:
        return None
    return settings.tokens * length * shape.hidden_size * width


_MS = 1e6
_SCHEDULE_FRAC = 0.10
"""Of what another schedule changes: passes differ between micro-batches."""
_COMPOSED_FRAC = 0.10
"""More, where stages were composed."""
_BATCH_FRAC = 0.4
"""Of what another size of micro-batch changes: that kernels are in proportion to it is taken for granted."""
_LAYOUT_FRAC = 0.5
"""Of what other degrees of parallelism change: likewise, and the network as it was seen."""
_RECOMPUTE_FRAC = 0.25
"""Of what recomputation changes: that a recomputed forward takes what a forward takes."""
_NOISE_MIN_FRAC = 0.002
_BEHIND_FRAC = 0.5
"""Of what the captured ranks waited for a replica that was not captured: where that is slow is unknown."""
_EXPLAINED = (0.67, 1.5)
"""An output layer over what its FLOPs say; outside of it the last stage may as well be slow all over."""


@dataclass(frozen=True, kw_only=True)
class Models:
    """The job as it most likely is, and as it may be as well."""

    model: JobModel
    others: tuple[JobModel, ...]

    @property
    def withheld(self) -> str:
        """Why nothing is predicted; empty where something is."""
        error = self.model.error_frac
        return f"the model's error is {error:+.1%}" if abs(error) > ERROR_MAX_FRAC else ""

    def gain(self, new: JobSettings) -> Gain:
        """What these settings save per step. ValueError, one line, where they cannot be modelled.

        Band: what each kind of change may be off by (independent, so they add as squares), the same from the
        other models, and the model's error or 0.2 % of the step, whichever is more.
        """
        model = self.model
        parts = list(_parts(model, new))
        half = math.hypot(*(frac * ns for frac, ns in parts)) if parts else 0.0
        noise = max(abs(model.error_frac), _NOISE_MIN_FRAC) * model.measured_ns
        noise += _BEHIND_FRAC * model.behind_ns
        mid = model.measured_ns - model.step_ns(new)
        gains = [mid, *(m.measured_ns - m.step_ns(new) for m in self.others)]
        return Gain(
            low_ms=round((min(gains) - half - noise) / _MS, 3),
            mid_ms=round(mid / _MS, 3),
            high_ms=round((max(gains) + half + noise) / _MS, 3),
            method="model",
            assumptions=list(_assumptions(model, new)),
        )


def build_models(
    ranks: Sequence[RankWork], settings: JobSettings, shape: ModelShape | None, *, domain: int | None = None
) -> Models:
    """The model, and those with what it leaves open decided otherwise. ValueError, one line. domain: see
    build_model."""
    model = build_model(ranks, settings, shape, domain=domain)
    others = []
    if model.output_inferred is not None and shape is not None:
        others.append(build_model(ranks, settings, shape, domain=domain, output=1.0))
    if model.output_inferred is not None and not _EXPLAINED[0] < model.output_inferred < _EXPLAINED[1]:
        others.append(_slow_all_over(model))
    if model.overhead_ns:
        others.append(replace(model, overhead_ns=0.0))
    if settings.pp > 1 and not settings.messages_overlap:
        others.append(replace(model, message_ns=2 * model.message_ns))
    return Models(model=model, others=tuple(others))


def _slow_all_over(model: JobModel) -> JobModel:
    """What the waits show of the last stage, in its layers and not behind them."""
    last = model.stages[-1]
    each = 1 / max(last.layers, 1)
    spread = replace(
        last,
        forward=last.forward + last.forward_ends * each,
        backward=last.backward + last.backward_ends * each,
        forward_ends=Work(),
        backward_ends=Work(),
    )
    return replace(model, stages=(*model.stages[:-1], spread))


def _parts(model: JobModel, new: JobSettings) -> Iterator[tuple[float, float]]:
    """(share that it may be off by, ns that it changes) of each kind of change, one made after the other."""
    base = model.settings
    composed = any(s.origin == "composed" for s in model.stages)
    schedule = _SCHEDULE_FRAC + (_COMPOSED_FRAC if composed else 0.0)
    layout = replace(
        base,
        tp=new.tp,
        cp=new.cp,
        ep=new.ep,
        dp=new.dp,
        pp=new.pp,
        vpp=base.vpp if new.pp == base.pp else new.vpp,
        layers=base.layers if new.pp == base.pp else new.layers,
        micro_batches=new.micro_batches if new.pp != base.pp or new.dp != base.dp else base.micro_batches,
        messages_overlap=base.messages_overlap if new.pp == base.pp else new.messages_overlap,
    )
    batch = replace(layout, mbs=new.mbs, micro_batches=new.micro_batches)
    recomputed = replace(batch, recompute=new.recompute)
    at, unsure = model.measured_ns, 0.0
    for frac, settings in (
        *((_LAYOUT_FRAC, layout), (_BATCH_FRAC, batch)),
        *((_RECOMPUTE_FRAC, recomputed), (schedule, new)),
    ):
        try:
            then = model.step_ns(settings)
        except ValueError:  # of the settings between, which nobody asks for: the next change has both
            unsure = max(unsure, frac)
            continue
        if then != at:
            yield max(frac, unsure), abs(then - at)
        at, unsure = then, 0.0


def _assumptions(model: JobModel, new: JobSettings) -> Iterator[str]:
    base = model.settings
    composed = [i for i, s in enumerate(model.stages) if s.origin == "composed"]
    if composed:
        some = "stage" if len(composed) == 1 else "stages"
        yield f"{some} {', '.join(map(str, composed))} of {base.pp} not captured: composed from the others"
        if model.shape is None and all(base.layers):
            yield f"{base.layers[composed[0]]} layers on each of them, as on those that were captured"
    if new.vpp > 1 and new.vpp != base.vpp:
        yield "model chunks share a stage's layers evenly; embedding and output layer stay at the ends"
        if new.messages_overlap:
            yield "send/recv overlaps with compute (overlap_p2p_comm)"
    if new.mbs != base.mbs:
        yield "kernel time beyond 2 µs each is proportional to the micro-batch"
    if new.recompute != base.recompute:
        yield "a recomputed forward of a layer takes what its forward takes"
    if (new.tp, new.cp, new.dp, new.pp) != (base.tp, base.cp, base.dp, base.pp):
        yield "kernels keep their efficiency, links their bandwidth"
