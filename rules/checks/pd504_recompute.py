"""A layer that is computed again in the backward costs its forward a second time, up to 30 % of a step where
all layers are. Kept activations cost memory only."""

from perfdoc.results.figures import gib
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.gain import predicted, time_share
from perfdoc.rules.engine.needs import to_give
from perfdoc.rules.engine.rule import Case, Evidence, Meta, Verdict, fires, informs, passes
from perfdoc.rules.facts.capture import fused_attention_runs
from perfdoc.rules.facts.memory_relief import (
    GRANULARITY,
    MIN_FRAC,
    NEEDS,
    again_ns,
    attention_alone,
    cheap_modules,
    fewer,
    without_again,
)
from perfdoc.rules.facts.memory_room import rooms, tightest, why_unknown

META = Meta(
    title="Recomputation that memory may not need",
    action="Recompute less",
    sources=("Megatron-Bridge guide", "NeMo guide", "Megatron-LM guide", "megatron-core notes"),
    topic="memory",
    needs=NEEDS,
    advice=("mem_drop_recompute", "mem_attn_recompute_default", "mem_full_recompute", "mem_uniform_1"),
)


def evaluate(case: Case) -> Verdict:
    """Fires where recomputed kernels take `memory_relief.MIN_FRAC` of the window: as a problem where a
    snapshot shows memory for at least one layer more, else, without a snapshot, as information."""
    share, evidence = time_share(case, "forward done again for the backward", again_ns)
    if share < MIN_FRAC:
        return passes(evidence)
    if attention_alone(case):
        return _of_attention(case, evidence)
    room = tightest(case)
    if room is None:
        known = why_unknown(case) if rooms(case) else ""
        return _unknown_room(case, evidence, f"record a memory snapshot (PD905){known and f': {known}'}")
    evidence.append(("never reserved, on the tightest GPU", gib(room.free_bytes or 0)))
    advice, kept = fewer(case, room)
    if kept == 0 or room.failed:
        return passes(evidence, "memory does not hold one layer more")
    if kept is None:
        why = to_give(case, "num_layers", "pipeline_model_parallel_size", "micro_batch_size")
        if case.is_set_to(GRANULARITY, "selective"):
            why = "recompute fewer modules, and look at the peak again"
        elif not fused_attention_runs(case):
            why = "fuse attention first (PD405), which keeps much less"
        return _unknown_room(case, evidence, why)
    return fires(
        reason=f"layers are computed again, and memory holds {kept} of a stage's without",
        evidence=evidence,
        advice=advice,
        gain=without_again(case),
        verify="Run again: recompute in the table of parts falls; record a snapshot and look at the peak.",
        false_alarm="Sequences of changing length: a longer one than in this window needs the memory.",
    )


def _of_attention(case: Case, evidence: list[Evidence]) -> Verdict:
    why = "fused attention keeps no sequence x sequence matrix and makes what it needs in its own backward"
    return fires(
        reason="the core of attention is recomputed although it is fused",
        evidence=evidence,
        advice=[advise(knob=GRANULARITY, to=None, why=why, gain=predicted(case, "without_recompute"))],
        gain=without_again(case),
        verify="Run again: recompute in the table of parts is gone, and peak memory changes little.",
        false_alarm="A mix of layers with fused and unfused attention.",
    )


def _unknown_room(case: Case, evidence: list[Evidence], why: str) -> Verdict:
    modules = cheap_modules(case) if case.is_set_to(GRANULARITY, "full") else ()
    words = f"To see what memory would hold: {why.rstrip('.')}."
    if modules:
        words += (
            f" Between full recomputation and none lies selective, of {', '.join(modules)}, for little time."
        )
    return informs(
        reason="layers are computed again; whether memory would hold their activations is not known",
        evidence=evidence,
        remedy=words,
        gain=without_again(case),
        verify="Recompute fewer layers and record a snapshot.",
        false_alarm="A job whose memory is full without recomputation.",
    )
