"""What recomputation costs, and whether memory asks for it."""

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
from perfdoc.rules.facts.memory_relief import (
    GRANULARITY,
    LAYERS,
    METHOD,
    MODULES,
    saved_layer_bytes,
    stage_layers,
)
from perfdoc.rules.facts.memory_room import Room, tightest
from perfdoc.rules.facts.model_memory import micro_batches_in_flight, vpp_of

MIN_FRAC = 0.02
"""Of the window, mean over ranks: kernels that are run again for the backward."""


def _may_recompute(case: Case) -> bool:
    known, granularity = case.setting(GRANULARITY)
    return granularity is not None if known else case.job.facts.recompute != "none"


def _on_host(case: Case) -> Missing | None:
    return skipped("on CPUs recomputed kernels are not told from others") if case.on_host else None


def _not_told(case: Case) -> Missing | None:
    parts = next((r.kernel_parts for r in case.ranks if r.kernel_parts.recompute_ns is None), None)
    if parts is None:
        return None
    return skipped(parts.recompute_reason or "which kernels are run again was not measured")


NEEDS = (
    applies("recomputation that is not known to be off", _may_recompute, "nothing is recomputed"),
    Need(words="GPUs", missing=_on_host),
    KERNELS,
    Need(words="kernels that run again, told from others", missing=_not_told),
    WINDOW,
)


def again_ns(rank: RankMeasurement) -> int:
    """Kernels of a rank that run again for the backward."""
    return min(rank.kernel_parts.recompute_ns or 0, rank.ledger.compute_ns)


def is_needless(case: Case) -> bool:
    """Whether forwards are known to be done again that memory would keep: the core of a fused attention, or
    one layer at least."""
    if first_missing(case, NEEDS) is not None or given(case.share(again_ns)) < MIN_FRAC:
        return False
    room = tightest(case)
    return attention_alone(case) or (room is not None and not room.failed and bool(fewer(case, room)[1]))


def attention_alone(case: Case) -> bool:
    """Whether only the core of attention is recomputed, and it is a fused one that keeps nothing large."""
    modules = case.setting(MODULES)
    return (
        fused_attention_runs(case)
        and case.is_set_to(GRANULARITY, "selective")
        and modules in ((True, ("core_attn",)), (True, None))
    )


def fewer(case: Case, room: Room) -> tuple[list[Advice], int | None]:
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
