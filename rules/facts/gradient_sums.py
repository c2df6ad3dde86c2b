"""The format of the gradient reduction, and its number of ranks."""

from __future__ import annotations

from collections import Counter

from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.needs import several

MANY_RANKS = 128
"""From here on guides warn that bf16 reductions lose precision, most of all along a ring."""
_REDUCTIONS = ("reduce_scatter", "all_reduce", "reduce")
_NARROW = ("bf16", "f16", "fp16", "half", "bfloat16")


def summing_ranks(case: Case) -> int | None:
    """Ranks over which gradients are reduced: DP x CP; None if one is unknown."""
    dp, cp = case.dp, case.degree("context_parallel_size")
    return None if dp is None or cp is None else dp * cp


SEVERAL_REPLICAS = several(
    "several ranks that reduce gradients (DP x CP)",
    summing_ranks,
    one="gradients are not reduced over ranks",
    unknown="the number of ranks of the gradient reduction is not known",
)


def sums_in_16_bits(case: Case) -> bool | None:
    """By the reduction kernels, else by the settings; None if neither says."""
    seen: Counter[str] = Counter()
    for rank in case.ranks:
        for row in rank.communication:
            if row.dimension == "dp" and row.collective in _REDUCTIONS and row.element_type:
                seen[row.element_type] += row.total_ns
    if seen:
        return seen.most_common(1)[0][0] in _NARROW
    known, wide = case.setting("grad_reduce_in_fp32")
    if not known:
        return None
    if wide is True:
        return False
    return True if case.job.facts.dtype in ("bf16", "fp16", "fp8") or case.is_set_to("bf16", True) else None


def keeps_precision(case: Case) -> bool:
    """Whether the reduction is known to add in more precision than it sends."""
    return case.is_set_to("use_sharp", True) or case.is_set_to("reduce_scatter_with_fp32_accumulation", True)


def can_accumulate_in_fp32(case: Case) -> bool:
    """Whether reduce_scatter_with_fp32_accumulation is known to work: megatron-core 0.16.1 requires optimizer
    states sharded over one instance, and one message per bucket, which FP8 weights do not have."""
    return (
        case.is_set_to("use_distributed_optimizer", True)
        and case.degree("num_distributed_optimizer_instances") == 1
        and not case.is_set_to("fp8_param_gather", True)
        and not case.is_set_to("use_megatron_fsdp", True)
    )
