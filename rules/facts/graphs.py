"""CUDA graphs as advice: what of the model can be captured, and whether memory takes it.

Conditions as megatron-core 0.16.1 checks them (TransformerConfig).
"""

from __future__ import annotations

from perfdoc.knobs.knob import Value
from perfdoc.results.figures import gib
from perfdoc.results.replay import Gain
from perfdoc.results.rules import Advice
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.case import Case
from perfdoc.rules.facts.memory_room import tightest
from perfdoc.rules.facts.model_memory import pp_of
from perfdoc.rules.facts.precision import fp8_on

GRAPH_BYTES = 4 << 30
"""Static buffers of the graphs; the guides speak of a few GB."""
GRAPH_BYTES_PIPELINE = 10 << 30
"""The same with pipeline stages; the guides speak of more than 10 GB."""
_WHOLE_LAYER: tuple[str, ...] = ()


def graph_advice(case: Case, gain: Gain | None, part_gain: Gain | None) -> list[Advice]:
    """Capture what has static shapes, where graphs are known to be off and memory is not known to be short.

    gain: of whole layers; part_gain: where experts stay outside.
    """
    scope = capturable(case)
    if scope is None or not case.is_set_to("cuda_graph_impl", "none") or why_no_room(case):
        return []
    pp = pp_of(case)
    size = "a few GB" if pp == 1 else "more than 10 GB" if pp else "a few GB, more than 10 GB with a pipeline"
    costs = f"{size} of memory for static buffers, and shapes that stay the same"
    whole = scope == _WHOLE_LAYER
    advice = [
        advise(
            knob="cuda_graph_impl",
            to="local" if whole else "transformer_engine",
            gain=gain if whole else part_gain,
            why="launches a layer's kernels with one call"
            if whole
            else "launches with one call what of a layer has static shapes; the experts' products do not",
            costs=costs,
            together=() if whole else ("cuda_graph_scope",),
        )
    ]
    if not whole:
        why = "experts without a capacity get inputs of changing shapes and stay outside"
        advice.append(advise(knob="cuda_graph_scope", to=scope, why=why))
    why = "graphs replay random numbers from a state of their own"
    return [*advice, advise(knob="use_te_rng_tracker", to=True, why=why)]


def why_no_room(case: Case) -> str:
    """Why graphs do not fit into memory; empty where they do, or where nobody knows."""
    room = tightest(case)
    if room is None or room.spare_bytes is None:
        return ""
    need = GRAPH_BYTES if pp_of(case) == 1 else GRAPH_BYTES_PIPELINE
    if room.spare_bytes >= need:
        return ""
    return f"CUDA graphs would need about {gib(need)}, and {gib(room.spare_bytes)} are to spare."


def capturable(case: Case) -> tuple[str, ...] | None:
    """The scope that can be captured: () for whole layers; None where it is not known that any can.

    Shapes must not change (verl's batches do, and samples that are known not to be packed), nothing may be
    recomputed (megatron-core refuses full recomputation, and selective with dropout, inside a graph), and
    experts need inputs of one shape.
    """
    pack = case.number("sequence_packing_size")
    if case.configuration.dialect == "verl" or (pack is not None and pack <= 0):
        return None
    if not case.is_set_to("recompute_granularity", None):
        return None
    return static_scope(case)


def static_scope(case: Case) -> tuple[str, ...] | None:
    """The scope whose shapes do not change from step to step, but for the data; None where experts or their
    capacity are not known."""
    experts = _experts(case)
    if experts is None:
        return None
    if experts <= 1:
        return _WHOLE_LAYER
    known, capacity = case.setting("moe_expert_capacity_factor")
    if not known:
        return None
    if capacity is not None and case.is_set_to("moe_pad_expert_input_to_capacity", True):
        return _WHOLE_LAYER
    router: tuple[str, ...] = ("attn", "moe_router")
    # The preprocessing of tokens asks the device where they are dropped, or padded for FP8.
    asks = capacity is not None or fp8_on(case) is not False
    return router if asks else (*router, "moe_preprocess")


def _experts(case: Case) -> int | None:
    """Experts of a layer, 1 for a dense model; None where that is not known."""
    known, experts = case.setting("num_moe_experts")
    if known:
        return 1 if experts is None else _whole(experts)
    model = case.job.facts.model
    return None if model is None else model.experts or 1


def _whole(value: Value) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
