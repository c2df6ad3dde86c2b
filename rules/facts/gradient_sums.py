"""The gradient reduction: its format, its number of ranks, and what acts on it under DDP."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from perfdoc.results.figures import significant
from perfdoc.rules.engine.gain import Gain, predicted
from perfdoc.rules.engine.needs import several
from perfdoc.rules.engine.rule import Case
from perfdoc.rules.facts.exposed import hidden_frac, rows_of
from perfdoc.rules.facts.precision import lack_bf16
from perfdoc.simulator.replay.edits.rewiring import WAITS_FOR_NONE

NOTHING_GAINED = (
    "DDP overlaps it already, and neither other buckets nor half the bytes save time in the replay: the step "
    "hardly waits for it"
)
OTHER_BUCKETS = {"buckets_x4": ("fewer, larger", 4.0), "buckets_x0.25": ("earlier, smaller", 0.25)}
"""By change: messages in words, and the size as a multiple of what it is."""
_CHANGES = (*OTHER_BUCKETS, "dp_half_bytes")
_TWICE = 1.9
"""Reductions for each update: with fewer nearly each is its own, as where an optimizer skips few."""
_ACCUMULATE = "With gradient accumulation: no_sync() on all micro-batches but the last."


def usual_elements(case: Case) -> int:
    """max(40 M, 1 M x DP), megatron-core's default."""
    return max(40_000_000, 1_000_000 * (case.dp or 1))


def bucket_elements(case: Case) -> int | None:
    """The setting, or megatron-core's default for null; Megatron-Bridge and NeMo set their own number."""
    known, size = case.setting("bucket_size")
    if known and size is None and case.dp and case.configuration.dialect not in ("megatron_bridge", "nemo"):
        return usual_elements(case)
    return size if known and isinstance(size, int) and not isinstance(size, bool) else None


def reduces_with_ddp(case: Case) -> bool:
    """Whether captures of plain PyTorch show DDP's own ranges or operators."""
    return case.framework == "pytorch" and any(capture.ddp is not None for capture in case.captures)


def gain_with_ddp(case: Case) -> Gain | None:
    """Of the best change of buckets or bytes; None where none was replayed."""
    gain = predicted(case, *_CHANGES)
    return gain if gain is not None and gain.is_predicted else None


def summed_too_often(case: Case) -> str:
    """That each micro-batch's gradients are reduced, and what sends less; empty where that is not known."""
    sums = round(max((of.ddp.sums_an_update for of in case.captures if of.ddp), default=0.0), 2)
    if sums < _TWICE:
        return ""
    return (
        f"Gradients are reduced {significant(sums)} times for each step of the optimizer: no_sync() on all "
        f"micro-batches but the last sends 1/{significant(sums)} as much."
    )


def gains_nothing(case: Case) -> bool:
    """Whether the replay says that none of these changes would save anything, nor an overlap: each by a
    prediction of its own, or, of the overlap, because there it is."""
    overlap = case.prediction("overlapped_dp")
    if overlap is None or not (_is_nothing(overlap.gain) or overlap.reason == WAITS_FOR_NONE):
        return False
    found = [case.prediction(key) for key in _CHANGES]
    return all(p is not None and _is_nothing(p.gain) for p in found)


def _is_nothing(gain: Gain) -> bool:
    return gain.is_predicted and (gain.mid_ms or 0.0) <= 0


def action_with_ddp(case: Case) -> str:
    """What to do, by hand."""
    half = ", or in half the bytes" if sends_fp32(case) else ""
    return f"Send DDP's gradients in other buckets{half}"


def sends_fp32(case: Case) -> bool:
    """Whether gradients are known to be all-reduced in FP32."""
    rows = rows_of(case, "dp")
    return any(row.element_type == "f32" and row.collective == "all_reduce" for row in rows)


def settings_of_ddp(case: Case, better: str) -> str:
    """What to set, in words. better: which buckets the replay prefers; empty where none."""
    rows = rows_of(case, "dp")
    steps = max(sum(rank.window.steps for rank in case.ranks), 1)
    sums = [row for row in rows if row.collective == "all_reduce"]
    often = summed_too_often(case)
    words = [often] if often else []
    words += _buckets(sum(row.count for row in sums) / steps, [row.bytes for row in sums], steps)
    if better:
        words = [f"bucket_cap_mb for {better} messages (25 by default)."]
    if sends_fp32(case):
        half = "fp16" if lack_bf16(case) else "bf16"
        hook = f"model.register_comm_hook(None, {half}_compress_hook)"
        where = "torch.distributed.algorithms.ddp_comm_hooks.default_hooks"
        words.append(f"{hook}: half the bytes ({where}); compare the loss.")
    if any(packing.kind == "gradients" for rank in case.ranks for packing in rank.packing):
        words.append("gradient_as_bucket_view=True: no copies out of buckets.")
    if any(capture.ddp is not None and capture.ddp.searches for capture in case.captures):
        words.append(
            "find_unused_parameters=False, if each step uses all; static_graph=True, if all skip the same."
        )
    return " ".join(words if often else [*words, _ACCUMULATE])


def _buckets(often: float, sizes: Sequence[int | None], steps: int) -> list[str]:
    """An eighth of a step's bytes, of few messages. sizes: bytes of all steps by row, None unknown."""
    if often >= 4:
        return ["Compare bucket_cap_mb=50 and 12 with 25, the default."]
    a_step_mb = sum(size or 0 for size in sizes) / steps / (1 << 20)
    if not often or None in sizes or a_step_mb < 1:
        return []
    cap = significant(max(1.0, a_step_mb / 8), 1).replace(",", "")
    messages = "1 message a step begins" if often == 1 else f"{significant(often)} messages a step begin"
    return [f"bucket_cap_mb={cap} (25 by default): {messages} late."]


def seldom_summed(case: Case) -> str:
    """What sends less where nothing is hidden and half of the steps reduce nothing much; else empty."""
    of = [rank.step_ledgers.leaf_ns["exposed_comm.dp"] for rank in case.ranks if rank.window.steps >= _FEWEST]
    often = [int(np.count_nonzero(exposed > _LITTLE * exposed.mean())) for exposed in of]
    seldom = all(2 * n <= len(exposed) for n, exposed in zip(often, of, strict=True))
    if not of or not seldom or (hidden_frac(case, "dp") or 0.0) > _LITTLE:
        return ""
    return (
        f"{max(often)} of {len(of[0])} steps reduce, as where gradients are accumulated or weights averaged "
        "(local SGD, DiLoCo): more seldom, fewer bytes, or beside the next steps costs less."
    )


def less_of_shards(case: Case) -> str:
    """What PyTorch's own ways of sharding send less by, as far as the messages show that they may; of others
    empty."""
    if case.framework != "pytorch" or not case.gathers_weights or case.configuration.dialect is not None:
        return ""
    rows = rows_of(case, "dp")
    gathered, scattered = (
        sum(r.count for r in rows if r.collective == of) for of in ("all_gather", "reduce_scatter")
    )
    twice = gathered >= _BOTH_PASSES * scattered > 0
    exposed = [(r.exposed_ns or 0, r.collective) for r in rows]
    if "deepspeed" in case.program.marks:
        return (f"{_STAGE_2} " if twice else "") + _PREFETCH
    if 2 * sum(ns for ns, of in exposed if of == "all_reduce") > sum(ns for ns, _ in exposed) and scattered:
        return _REPLICAS
    return (f"{_KEEP_WHOLE} " if twice else "") + _MESH


_FEWEST, _LITTLE = 4, 0.1
"""Steps that show how often one reduces; of a mean step's communication (one may hang), or of all of it."""
_BOTH_PASSES = 1.5
"""All-gathers for each reduce-scatter: weights are gathered in the forward and in the backward pass."""
_KEEP_WHOLE = (
    "Weights are gathered twice a step: reshard_after_forward=False (FSDP1: SHARD_GRAD_OP) keeps them for "
    "the backward pass, where memory allows."
)
_STAGE_2 = "Weights are gathered in both passes: ZeRO stage 2 keeps them whole, where memory allows."
_PREFETCH = "Gather ahead: overlap_comm, and a larger stage3_prefetch_bucket_size."
_REPLICAS = (
    "Most of it sums gradients over replicas of the shards (HSDP): larger groups of shards send less of it, "
    "and set_requires_all_reduce(False) leaves it to the last of several micro-batches."
)
_MESH = "Over several servers a 2-D mesh gathers inside each (HSDP)."


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
    for row in rows_of(case, "dp"):
        if row.collective in _REDUCTIONS and row.element_type:
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
