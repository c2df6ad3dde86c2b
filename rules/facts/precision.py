"""The GEMM data type of a job, and the share of a step that FP8 can speed up."""

import statistics
from collections.abc import Mapping
from types import MappingProxyType

from perfdoc.analyzers.base.ceilings import ceilings_of
from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.analyzers.kernel_class.names import MAX_TEXT
from perfdoc.analyzers.kernel_class.number_format import (
    FP8_FRAC,
    arithmetic_of,
    captured_format,
    format_times,
    in_16_bits_speedup,
    is_wide,
    tf32_speedup,
    uses_tf32,
)
from perfdoc.analyzers.kernels.parts import NamedTime
from perfdoc.patterns import pattern_of
from perfdoc.profiling.gpus import gpu_family
from perfdoc.rules.engine.gain import RankMeasurement
from perfdoc.rules.engine.needs import Missing, Need, not_applicable, skipped
from perfdoc.rules.engine.rule import Case
from perfdoc.rules.facts.capture import why_hidden


def in_fp32(rank: RankMeasurement) -> list[NamedTime]:
    """GEMMs, convolutions and attention whose names tell FP32, TF32 or FP64."""
    return [k for k in rank.kernel_times if is_wide(k.name, k.kernel_class)]


def saved_by_16_bits_ns(rank: RankMeasurement) -> int | None:
    """What these take less in 16 bits, at the same share of the peak; None where the GPU is not known."""
    saved = 0.0
    for k in in_fp32(rank):
        speedup = in_16_bits_speedup(k.name, k.kernel_class, rank.device.gpu_name)
        if speedup is None:
            return None
        saved += k.total_ns * (1 - 1 / speedup)
    return min(round(saved), rank.ledger.compute)


def tf32_ns(rank: RankMeasurement) -> int:
    """Of a rank's time in them, what tensor cores multiply in TF32."""
    return min(sum(k.total_ns for k in in_fp32(rank) if uses_tf32(k.name)), rank.ledger.compute)


def could_be_tf32_ns(rank: RankMeasurement) -> int:
    """Its time in FP32 GEMMs that TF32 would make faster: not attention, which no setting of GEMMs changes,
    and not where the GPU multiplies TF32 no faster, or has none. A GPU that is not known may."""
    if (speedup := tf32_speedup(rank.device.gpu_name)) is not None and speedup <= 1:
        return 0
    return _gemms_ns(rank, "fp32")


def fp64_ns(rank: RankMeasurement) -> int:
    """A rank's time in FP64 GEMMs; sums of durations, at most its compute."""
    return _gemms_ns(rank, "fp64")


def _gemms_ns(rank: RankMeasurement, arithmetic: str) -> int:
    gemms = (k for k in rank.kernel_times if k.kernel_class is KernelClass.GEMM)
    return min(sum(k.total_ns for k in gemms if arithmetic_of(k.name) == arithmetic), rank.ledger.compute)


def fp32_ns(rank: RankMeasurement) -> int:
    """A rank's time in them; sums of durations, at most its compute."""
    return min(sum(k.total_ns for k in in_fp32(rank)), rank.ledger.compute)


_UNPACKS = pattern_of(
    r"(?i)^(?!.*fp8).*?(?:dequantize_?(?:blockwise(?!<[^>]*, 0>)|4bit|weights|nf4|block_q)|(?:gemm|gemv)_4bit"
    r"|gptq|exllama|(?<![a-z])(?:awq|hqq))"  # blockwise<..., 0>: 8 bits, as optimizers keep their state
)
_APART = 8  # GEMMs for one of them at most; with adapters each has four


def unpacking(case: Case) -> str:
    """The kernel that makes 16 bits of weights kept in 4 (QLoRA: bitsandbytes, GPTQ, AWQ, HQQ); empty without
    as many. These weights are frozen, and layers that multiply in FP8 take weights of their own."""
    every = [k for rank in case.ranks for k in rank.kernel_times]
    found = [k for k in every if _UNPACKS.search(k.name[:MAX_TEXT])]
    gemms = sum(k.count for k in every if k.kernel_class is KernelClass.GEMM)
    return found[0].short_name if found and _APART * sum(k.count for k in found) >= gemms else ""


_IN_INTEGERS = pattern_of("kInt8VectorQuant|kdequant_mm|DoubleRowColQuant")


def casts_of_weights(case: Case) -> str:
    """The kernel that casts for longest, where it does so for weights that are kept in 4 bits, or in integers
    of 8 (bitsandbytes); empty where FP8 is cast to."""
    every = (k for rank in case.ranks for k in rank.kernel_times)
    casts = (k for k in every if k.kernel_class is KernelClass.QUANTISATION)
    most = max(casts, key=lambda k: k.total_ns, default=None)
    name = "" if most is None else most.name[:MAX_TEXT]
    return most.short_name if most and (_UNPACKS.search(name) or _IN_INTEGERS.search(name)) else ""


GATHERS_FP8: Mapping[str, str] = MappingProxyType(
    {
        "delayed": "",
        "tensorwise": "Transformer Engine 2.2 or later",
        "blockwise": "Transformer Engine 2.4 or later, on Hopper",
        "mxfp8": "Transformer Engine 2.3 or later, on Blackwell",
    }
)
"""Recipes whose weights are stored and all-gathered in FP8 (megatron-core's checks of --fp8-param-gather),
and what that needs. Custom recipes are left out."""
PEAK_RATIO = 2.0
"""Dense FP8 peak over bf16 peak, on every GPU that has both."""


def fp8_on(case: Case) -> bool | None:
    """Whether the linear layers' GEMMs run in FP8; None if unknown."""
    known, value = case.setting("fp8")
    if known:
        return value is not None
    if case.job.facts.dtype is not None:
        return case.job.facts.dtype == "fp8"
    shown, (times, whole) = captured_format(case.ranks), format_times(case.ranks)
    if shown is None or (shown[0] != "fp8" and times["fp8"] > FP8_FRAC * whole):
        return None  # of a job that mixes them nobody knows which layers run in FP8
    return shown[0] == "fp8"


def _no_fp8(case: Case) -> Missing | None:
    on = fp8_on(case)
    if on is None:
        return skipped("whether the linear layers' GEMMs run in FP8 is not known")
    return None if on else not_applicable("the linear layers' GEMMs do not run in FP8")


FP8 = Need(words="FP8 GEMMs in linear layers", missing=_no_fp8)


def fp8_gather(case: Case) -> str | None:
    """What an FP8 weights all-gather needs in this recipe; empty for nothing. None if the recipe cannot
    gather FP8 weights, or it is unknown."""
    known, recipe = case.setting("fp8_recipe")
    return GATHERS_FP8.get(recipe) if known and isinstance(recipe, str) and fp8_on(case) else None


def dtype_of(case: Case) -> str | None:
    """fp4, fp8, bf16, fp16 or fp32: the data type of the linear layers' GEMMs; None if unknown."""
    on, four = fp8_on(case), case.setting("fp4")[1]
    if four is not None:
        return "fp4"
    if on:
        return "fp8"
    if case.job.facts.dtype not in (None, "fp8"):
        return case.job.facts.dtype
    for name in ("bf16", "fp16"):
        if on is False and case.is_set_to(name, True):
            return name
    shown = captured_format(case.ranks)
    return None if shown is None else shown[0]


def linear_share(case: Case) -> float | None:
    """Share of the window, mean over ranks, in which a linear layer's GEMM ran, expert GEMMs included; None
    if not measured, or if experts' GEMMs run side by side, which sums count twice."""
    shares = []
    if why_hidden(case):
        return None
    for rank in case.ranks:
        parts = rank.kernel_parts
        if parts.state != "measured" or parts.linear_window_frac is None or not rank.ledger.total:
            return None
        grouped = (parts.grouped_linear_ns or 0) / rank.ledger.total
        if (share := parts.linear_window_frac + grouped) > 1:
            return None
        shares.append(share)
    return statistics.fmean(shares) if shares else None


def _no_linear_share(case: Case) -> Missing | None:
    if linear_share(case) is not None:
        return None
    return skipped(why_hidden(case) or "the linear layers' share was not measured")


LINEAR_SHARE = Need(words="the time of linear layers' GEMMs", missing=_no_linear_share)


def in_fp8_saved_frac(case: Case, rank: RankMeasurement) -> float:
    """Share of the time of linear layers' GEMMs that FP8 saves at most, by their shapes and formats.

    FLOPs of 16-bit GEMMs take half as long. One that HBM bounds gains nothing: a cast reads as many bytes as
    it did. Of one with 30 us of FLOPs and 20 of bytes at the peak a third goes, half of what is not known,
    and nothing of a GEMM in another format. GEMMs of attention are none of them.
    """
    ceilings = ceilings_of(case.job.facts, rank.device.gpu_name)
    most = 1 - 1 / PEAK_RATIO
    known_ns, attention_ns, saved_ns = 0, 0, 0.0
    for o in rank.efficiency.operators if rank.efficiency.state == "measured" else ():
        if o.kernel_class not in ("gemm", "grouped_gemm"):
            continue
        if "bmm" in o.name:
            attention_ns += o.time_ns
            continue
        if o.dtype not in ("bf16", "fp16", "unknown"):
            known_ns += o.time_ns
            continue
        peak = ceilings.flops.get(o.dtype)
        if peak is None or ceilings.memory is None or not o.flops or o.bytes is None:
            continue
        by_bytes = o.bytes / ceilings.memory.value / (o.flops / peak.value)
        known_ns += o.time_ns
        saved_ns += o.time_ns * min(most, max(1 - by_bytes, 0.0))
    every = [k for k in rank.kernel_times if k.kernel_class is KernelClass.GEMM]
    unknown_ns = max(sum(k.total_ns for k in every) - known_ns - attention_ns, 0)
    whole_ns = known_ns + unknown_ns
    return (saved_ns + most * unknown_ns) / whole_ns if whole_ns else most


def speed_up(share: float) -> float:
    """Speed-up of a step if `share` of it runs at the higher peak (Amdahl): a third twice as fast is 1.2."""
    return 1 / (1 - share + share / PEAK_RATIO)


def why_no_remainders(case: Case) -> str:
    """Why a precision-aware optimizer could not omit the weight's 16 bits from its master weights; empty if
    it can, as far as known.

    megatron-core 0.16.1 (OptimizerConfig) does so for bf16 weights, and under FP8 with delayed scaling only.
    """
    if not case.is_set_to("bf16", True) and case.job.facts.dtype not in ("bf16", "fp8"):
        return "weights are not known to be bf16, whose bits master weights share"
    if case.is_set_to("fp8_param_gather", True):
        return "weights are FP8, and hold no 16 bits of a master weight"
    known, recipe = case.setting("fp8_recipe")
    if fp8_on(case) and not (known and recipe == "delayed"):
        return "under FP8, master weights omit these bits with delayed scaling only"
    return ""


def lack_bf16(case: Case) -> bool | None:
    """Whether a GPU of the job does not multiply bf16; None where none is known not to and one is unknown.
    All of AMD's and Intel's that PyTorch supports do."""
    if case.program.vendor in ("amd", "intel"):
        return False
    families = [gpu_family(rank.device.gpu_name) for rank in case.ranks]
    if any(family is not None and not family.multiplies("bf16") for family in families):
        return True
    return None if None in families else False
