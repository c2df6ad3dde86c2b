"""The model of a job made from its captured ranks: what they leave open is solved for.

A last stage that was not captured has the output layer that makes the captured one wait as long as it did;
passes have the overhead that makes the schedule as long as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from perfdoc.simulator.job.data_parallel import behind_ns, link_of
from perfdoc.simulator.job.model import JobModel
from perfdoc.simulator.job.network import crosses_domains, crossing_hops_frac, network_of, tiny_ns
from perfdoc.simulator.job.rank import RankWork
from perfdoc.simulator.job.settings import JobSettings
from perfdoc.simulator.job.stages import Both, Stage, stages_of
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
            _sizes(settings),
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


def _sizes(settings: JobSettings) -> dict[str, int]:
    return {"tp": settings.tp, "cp": settings.cp, "ep": settings.ep, "dp": settings.replicas}


_WIDTHS = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 2}


def _activation_bytes(facts: JobFacts, settings: JobSettings, shape: ModelShape | None) -> float | None:
    width, length = _WIDTHS.get(facts.dtype or ""), facts.sequence_length
    if shape is None or width is None or length is None or facts.micro_batch_sequences is None:
        return None
    return settings.tokens * length * shape.hidden_size * width
