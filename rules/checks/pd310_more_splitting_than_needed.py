"""PD310: a model that is split over more GPUs than its memory asks for."""

from __future__ import annotations

from collections.abc import Callable

from perfdoc.analyzers.measure_device import RankMeasurement
from perfdoc.analyzers.memory.formula import Degrees
from perfdoc.results.figures import gib, per_cent
from perfdoc.results.rules import Advice, Evidence
from perfdoc.rules.engine.advise import advise, all_or_none
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.gain import ceiling
from perfdoc.rules.engine.rule import Meta, Verdict
from perfdoc.rules.facts.bubble import bubble_grows, without_chunks
from perfdoc.rules.facts.degrees import (
    PP,
    TP,
    UNKNOWN,
    batch_divides,
    degrees_of,
    layers_of,
    uses_fsdp,
    without_tensor_ranks,
)
from perfdoc.rules.facts.exposed import exposed_ns
from perfdoc.rules.facts.memory_need import FIT_FRAC, batch_of, device_bytes, fits

META = Meta(
    code="PD310",
    title="Model split further than memory asks for",
    why="Tensor parallelism communicates in every layer and a pipeline idles while it fills; data "
    "parallelism communicates once a step. The least splitting that fits is the fastest start.",
    sources=("seed 000", "seed 001", "seed 002", "seed 003", "seed 004"),
    topic="parallel_mapping",
    time=("exposed_comm.tp", "pipeline.bubble", "pipeline.transfer"),
    needs=("settings", "model", "hardware"),
    advice=(
        "pm_start_dp",
        "pm_table_fits",
        "pm_tp_reduces_weights_compute",
        "pm_verl_order",
        "pm_cp_shards_optimizer",
        "moe_ep_purpose",
        "moe_dp_replaces_cp",
        "mlm_13",
    ),
)

MIN_FRAC = 0.02
"""Of the window: exposed tensor- and pipeline-parallel communication, without what stages wait for uneven or
late ones, which PD305 is about. What costs less is left alone."""
_MAX_DEGREE = 1024


def evaluate(case: Case) -> Verdict:
    """Fires, as information, where splitting costs `MIN_FRAC` of the time and fewer tensor ranks or stages
    are estimated to fit in `memory_need.FIT_FRAC` of the device. Not where data parallelism is exposed and
    would cost as much more: its messages grow as the splitting falls."""
    now = degrees_of(case)
    if now is None:
        return Verdict(state="skipped", reason=UNKNOWN)
    if now.tp * now.pp == 1 or uses_fsdp(case):
        reason = "FSDP shards the weights" if now.tp * now.pp > 1 else "the model is not split"
        return Verdict(state="not_applicable", reason=reason)
    memory = device_bytes(case)
    if case.job.facts.model is None or memory is None:
        return Verdict(state="skipped", reason="the model's shape or the GPU's memory is not known")
    if batch_of(case, now) is None:
        return Verdict(state="skipped", reason="the batch or the sequence length is not known")
    cost_ns = _cost_ns(case)
    share = case.share(cost_ns)
    if share is None:
        return Verdict(state="skipped", reason="every window is empty")
    label = "exposed TP and PP communication, but for waiting for late stages, mean over ranks"
    evidence = [Evidence(label=label, value=per_cent(share))]
    if share < MIN_FRAC:
        return Verdict(state="passes", reason="splitting costs little here", evidence=evidence)
    found = _smallest_that_fits(case, now, share)
    if found is None:
        return Verdict(
            state="passes", reason="no smaller mapping is sure to fit and to gain", evidence=evidence
        )
    then, before, after = found
    advice = all_or_none(case, _advice(case, now, then))
    evidence += [
        Evidence(label="estimated memory of the fullest GPU, now", value=gib(before, ".3g")),
        Evidence(label=f"with TP {then.tp}, PP {then.pp}, DP {then.dp}", value=gib(after, ".3g")),
        Evidence(label="memory of a GPU", value=gib(memory, ".3g")),
    ]
    return Verdict(
        state="fires",
        level="information",
        reason=f"TP {now.tp} x PP {now.pp}, where TP {then.tp} x PP {then.pp} is estimated to fit in "
        f"{per_cent(FIT_FRAC, 0)} of the memory",
        evidence=evidence,
        advice=advice,
        remedy="" if advice else _OTHERWISE,
        otherwise=_OTHERWISE,
        gain=ceiling(case, cost_ns, "the exposed TP and PP communication, which DP adds to"),
        verify="Run again with a memory snapshot: it fits, and tokens per second rise.",
        false_alarm="The estimate assumes fused attention and evenly loaded experts; long sequences, other "
        "buffers or a larger batch to come may need the room. Guides that decide TP first end at the same "
        "point.",
    )


_OTHERWISE = "Take the smallest tensor- and pipeline-parallel degrees at which the model fits."


def _cost_ns(case: Case) -> Callable[[RankMeasurement], int]:
    """A rank's, waiting for late stages taken off where all stages were compared."""
    found = case.job.pipeline
    rows = found.stages if found.scope == "job" else ()
    late: dict[int | None, int] = {row.rank: row.late_peer_ns for row in rows if row.rank is not None}
    of_rank = {id(rank): device.rank for rank, device in zip(case.ranks, case.job.devices, strict=False)}

    def cost(rank: RankMeasurement) -> int:
        waits = late.get(of_rank.get(id(rank)), 0)
        return exposed_ns("tp")(rank) + max(0, exposed_ns("pp")(rank) - waits)

    return cost


def splits_too_far(case: Case) -> bool:
    """Whether this rule fires: then others need not say that the degrees are large."""
    return evaluate(case).state == "fires"


def _smallest_that_fits(case: Case, now: Degrees, share: float) -> tuple[Degrees, int, int] | None:
    """(the least split mapping that is estimated to fit, estimate now, estimate then); fewer stages go before
    fewer tensor ranks. None where none is known to fit, its bubble would be larger, or data parallelism would
    cost more than the share of the time that splitting takes."""
    layers = layers_of(case)
    if layers is None or max(now.tp, now.pp) > _MAX_DEGREE:
        return None
    options = [(tp * pp, pp, tp) for tp in _divisors(now.tp) for pp in _divisors(now.pp)]
    for _, pp, tp in sorted(o for o in options if o[0] < now.tp * now.pp):
        then = now.with_model_parallel(tp=tp, pp=pp)
        if then is None or then.expert_dp is None or not batch_divides(case, then.dp):
            continue
        if layers % (pp * then.vpp) or bubble_grows(case, now, then) > 0:
            continue
        if _more_exposed_dp(case, now, then) >= share:
            continue
        if (estimates := fits(case, now, then)) is not None:
            return then, *estimates
    return None


def _more_exposed_dp(case: Case, now: Degrees, then: Degrees) -> float:
    """Of the time, if what is exposed grows with a GPU's parameters: 4 % on TP 2 are 4 % more on TP 1."""
    times = (now.tp * now.pp) / (then.tp * then.pp)
    return (times - 1) * (case.share(exposed_ns("dp")) or 0.0)


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def _advice(case: Case, now: Degrees, then: Degrees) -> list[Advice]:
    found = []
    if then.pp < now.pp:
        if then.vpp < now.vpp:
            found += without_chunks(case)
        why = f"fewer stages, a smaller bubble; data parallelism becomes {then.dp}"
        found.append(advise(knob=PP, to=then.pp, why=why, costs="weights and layers of more stages on a GPU"))
    if then.tp < now.tp:
        found += without_tensor_ranks(case) if then.tp == 1 else []
        why = f"larger products, less communication in every layer; data parallelism becomes {then.dp}"
        found.append(advise(knob=TP, to=then.tp, why=why, costs="weights and activations are split less"))
    return found
