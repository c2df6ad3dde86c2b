"""The number format of GEMMs, as their names tell it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from perfdoc.analyzers.kernel_class.rules import KernelClass
from perfdoc.analyzers.kernels.totals import NamedTime
from perfdoc.analyzers.measure_device import RankMeasurement

FP8_FRAC = 0.1
"""Of GEMM time: FP8 training has GEMMs in bf16 beside."""
_MOSTLY_FRAC = 0.5
"""Of the time of GEMMs: as many must carry a format in their names, and as much must be another one."""
_FORMATS = (
    ("fp8", re.compile(r"(?i)e4m3|e5m2|(?<![a-z])fp8(?![a-z])|float8|^nvjet_(sm\d+_)?qq")),
    ("bf16", re.compile(r"(?i)bf16|bfloat16|^nvjet_(sm\d+_)?tst")),
    ("fp16", re.compile(r"(?i)(?<![bt])f16(?!\d)|fp16|hgemm|__half|half_t|^nvjet_(sm\d+_)?hsh")),
    ("fp32", re.compile(r"(?i)sgemm|tf32|(?<![a-z])f32f32_f32|^nvjet_(sm\d+_)?sss")),
)
"""Number format → what a GEMM's name says of it; the first that is there holds: inputs before sums."""


def captured_format(ranks: Sequence[RankMeasurement]) -> tuple[str, float] | None:
    """(format of most GEMM time by the kernels' names, its share); None where names say too little.

    Among bf16 GEMMs those of FP8 training are FP8: `fp8` holds from a tenth of the time on.
    """
    times: dict[str, int] = defaultdict(int)
    whole = 0
    for rank in ranks:
        for kernel in rank.kernel_times:
            if kernel.kernel_class is KernelClass.GEMM:
                whole += kernel.total_ns
                if (shown := format_of(kernel.name)) is not None:
                    times[shown] += kernel.total_ns
    named = sum(times.values())
    if not whole or named < _MOSTLY_FRAC * whole:
        return None
    if times.get("fp8", 0) > FP8_FRAC * whole:
        return "fp8", times["fp8"] / whole
    most = max(times, key=lambda name: times[name])
    return (most, times[most] / whole) if times[most] >= _MOSTLY_FRAC * whole else None


def format_of(name: str) -> str | None:
    """The number format of a GEMM's inputs, by its name.

    >>> format_of("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn")
    'bf16'
    """
    return next((shown for shown, pattern in _FORMATS if pattern.search(name)), None)


_FP32_SPEEDUPS: tuple[tuple[str, float], ...] = (
    (r"V100\b.*", 8),
    (r"A[18]00\b.*|A30\b.*", 16),
    (r"H[128]00\b.*|GH200\b.*", 14.8),
    (r"G?B[23]00\b.*", 28),
    (r"A10G?\b.*|A40\b.*|(RTX )?A[456]000\b.*|L4\b.*|L40S\b.*|RTX \d000 Ada\b.*", 4),
    (r"(GeForce )?RTX [34]0[5-9]0\b.*|L40\b.*", 2),
)
"""Dense 16-bit tensor cores, with sums in FP32, over FP32 without them, by the vendors' sheets."""
_TF32_SPEEDUP = 2.0
_GPU_NAMES = [(re.compile(pattern, re.IGNORECASE), ratio) for pattern, ratio in _FP32_SPEEDUPS]


def fp32_speedup(gpu_name: str | None) -> float | None:
    """How many times as fast 16-bit tensor cores are as FP32; None for a GPU that is not listed.

    >>> fp32_speedup("NVIDIA GeForce RTX 3070 Ti")
    2
    """
    if gpu_name is None:
        return None
    words = re.sub(r"^(NVIDIA|Tesla)\s+", "", " ".join(gpu_name[:100].split()), flags=re.IGNORECASE)
    return next((ratio for pattern, ratio in _GPU_NAMES if pattern.fullmatch(words)), None)


_FP32_ATTENTION = re.compile(r"(?i)(?:fmha|attention|sdpa)\w*_f32(?![a-z0-9])")
"""PyTorch's memory-efficient attention in FP32: fmha_cutlassF_f32_aligned_64x64_rf_sm80."""


def is_fp32(kernel: NamedTime) -> bool:
    """Whether a GEMM's or an attention kernel's name tells FP32 (or TF32)."""
    if kernel.kernel_class is KernelClass.ATTENTION:
        return _FP32_ATTENTION.search(kernel.name) is not None
    return kernel.kernel_class is KernelClass.GEMM and format_of(kernel.name) == "fp32"


def saved_by_16_bits_ns(rank: RankMeasurement) -> int | None:
    """What GEMMs and attention in FP32 and TF32 take less in 16 bits, at the same share of the GPU's peak;
    None where the GPU is not known."""
    speedup = fp32_speedup(rank.device.gpu_name)
    if speedup is None:
        return None
    of = [k for k in rank.kernel_times if is_fp32(k)]
    saved = sum(k.total_ns * (1 - 1 / (_TF32_SPEEDUP if _TF32.search(k.name) else speedup)) for k in of)
    return min(round(saved), rank.ledger.compute)


_TF32 = re.compile(r"(?i)tf32|s1688")


def fp32_ns(rank: RankMeasurement) -> int:
    """A rank's time in GEMMs and attention whose names tell FP32; sums of durations, at most its compute."""
    return min(sum(k.total_ns for k in rank.kernel_times if is_fp32(k)), rank.ledger.compute)
