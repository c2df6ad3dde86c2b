"""PD314: tensor parallelism whose communication its products do not cover."""

from __future__ import annotations

from perfdoc.analyzers.memory.memory_formula import Degrees
from perfdoc.rules.bubble import ideal_frac, overlapped_messages
from perfdoc.rules.case import Case
from perfdoc.rules.degrees import (
    CP,
    PP,
    TP,
    UNKNOWN,
    VPP,
    batch_divides,
    degrees_of,
    hidden_size_of,
    layers_of,
    sequence_of,
)
from perfdoc.rules.exposed import ceiling_of_transfer, judged, transfer_ns
from perfdoc.rules.memory_need import fits, too_large
from perfdoc.rules.rule import Advice, Evidence, Meta, Verdict
from perfdoc.rules.together import all_or_none

META = Meta(
    code="PD314",
    title="Tensor parallelism too wide for its products",
    why="Every doubling of the tensor-parallel degree halves the products and leaves the communication of "
    "each layer as it is. Beyond the point where the one covers the other, GPUs wait.",
    sources=("seed 000", "seed 001", "seed 002", "seed 004"),
    topic="parallel_mapping",
    needs=("trace", "settings"),
    advice=("pm_tp_small_as_possible", "pm_combine_tp_cp", "pm_tp4pp2_over_tp8"),
)

MIN_TP = 4
"""Half of it is tried from here on; whether two ranks may become one is a matter of memory (PD310)."""
MIN_TP_FOR_STAGES = 8
"""Half of it against two stages."""


def evaluate(case: Case) -> Verdict:
    """Fires, as information, where exposed TP communication takes `exposed.MIN_FRAC` of the time and the
    degree is `MIN_TP` or more. Half the degree is advised alone where it is estimated to fit; with twice the
    context ranks where the sequence is longer than the model is wide; else, from `MIN_TP_FOR_STAGES`, with
    two stages whose bubble is smaller than half of what is exposed."""
    if case.degree(TP) == 1:
        return Verdict(state="not_applicable", reason="there is no tensor parallelism")
    nothing, evidence = judged(case, "tp")
    if nothing is not None:
        return nothing
    now = degrees_of(case)
    if now is None:
        return Verdict(state="skipped", reason=UNKNOWN)
    evidence.append(Evidence(label="ranks of a tensor-parallel group", value=str(now.tp)))
    if now.tp < MIN_TP:
        reason = f"a group of {now.tp} is small: whether one GPU holds the model is for PD310 to say"
        return Verdict(state="passes", reason=reason, evidence=evidence)
    return Verdict(
        state="fires",
        level="information",
        reason=f"products of a group of {now.tp} do not cover its communication",
        evidence=evidence,
        advice=next(filter(None, (all_or_none(case, way(case, now)) for way in _WAYS)), []),
        remedy="First let the communication run beside the products (the rules on exposed communication). "
        "Then compare: the best degree is the smallest at which the model fits.",
        otherwise="Take half the degree where memory allows it.",
        gain=ceiling_of_transfer(case, "tp"),
        verify="Run both mappings for some twenty steps and compare tokens per second, not exposed time.",
        false_alarm="A very wide model: guides use TP 8 for those and find it bad for 70 B parameters.",
    )


def _alone(case: Case, now: Degrees) -> list[Advice]:
    then = now.with_model_parallel(tp=now.tp // 2, pp=now.pp) if now.tp % 2 == 0 else None
    if then is None or not batch_divides(case, then.dp) or (found := fits(case, now, then)) is None:
        return []
    why = f"estimated to fit with {found[1] / 2**30:.3g} GiB; data parallelism becomes {then.dp}"
    return [Advice(knob=TP, to=now.tp // 2, why=why, costs="twice the weights and activations on a GPU")]


def _with_context(case: Case, now: Degrees) -> list[Advice]:
    sequence, hidden = sequence_of(case), hidden_size_of(case)
    if sequence is None or hidden is None or sequence <= hidden or now.cp != 1 or now.tp % 2:
        return []
    then = now.with_model_parallel(tp=now.tp // 2, pp=now.pp, cp=2 * now.cp)
    if sequence % (4 * now.cp) or too_large(case, now, then):
        return []
    why = f"TP {now.tp // 2} x CP {2 * now.cp} instead of TP {now.tp}: sequences of {sequence:,} are longer "
    why += f"than the model is wide ({hidden:,}), and CP moves keys and values only"
    costs = "each GPU holds twice the weights, optimizer states stay sharded over DP x CP"
    return [
        Advice(knob=TP, to=now.tp // 2, why=why, costs=costs),
        Advice(knob=CP, to=2 * now.cp, why="keeps the activations of a GPU as they are"),
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
    bubble = ideal_frac(pp=2, vpp=chunks, micro_batches=micro_batches)
    if bubble >= exposed / 2:
        return []
    why = f"TP {now.tp // 2} x PP 2 instead of TP {now.tp}: the bubble of {micro_batches} micro-batches is "
    why += f"{bubble:.1%} of the step"
    found = [
        Advice(knob=TP, to=now.tp // 2, why=why),
        Advice(knob=PP, to=2, why="keeps the weights of a GPU as they are", costs="a bubble, messages"),
    ]
    if chunks == 2:
        found += overlapped_messages(case)
        found.append(Advice(knob=VPP, to=2, why="halves the bubble", costs="twice the messages"))
    return found


_WAYS = (_alone, _with_context, _with_stages)
"""To halve the degree; the first that is possible."""
