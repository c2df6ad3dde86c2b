"""Doubling the tensor-parallel degree halves the GEMMs and leaves each layer's communication unchanged.
Beyond some degree GEMMs no longer hide it."""

from perfdoc.analyzers.memory.formula import Degrees
from perfdoc.analyzers.pipeline.layout import ideal_bubble_frac
from perfdoc.results.figures import per_cent
from perfdoc.rules.engine.advise import Advice, advise, all_or_none, needing
from perfdoc.rules.engine.needs import GPUS, WINDOW, several
from perfdoc.rules.engine.rule import Case, Meta, Verdict, informs, passes, skips
from perfdoc.rules.facts.bubble import overlapped_messages
from perfdoc.rules.facts.context_parallel import out_of_balance
from perfdoc.rules.facts.degrees import (
    CP,
    PP,
    TP,
    VPP,
    degrees_of,
    hidden_size_of,
    layers_of,
    leaves_nvlink,
    sequence_of,
    why_unknown,
)
from perfdoc.rules.facts.exposed import WITH_WAITS, ceiling_of_transfer, communication, judged, transfer_ns
from perfdoc.rules.facts.memory_need import too_large
from perfdoc.rules.facts.overlaps import tp_overlap_allowed
from perfdoc.rules.facts.smaller_mapping import splits_too_far

META = Meta(
    title="Tensor-parallel degree too large for its GEMMs",
    action="Lower the tensor-parallel degree",
    sources=("Megatron-Bridge guide", "NeMo guide", "LLM training guide", "megatron-core notes"),
    topic="parallel_mapping",
    time=("exposed_comm.tp",),
    with_it=WITH_WAITS,
    needs=(
        GPUS,
        several(
            "a tensor-parallel degree above 1, or unknown",
            lambda case: case.degree(TP),
            one="there is no tensor parallelism",
        ),
        WINDOW,
        communication("tp"),
    ),
    advice=("pm_tp_small_as_possible", "pm_combine_tp_cp", "pm_tp4pp2_over_tp8", "pm_table_long_seq"),
)

MIN_TP = 4
"""Whether two ranks can become one depends on memory (PD310)."""
MIN_TP_FOR_STAGES = 8
"""From here on half the degree with two stages is an alternative."""


def evaluate(case: Case) -> Verdict:
    """Fires, as information, if exposed TP communication takes `exposed.MIN_FRAC` of the time, the degree is
    `MIN_TP` or more, and no other mapping rule applies first. Half the degree is advised with CP 2 if the
    sequence is longer than the hidden size; else, from `MIN_TP_FOR_STAGES`, with two stages if their bubble
    is smaller than half of the exposed time."""
    nothing, evidence = judged(case, "tp")
    if nothing is not None:
        return nothing
    now = degrees_of(case)
    if now is None:
        return skips(why_unknown(case))
    evidence.append(("ranks of a tensor-parallel group", str(now.tp)))
    if now.tp < MIN_TP:
        return passes(evidence, f"a group of {now.tp} is small: whether the model fits one GPU, see PD310")
    if tp_overlap_allowed(case):
        return passes(evidence, "TP overlap is off, fix that first: see PD111")
    for code, reason, holds in _BEFORE:
        if holds(case):
            return passes(evidence, f"{reason}: see {code}")
    return informs(
        reason=f"GEMMs of a group of {now.tp} do not hide its communication",
        evidence=evidence,
        advice=all_or_none(case, _with_context(case, now)) or all_or_none(case, _with_stages(case, now)),
        remedy="Overlap the communication with GEMMs where possible (PD111), then compare: the best degree "
        "is the smallest at which the model fits.",
        otherwise="Use half the degree if memory allows.",
        gain=ceiling_of_transfer(case, "tp"),
        verify="Run both mappings for some twenty steps and compare tokens per second, not exposed time.",
        false_alarm="A very large hidden size: guides use TP 8 there, and advise against it for 70 B "
        "parameters.",
    )


_BEFORE = (
    ("PD313", "groups cross NVLink domains", leaves_nvlink),
    ("PD310", "the model fits on fewer ranks", splits_too_far),
    ("PD384", "context parallelism is hidden", out_of_balance),
)


def _with_context(case: Case, now: Degrees) -> list[Advice]:
    """With context parallelism already in use, PD384 compares the two."""
    sequence, hidden = sequence_of(case), hidden_size_of(case)
    if sequence is None or hidden is None or sequence <= hidden or now.cp != 1 or now.tp % 2:
        return []
    then = now.with_model_parallel(tp=now.tp // 2, pp=now.pp, cp=2)
    if sequence % 4 or too_large(case, now, then):
        return []
    why = f"TP {now.tp // 2} x CP 2 instead of TP {now.tp}: sequences ({sequence:,}) are longer than the "
    why += f"hidden size ({hidden:,}), and CP moves keys and values only"
    costs = "twice the weights per GPU; optimizer states stay sharded over DP x CP"
    return [
        advise(knob=TP, to=now.tp // 2, why=why, costs=costs),
        advise(knob=CP, to=2, why="keeps the activations per GPU unchanged"),
    ]


def _with_stages(case: Case, now: Degrees) -> list[Advice]:
    layers, micro_batches = layers_of(case), case.micro_batches
    exposed = case.share(transfer_ns(case, "tp")) or 0.0
    if (
        now.tp < MIN_TP_FOR_STAGES
        or now.tp % 2
        or now.pp != 1
        or not layers
        or layers % 2
        or not micro_batches
    ):
        return []
    chunks = 2 if layers % 4 == 0 and micro_batches % 2 == 0 else 1
    bubble = ideal_bubble_frac(pp=2, vpp=chunks, micro_batches=micro_batches)
    if bubble >= exposed / 2:
        return []
    why = f"TP {now.tp // 2} x PP 2 instead of TP {now.tp}: the bubble of {micro_batches} micro-batches is "
    why += f"{per_cent(bubble)} of the step"
    found = [
        advise(knob=TP, to=now.tp // 2, why=why),
        advise(knob=PP, to=2, why="keeps the weights per GPU unchanged", costs="a bubble, send/recv"),
    ]
    if chunks == 2:
        found += needing(
            advise(knob=VPP, to=2, why="halves the bubble", costs="twice the send/recv"),
            overlapped_messages(case),
        )
    return found
