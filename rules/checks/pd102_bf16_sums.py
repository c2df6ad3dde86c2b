"""Each addition along a ring rounds to 8 bits of mantissa: over a hundred ranks or more small gradients are
lost. This shows as a drifting loss curve, not as time."""

from perfdoc.rules.engine.advise import Advice, advise
from perfdoc.rules.engine.needs import given
from perfdoc.rules.engine.rule import Case, Meta, Verdict, informs, passes, skips
from perfdoc.rules.facts.gradient_sums import (
    MANY_RANKS,
    SEVERAL_REPLICAS,
    can_accumulate_in_fp32,
    keeps_precision,
    summing_ranks,
    sums_in_16_bits,
)

META = Meta(
    title="16-bit gradient reduction over many ranks",
    action="Reduce gradients in FP32",
    sources=("Megatron-Bridge guide", "NeMo guide", "Megatron-LM guide"),
    topic="comm_dtype",
    needs=(SEVERAL_REPLICAS,),
    advice=("cd_bf16_reduce_large_dp", "cd_fp32_accum"),
)


def evaluate(case: Case) -> Verdict:
    """Fires, as information, if gradients are reduced in 16 bits over 128 ranks (DP x CP) or more and the
    reduction is not known to accumulate in more precision."""
    ranks = given(summing_ranks(case))
    evidence = [("ranks of the gradient reduction, DP x CP", f"{ranks:,}")]
    if ranks < MANY_RANKS:
        return passes(evidence)
    narrow = sums_in_16_bits(case)
    if narrow is None:
        return skips("the format of the gradient reduction is not known", evidence)
    evidence.append(("format of the gradient reduction", "16 bits" if narrow else "fp32"))
    if not narrow or keeps_precision(case):
        return passes(evidence)
    return informs(
        reason=f"16-bit reduction over {ranks:,} ranks",
        evidence=evidence,
        advice=[_advice(case)],
        remedy="On InfiniBand with SHARP, use_sharp reduces in the switches with more precision and the same "
        "bytes.",
        verify="Compare the loss and the gradient norm with an fp32 reduction over some thousand steps.",
        false_alarm="NCCL uses a tree or SHARP instead of a ring, which kernel names do not show; or the "
        "loss was compared already.",
    )


def _advice(case: Case) -> Advice:
    if can_accumulate_in_fp32(case):
        return advise(
            knob="reduce_scatter_with_fp32_accumulation",
            to=True,
            why="sends 16 bits and accumulates in fp32 on each rank",
            costs="replaces NCCL's reduce-scatter by an all-to-all and local sums",
        )
    return advise(
        knob="grad_reduce_in_fp32",
        to=True,
        why="reduces gradients in fp32",
        costs="twice the bytes of gradients, and 2 bytes of memory more for each parameter",
    )
