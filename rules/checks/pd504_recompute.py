"""PD504: forwards that are done again although memory could keep their results."""

from __future__ import annotations

from perfdoc.analyzers.measure_device import RankMeasurement
from perfdoc.knobs.knob import Value
from perfdoc.results.figures import gib
from perfdoc.results.rules import Advice, Evidence
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.evidence import time_evidence
from perfdoc.rules.engine.gain import at_most, ceiling, predicted
from perfdoc.rules.engine.rule import Meta, Verdict
from perfdoc.rules.facts.capture import fused_attention_runs, why_hidden
from perfdoc.rules.facts.memory_relief import (
    GRANULARITY,
    LAYERS,
    METHOD,
    MODULES,
    cheap_modules,
    saved_layer_bytes,
    stage_layers,
)
from perfdoc.rules.facts.memory_room import Room, tightest, why_unknown
from perfdoc.rules.facts.model_memory import micro_batches_in_flight, vpp_of

META = Meta(
    code="PD504",
    title="Recomputation that memory may not need",
    why="A layer that is computed again in the backward costs its forward a second time, up to 30 % of a "
    "step where all layers are. Kept activations cost memory only.",
    sources=("seed 000", "seed 001", "seed 003", "seed 004"),
    topic="memory",
    needs=("trace", "settings"),
    advice=("mem_drop_recompute", "mem_attn_recompute_default", "mem_full_recompute", "mem_uniform_1"),
)

MIN_FRAC = 0.02
"""Of the window, mean over ranks: kernels that are run again for the backward."""


def evaluate(case: Case) -> Verdict:
    """Fires where recomputed kernels take `MIN_FRAC` of the window: as a problem where a snapshot shows
    memory for at least one layer more, else, without a snapshot, as information."""
    granularity = case.setting(GRANULARITY)
    off = granularity[0] and granularity[1] is None
    if off or (not granularity[0] and case.job.facts.recompute == "none"):
        return Verdict(state="not_applicable", reason="nothing is recomputed")
    if case.on_host:
        return Verdict(state="skipped", reason="on CPUs recomputed kernels are not told from others")
    if hidden := why_hidden(case):
        return Verdict(state="skipped", reason=hidden)
    unknown = next((r.kernel_parts for r in case.ranks if r.kernel_parts.recompute_ns is None), None)
    share = case.share(_again_ns)
    if unknown is not None or share is None:
        reason = unknown.recompute_reason if unknown is not None else "every window is empty"
        return Verdict(state="skipped", reason=reason or "which kernels are run again was not measured")
    evidence = time_evidence(case, "forward done again for the backward", share, _again_ns)
    if share < MIN_FRAC:
        return Verdict(state="passes", evidence=evidence)
    if _attention_alone(case):
        return _of_attention(case, evidence)
    room = tightest(case)
    if room is None:
        snapshot = f"record a memory snapshot (PD905): {why_unknown(case)}"
        return _unknown_room(case, evidence, snapshot)
    evidence.append(Evidence(label="never reserved, on the tightest GPU", value=gib(room.free_bytes or 0)))
    advice, kept = _fewer(case, room)
    if kept == 0 or room.failed:
        reason = "memory does not hold one layer more"
        return Verdict(state="passes", reason=reason, evidence=evidence)
    if kept is None:
        why = "give the model's shape and the layout (--config)"
        if case.is_set_to(GRANULARITY, "selective"):
            why = "recompute fewer modules, and look at the peak again"
        elif not fused_attention_runs(case):
            why = "fuse attention first (PD405), which keeps much less"
        return _unknown_room(case, evidence, why)
    return Verdict(
        state="fires",
        reason=f"layers are computed again, and memory holds {kept} of a stage's without",
        evidence=evidence,
        advice=advice,
        gain=ceiling(case, _again_ns, "the time of the recomputed kernels"),
        verify="Run again: recompute in the table of parts falls; record a snapshot and look at the peak.",
        false_alarm="Sequences of changing length: a longer one than in this window needs the memory.",
    )


def _again_ns(rank: RankMeasurement) -> int:
    return min(rank.kernel_parts.recompute_ns or 0, rank.ledger.compute_ns)


def _attention_alone(case: Case) -> bool:
    """Whether only the core of attention is recomputed, and it is a fused one that keeps nothing large."""
    modules = case.setting(MODULES)
    return (
        fused_attention_runs(case)
        and case.is_set_to(GRANULARITY, "selective")
        and modules in ((True, ("core_attn",)), (True, None))
    )


def _of_attention(case: Case, evidence: list[Evidence]) -> Verdict:
    why = "fused attention keeps no sequence x sequence matrix and makes what it needs in its own backward"
    return Verdict(
        state="fires",
        reason="the core of attention is recomputed although it is fused",
        evidence=evidence,
        advice=[advise(knob=GRANULARITY, to=None, why=why, gain=predicted(case, "without_recompute"))],
        gain=ceiling(case, _again_ns, "the time of the recomputed kernels"),
        verify="Run again: recompute in the table of parts is gone, and the peak of memory hardly moves.",
        false_alarm="Layers whose attention is not fused, beside others.",
    )


def _unknown_room(case: Case, evidence: list[Evidence], why: str) -> Verdict:
    modules = cheap_modules(case) if case.is_set_to(GRANULARITY, "full") else ()
    words = f"To see what memory would hold: {why}."
    if modules:
        words += (
            f" Between full recomputation and none lies selective, of {', '.join(modules)}, for little time."
        )
    return Verdict(
        state="fires",
        level="information",
        reason="layers are computed again; whether memory would hold their activations is not known",
        evidence=evidence,
        remedy=words,
        gain=ceiling(case, _again_ns, "the time of the recomputed kernels"),
        verify="Recompute fewer layers and record a snapshot.",
        false_alarm="A job whose memory is full without recomputation.",
    )


def _fewer(case: Case, room: Room) -> tuple[list[Advice], int | None]:
    """Settings that recompute fewer layers, and how many are kept then; None where it cannot be worked out.

    What a layer keeps is known for fused attention only: without, a sequence x sequence matrix comes on top.
    """
    if not case.is_set_to(GRANULARITY, "full") or not fused_attention_runs(case):
        return [], None
    stage, each, flight = stage_layers(case), saved_layer_bytes(case), micro_batches_in_flight(case)
    vpp = vpp_of(case)
    method, count = case.setting(METHOD)[1], case.number(LAYERS)
    if not stage or not each or not flight or not vpp or room.spare_bytes is None:
        return [], None
    now = stage if method == "uniform" else min(stage, count) if method == "block" and count else None
    if now is None:
        return [], None
    kept = min(now, room.spare_bytes // (each * flight * vpp))
    if not kept:
        return [], 0
    gain = predicted(case, "without_recompute")
    left = now - kept
    costs = f"about {gib(kept * vpp * each * flight)} of {gib(room.spare_bytes)} to spare, by formula"
    if left:
        why = f"{left} of a stage's {stage} layers recomputed instead of {now}"
        part = at_most(gain, f"predicted for no recomputation at all; {left} layers of a stage keep it")
        to: list[tuple[str, Value]] = [(METHOD, "block"), (LAYERS, left)]
    else:
        why, part = "memory holds the activations of every layer", gain
        to = [(GRANULARITY, None), (METHOD, None), (LAYERS, None)]
    advice = [advise(knob=knob, to=value, why=why, costs=costs, gain=part) for knob, value in to]
    return advice, kept
