"""The cost of recomputation, and whether memory requires it."""

from __future__ import annotations

from perfdoc.analyzers.measure_device import RankMeasurement
from perfdoc.knobs.knob import Value
from perfdoc.results.figures import gib
from perfdoc.results.rules import Advice
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.gain import at_most, predicted
from perfdoc.rules.engine.needs import WINDOW, Missing, Need, applies, first_missing, given, skipped
from perfdoc.rules.facts.capture import KERNELS, fused_attention_runs
from perfdoc.rules.facts.memory_need import micro_batches_in_flight, vpp_of
from perfdoc.rules.facts.memory_relief import (
    GRANULARITY,
    LAYERS,
    METHOD,
    MODULES,
    saved_layer_bytes,
    stage_layers,
)
from perfdoc.rules.facts.memory_room import Room, tightest

MIN_FRAC = 0.02
"""Of the window, mean over ranks: kernels recomputed for the backward pass."""


def _may_recompute(case: Case) -> bool:
    known, granularity = case.setting(GRANULARITY)
    return granularity is not None if known else case.job.facts.recompute != "none"


def _on_host(case: Case) -> Missing | None:
    return skipped("recomputed kernels cannot be identified on CPUs") if case.on_host else None


def _not_measured(case: Case) -> Missing | None:
    parts = next((r.kernel_parts for r in case.ranks if r.kernel_parts.recompute_ns is None), None)
    if parts is None:
        return None
    return skipped(parts.recompute_reason or "recomputed kernels were not measured")


NEEDS = (
    applies("recomputation on, or unknown", _may_recompute, "nothing is recomputed"),
    Need(words="GPUs", missing=_on_host),
    KERNELS,
    Need(words="identified recompute kernels", missing=_not_measured),
    WINDOW,
)


def again_ns(rank: RankMeasurement) -> int:
    """A rank's kernels recomputed for the backward pass."""
    return min(rank.kernel_parts.recompute_ns or 0, rank.ledger.compute)


def is_needless(case: Case) -> bool:
    """Whether activations are known to be recomputed although memory could store them: the core of a fused
    attention, or at least one layer."""
    if first_missing(case, NEEDS) is not None or given(case.share(again_ns)) < MIN_FRAC:
        return False
    room = tightest(case)
    return attention_alone(case) or (room is not None and not room.failed and bool(fewer(case, room)[1]))


def attention_alone(case: Case) -> bool:
    """Whether only core attention is recomputed, and it is fused, so that it stores nothing large."""
    modules = case.setting(MODULES)
    return (
        fused_attention_runs(case)
        and case.is_set_to(GRANULARITY, "selective")
        and modules in ((True, ("core_attn",)), (True, None))
    )


def fewer(case: Case, room: Room) -> tuple[list[Advice], int | None]:
    """Settings that recompute fewer layers, and how many layers are then stored; None if unknown.

    What a layer stores is known for fused attention only: unfused, a sequence x sequence matrix is added.
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
    costs = f"about {gib(kept * vpp * each * flight)} of {gib(room.spare_bytes)} available, by formula"
    if left:
        why = f"{left} of a stage's {stage} layers recomputed instead of {now}"
        part = at_most(gain, f"predicted without any recomputation; {left} layers of a stage keep it")
        to: list[tuple[str, Value]] = [(METHOD, "block"), (LAYERS, left)]
    else:
        why, part = "memory fits the activations of every layer", gain
        to = [(GRANULARITY, None), (METHOD, None), (LAYERS, None)]
    advice = [advise(knob=knob, to=value, why=why, costs=costs, gain=part) for knob, value in to]
    return advice, kept
