"""A failed allocation ends the run. If no cheaper memory saving is left, weights and activations must be
split over more ranks."""

from perfdoc.results.figures import gib, per_cent
from perfdoc.results.memory import DeviceMemory
from perfdoc.rules.engine.advise import Advice, advise, all_or_none, needing, settle
from perfdoc.rules.engine.rule import Case, Meta, Verdict, informs, passes, skips
from perfdoc.rules.facts.bubble import overlapped_messages
from perfdoc.rules.facts.degrees import (
    CP,
    EP,
    PP,
    TP,
    VPP,
    degrees_of,
    experts_of,
    heads_of,
    hidden_size_of,
    layers_of,
    nvlink_domain,
    sequence_of,
    uses_fsdp,
)
from perfdoc.rules.facts.memory_need import fits
from perfdoc.rules.facts.memory_relief import pieces
from perfdoc.rules.facts.memory_room import NEEDS, shortage

META = Meta(
    title="Parallel mapping runs out of memory",
    action="Save memory, or split the model further",
    sources=(
        "Megatron-Bridge guide",
        "NeMo guide",
        "LLM training guide",
        "Megatron-LM guide",
        "megatron-core notes",
    ),
    topic="parallel_mapping",
    needs=NEEDS,
    advice=(
        "pm_tp_when_too_big",
        "pm_table_too_big",
        "pm_pp_when_tp_not_enough",
        "pm_table_pp",
        "pm_cp_when_long",
        "pm_table_long_seq",
        "mlm_12",
        "moe_ep_over_pp",
        "moe_ep_purpose",
        "mlm_quick_mem",
        "mlm_ts_oom",
        "pm_table_moe",
    ),
)

ACTIVATIONS_FRAC = 0.5
"""Of the peak: with this share in activations, activations must be split."""


def evaluate(case: Case) -> Verdict:
    """Fires, as information next to PD502, if memory runs out and no setting is left, or may be, that costs
    no ranks. In order: context parallelism, if activations are `ACTIVATIONS_FRAC` of the peak and the
    sequence is longer than the hidden size; expert, then tensor parallelism inside the NVLink domain; the
    pipeline, with virtual stages."""
    short = shortage(case)
    if not short.is_one:
        return passes(short.evidence)
    measured = [d for d in ([] if case.memory is None else case.memory.devices) if d.peak_reserved_bytes]
    if not measured:
        return skips("no memory snapshot has the reserved memory")
    for job, may in ((case, "are"), (case.if_unset, "may be")):
        if any(not p.forbidden for p in settle(job, pieces(job, short.worst))):
            return passes(short.evidence, f"settings that cost no ranks {may} left: see PD502")
    worst = max(measured, key=lambda d: (d.oom_events or 0, d.peak_reserved_bytes or 0))
    evidence = [*short.counts, ("peak of reserved memory", gib(worst.peak_reserved_bytes or 0, 4))]
    free = [f for d in measured if (f := _free_frac(d)) is not None]
    if free:
        evidence.append(("headroom of the fullest device", per_cent(min(free))))
    advice = all_or_none(case, _next(case, worst))
    return informs(
        reason=f"{short.reason}, and no setting that costs no ranks is known to be left",
        evidence=evidence,
        advice=advice,
        remedy=_FIRST if advice else f"{_OTHERWISE} {_FIRST}",
        otherwise=_OTHERWISE,
        verify="Run again with a memory snapshot: no allocation fails, with a tenth of the device as "
        "headroom.",
        false_alarm="A failure that the program catches, such as a search for the largest batch.",
    )


_FIRST = "Check fragmentation (PD501) first: fixing it costs no ranks."
_OTHERWISE = "Use more GPUs, or split further by a degree that divides heads, layers and ranks."


def _free_frac(device: DeviceMemory) -> float | None:
    if device.headroom_bytes is None or not device.peak_reserved_bytes:
        return None
    return device.headroom_bytes / (device.headroom_bytes + device.peak_reserved_bytes)


def _next(case: Case, full: DeviceMemory) -> list[Advice]:
    """The first possible step only: one change at a time."""
    dp, tp, pp, cp = case.dp, case.degree(TP), case.degree(PP), case.degree(CP)
    if uses_fsdp(case):
        return []
    if not dp or dp % 2:
        return _more_expert_ranks(case, nvlink_domain(case))
    sequence, hidden = sequence_of(case), hidden_size_of(case)
    costs = f"data parallelism becomes {dp // 2}"
    long = sequence is not None and hidden is not None and sequence > hidden
    if cp and long and sequence and sequence % (4 * cp) == 0 and _activations_frac(full) >= ACTIVATIONS_FRAC:
        why = "halves the activations; for a sequence longer than the hidden size with less communication "
        why += "than tensor parallelism"
        return [advise(knob=CP, to=2 * cp, why=why, costs=costs)]
    heads, domain = heads_of(case), nvlink_domain(case)
    if experts := _more_expert_ranks(case, domain):
        return experts
    if tp and heads and domain and 2 * tp <= domain and heads % (2 * tp) == 0:
        wide = _tensor_ranks(case, tp, heads, domain)
        part = "halves" if wide == 2 * tp else f"leaves a {_PARTS.get(wide // tp, f'1/{wide // tp}')} of"
        why = f"{part} weights and activations of a GPU, inside the NVLink domain of {domain}"
        costs = f"data parallelism becomes {dp * tp // wide}; communication in every layer"
        found = [advise(knob=TP, to=wide, why=why, costs=costs)]
        if tp == 1 and case.is_set_to("sequence_parallel", False):
            why = "shards the activations that tensor parallelism replicates"
            found.append(advise(knob="sequence_parallel", to=True, why=why))
        return found
    layers = layers_of(case)
    if tp and pp and layers and layers % (2 * pp) == 0 and (widest := _widest(tp, heads, domain)):
        why = f"halves the layers of a GPU; {widest}"
        found = [advise(knob=PP, to=2 * pp, why=why, costs=f"{costs}; a pipeline bubble")]
        # Over half of the replicas a multiple of the two stages, as interleaving needs.
        if pp == 1 and layers % 4 == 0 and case.micro_batches_over(dp // 2 * 2):
            why = "halves the bubble of the new pipeline"
            found += needing(
                advise(knob=VPP, to=2, why=why, costs="twice the send/recv between stages"),
                overlapped_messages(case),
            )
        return found
    return []


def _widest(tp: int, heads: int | None, domain: int | None) -> str:
    """Why tensor parallelism cannot grow; empty where it can, or nobody knows."""
    if domain and 2 * tp > domain:
        return f"TP already fills the NVLink domain of {domain}"
    return f"{heads} heads do not divide by TP {2 * tp}" if heads and heads % (2 * tp) else ""


_PARTS = {4: "quarter", 8: "eighth"}


def _tensor_ranks(case: Case, tp: int, heads: int, domain: int) -> int:
    """The smallest degree with which the model is estimated to fit; twice the present one where none is known
    to."""
    now = degrees_of(case)
    wider = [tp << k for k in range(1, 8) if tp << k <= domain and heads % (tp << k) == 0]
    for wide in wider if now is not None else ():
        then = None if now is None else now.with_model_parallel(tp=wide, pp=now.pp)
        if now is not None and then is not None and fits(case, now, then) is not None:
            return wide
    return 2 * tp


def _more_expert_ranks(case: Case, domain: int | None) -> list[Advice]:
    """For a mixture of experts: splits only the experts, without a bubble."""
    now, experts = degrees_of(case), experts_of(case)
    if now is None or not experts or now.expert_dp is None or domain is None:
        return []
    if experts % (2 * now.ep) or now.expert_dp % 2 or 2 * now.ep * now.etp > domain:
        return []
    why = "halves the experts of a GPU, inside the NVLink domain and without a bubble"
    return [advise(knob=EP, to=2 * now.ep, why=why, costs="tokens travel further")]


def _activations_frac(device: DeviceMemory) -> float:
    made = device.composition
    if made is None or not device.peak_allocated_bytes:
        return 0.0
    return made.category_bytes.get("activations", 0) / device.peak_allocated_bytes
