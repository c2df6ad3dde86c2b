"""FP8 doubles the peak of the GEMMs of linear layers and touches nothing else, so that it gains what their
share of the step allows."""

import statistics
from dataclasses import replace

from perfdoc.results.figures import per_cent
from perfdoc.rules.engine.advise import Advice, advise, needing
from perfdoc.rules.engine.assumptions import TRAINING, Assumes
from perfdoc.rules.engine.gain import Gain, RankMeasurement, bounded, ceiling, predicted
from perfdoc.rules.engine.needs import GPU_MODEL, GPUS, Missing, Need, given, known, not_applicable
from perfdoc.rules.engine.rule import Case, Meta, Verdict, informs, passes, skips
from perfdoc.rules.facts.capture import why_start_up_counts
from perfdoc.rules.facts.degrees import sequence_of
from perfdoc.rules.facts.hardware import Gpu
from perfdoc.rules.facts.memory_need import cp_of, micro_batch_of, tp_of
from perfdoc.rules.facts.precision import (
    LINEAR_SHARE,
    PEAK_RATIO,
    dtype_of,
    in_fp8_saved_frac,
    linear_share,
    speed_up,
    unpacking,
)


def _no_fp8(case: Case) -> Missing | None:
    gpu = case.gpu
    return None if gpu is None or gpu.fp8 else not_applicable(f"{gpu.architecture} GPUs have no FP8 GEMMs")


def _not_for_fp8(case: Case) -> Missing | None:
    gpu, dtype = case.gpu, dtype_of(case)
    if unpacks := unpacking(case):
        return not_applicable(f"weights are kept in fewer bits, and unpacked for each product ({unpacks})")
    if dtype not in ("bf16", "fp16"):
        return not_applicable(f"GEMMs of linear layers run in {dtype}")
    odd = _odd_sizes(case, MXFP8_MULTIPLES if gpu is not None and _fine(gpu) else FP8_MULTIPLES)
    return None if odd is None else not_applicable(f"FP8 GEMMs do not take these sizes: {odd}")


META = Meta(
    title="16-bit GEMMs on a GPU with FP8",
    action="Run GEMMs in FP8",
    sources=("Megatron-Bridge guide", "NeMo guide", "LLM training guide", "Megatron-LM guide"),
    topic="low_precision",
    needs=(
        GPUS,
        GPU_MODEL,
        Need(words="GPUs with FP8 GEMMs", missing=_no_fp8),
        known("the GEMM dtype", dtype_of, reason="the GEMM dtype is not known (--set dtype=bf16)"),
        Need(words="16-bit GEMMs of sizes that FP8 supports", missing=_not_for_fp8),
        LINEAR_SHARE,
    ),
    advice=("lp_fp8_linear_speedup", "lp_amdahl", "lp_fp8_infra_claim", "lp_mxfp8_accuracy"),
    assumes=(Assumes(of=TRAINING),),
)

MIN_LINEAR_FRAC = 1 / 3
"""Of the window, in GEMMs of linear layers that FLOPs bound: with less, GEMMs of twice the speed make a step
less than 1.2 times as fast, which is the least that the guides speak of."""
_KEY = "fp8_gemm"
_BOUND_BY_FLOPS = 0.99
"""Of that time: it is said where less is."""
MAX_HOST_FRAC = 0.05
"""Of the window, idle, launch-bound: with more, faster kernels only wait longer."""
FP8_MULTIPLES, MXFP8_MULTIPLES = (16, 8), (32, 32)
"""Of a layer's width and of its tokens, as Transformer Engine demands them; MXFP8 has a scale for every 32
values."""


def evaluate(case: Case) -> Verdict:
    """Fires where 16-bit GEMMs of linear layers that FLOPs bound take `MIN_LINEAR_FRAC` of the window on a
    GPU with FP8, and the host keeps up."""
    gpu, whole = given(case.gpu), given(linear_share(case))
    # As if GEMMs of so much of the time took half as long, and the others as long as now.
    halved = statistics.fmean(in_fp8_saved_frac(case, r) for r in case.ranks) / (1 - 1 / PEAK_RATIO)
    share = whole * halved
    most = speed_up(share)
    evidence = [
        ("GEMMs of linear layers, of the window", per_cent(whole)),
        (f"a step with them {PEAK_RATIO:g} times as fast", f"{most:.2f} times as fast at most"),
    ]
    host = case.share(lambda r: r.ledger.idle.host) or 0.0
    if halved < _BOUND_BY_FLOPS:
        evidence.insert(1, ("share of it that FP8 could halve, by shapes and formats", per_cent(halved)))
    if (share < MIN_LINEAR_FRAC or host >= MAX_HOST_FRAC) and (reason := why_start_up_counts(case)):
        return skips(reason, evidence)
    if share < MIN_LINEAR_FRAC:
        return passes(evidence, "linear layers take too little of the time for FP8 to bring the guides' 1.2")
    if host >= MAX_HOST_FRAC:
        evidence.append(("idle, launch-bound", per_cent(host)))
        reason = "the step is launch-bound: faster GEMMs would only wait longer, see PD201 first"
        return passes(evidence, reason)
    what = "half of the time in which GEMMs of linear layers run, as far as FLOPs bound them"
    most_ms = ceiling(case, lambda rank: _saved_ns(case, rank), what)
    if most_ms is not None and case.unit_ms is not None:  # half of what follows one another stays
        half_ms = case.unit_ms * (1 - 1 / PEAK_RATIO)
        if (most_ms.high_ms or 0.0) > half_ms:
            said = [*most_ms.assumptions, f"at most half of the {case.unit}"]
            most_ms = replace(most_ms, high_ms=half_ms, assumptions=said)
    return informs(
        reason="GEMMs of linear layers could run in FP8",
        evidence=evidence,
        advice=_advice(gpu, most, _gain(case, most_ms, halved)),
        otherwise="Train a part of the run in FP8 beside BF16 and compare loss curves before switching.",
        gain=most_ms,
        verify="Run again: GEMMs shrink, casts (class quantisation) appear; compare the loss with a BF16 "
        "run.",
        false_alarm="Batches of odd size, frozen or adapter layers, and first and last layers "
        "kept in BF16 stay as they are.",
    )


def _gain(case: Case, most: Gain | None, halved: float) -> Gain | None:
    """By replay, which makes every GEMM faster; the bound where that is more than their shapes allow."""
    found = bounded(predicted(case, _KEY), most)
    if found is None or most is None or not found.is_predicted or halved >= _BOUND_BY_FLOPS:
        return found
    return replace(most, key=_KEY) if (found.mid_ms or 0.0) > (most.high_ms or 0.0) else found


def _saved_ns(case: Case, rank: RankMeasurement) -> int:
    parts, window = rank.kernel_parts, rank.ledger.total
    busy = (parts.linear_window_frac or 0.0) * window + (parts.grouped_linear_ns or 0)
    return round(min(busy, rank.ledger.compute) * in_fp8_saved_frac(case, rank))


def _fine(gpu: Gpu) -> bool:
    """Whether MXFP8 is advised: Transformer Engine has no such GEMMs for consumer chips."""
    return gpu.mxfp8 and gpu.nvlink_domain != 1


def _odd_sizes(case: Case, multiples: tuple[int, int]) -> str | None:
    """Which of a GEMM's sizes FP8 does not take; None where none is known that it does not. A dense MLP's
    and the residual stream's widths, and a rank's tokens of a micro-batch."""
    model, tp = case.job.facts.model, tp_of(case) or 1
    if model is None:
        return None
    width, count = multiples
    sizes = [
        ("hidden size", model.hidden_size, width),
        (f"MLP size / TP {tp}", model.ffn_hidden_size // tp, width),
    ]
    batch, cp, length = micro_batch_of(case), cp_of(case), sequence_of(case)
    if batch and cp and length:
        sizes.append(("number of tokens of a micro-batch on a rank", batch * length // cp, count))
    return next((f"the {n} is {s:,}, no multiple of {by}" for n, s, by in sizes if s % by), None)


def _advice(gpu: Gpu, most: float, gain: Gain | None) -> list[Advice]:
    claim = (
        f"at most {most:.2f} times as fast here by the linear layers' share; the guides claim 1.2 to 1.5, "
        "and one of them 1.5 to 2, for steps that are mostly linear layers"
    )
    format_ = advise(knob="fp8", to="hybrid", why=claim, costs="numerics: compare loss curves", gain=gain)
    if _fine(gpu):
        why = "a scale for every 32 values keeps more accuracy than one for a tensor"
        costs = "casts and GEMMs are slower than with one scale for a tensor (PD403 measures the casts)"
        return needing(format_, then=[advise(knob="fp8_recipe", to="mxfp8", why=why, costs=costs)])
    why = "one scale for a tensor, from its present values, has the cheapest casts but for delayed scaling"
    return needing(format_, then=[advise(knob="fp8_recipe", to="tensorwise", why=why, costs="coarse scales")])
