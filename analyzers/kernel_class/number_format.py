"""The number format of GEMMs and attention, as kernel names tell it, and what FP32 costs on a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from perfdoc.analyzers.kernel_class.names import MAX_TEXT
from perfdoc.analyzers.kernel_class.rules import KernelClass
from perfdoc.kept import table
from perfdoc.patterns import pattern_of
from perfdoc.profiling.gpus import gpu_family, peak_flops

if TYPE_CHECKING:
    from perfdoc.analyzers.measure_device import RankMeasurement

_NAMES = table(Path(__file__).resolve().with_name("number_format.yaml"))


@lru_cache(maxsize=8192)
def format_of(name: str) -> str | None:
    """The number format of a GEMM's inputs, by its name.

    >>> format_of("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn")
    'bf16'
    """
    formats: dict[str, str] = _NAMES["formats"]
    return next((shown for shown, said in formats.items() if pattern_of(said).search(name[:MAX_TEXT])), None)


_TF32_SPEEDUP = 2.0
"""Of 16 bits over TF32, on every GPU that has both."""
PEAK_SHARE_RATIO = 0.65
"""Share of their peak that 16-bit GEMMs reach, over what FP32 ones reach of theirs on CUDA cores: large GEMMs
run at 55 to 70 % of the one and at 85 to 95 % of the other."""


NAME_FORMATS = (KernelClass.GEMM, KernelClass.ATTENTION, KernelClass.CONVOLUTION)
"""Classes of kernels whose names tell whether they run in FP32."""


@lru_cache(maxsize=8192)
def is_wide(name: str, kernel_class: KernelClass) -> bool:
    """Whether the name of a GEMM, of an attention kernel or of a convolution tells FP32 (or TF32), or FP64.

    >>> is_wide("void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>", KernelClass.CONVOLUTION)
    True
    """
    if kernel_class is KernelClass.CONVOLUTION:
        return pattern_of(_NAMES["fp32_convolution"]).search(name[:MAX_TEXT]) is not None
    if kernel_class is KernelClass.ATTENTION:
        return pattern_of(_NAMES["fp32_attention"]).search(name[:MAX_TEXT]) is not None
    return kernel_class is KernelClass.GEMM and format_of(name) in ("fp32", "fp64")


def uses_tf32(name: str) -> bool:
    """Whether a kernel on FP32 inputs multiplies in TF32, by its name.

    >>> uses_tf32("sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n"), uses_tf32("ampere_sgemm_128x64_tn")
    (True, False)
    >>> uses_tf32("cutlass_80_tensorop_s1688gemm_128x128_16x5_tn_align4")
    True
    """
    return pattern_of(_NAMES["tf32"]).search(name[:MAX_TEXT]) is not None


def arithmetic_of(name: str) -> str | None:
    """The format that a GEMM multiplies in, by its name: its inputs', or TF32 for FP32 ones.

    >>> arithmetic_of("turing_fp16_s1688gemm_fp16_128x128_tn"), arithmetic_of("ampere_sgemm_128x64_tn")
    ('fp16', 'fp32')
    """
    shown = format_of(name)
    return "tf32" if shown == "fp32" and uses_tf32(name) else shown


def in_16_bits_speedup(name: str, kernel_class: KernelClass, gpu_name: str | None) -> float | None:
    """How many times as fast the GPU's 16-bit tensor cores are as what the kernel runs on; 1 for a kernel
    whose name does not tell FP32, TF32 or FP64, None where the GPU, or its rate in FP64, is not known.

    >>> in_16_bits_speedup("ampere_sgemm_128x64_tn", KernelClass.GEMM, "NVIDIA GeForce RTX 3070 Ti")
    2.0
    """
    if not is_wide(name, kernel_class):
        return 1.0
    family = gpu_family(gpu_name)
    if family is None:
        return None
    if kernel_class is KernelClass.GEMM and format_of(name) == "fp64":
        return family.over_fp64 and family.over_fp32 * family.over_fp64
    return _TF32_SPEEDUP if uses_tf32(name) else family.over_fp32


def tf32_speedup(gpu_name: str | None) -> float | None:
    """How many times as fast TF32 is as FP32 on CUDA cores; 1 where a GPU has none, or gains nothing by it,
    None where the GPU is not known.

    >>> tf32_speedup("NVIDIA A100-SXM4-40GB"), tf32_speedup("NVIDIA GeForce RTX 3090")
    (8.0, 1.0)
    """
    family = gpu_family(gpu_name)
    if family is None:
        return None
    if not family.multiplies("tf32"):
        return 1.0
    tf32, fp32 = peak_flops(gpu_name, "tf32"), peak_flops(gpu_name, "fp32")
    return tf32 / fp32 if tf32 and fp32 else max(family.over_fp32 / _TF32_SPEEDUP, 1.0)


def likely_16_bits_speedup(name: str, kernel_class: KernelClass, gpu_name: str | None) -> float | None:
    """The same, at the shares of their peaks that both usually reach; never below 1."""
    at_peak = in_16_bits_speedup(name, kernel_class, gpu_name)
    if at_peak is None or at_peak == 1 or uses_tf32(name):
        return at_peak
    return max(at_peak * PEAK_SHARE_RATIO, 1.0)


FP8_FRAC = 0.1
"""Of GEMM time: from here on GEMMs in FP8 are no accident."""
_MOSTLY_FRAC = 0.5
"""Of the time of GEMMs: as many must carry a format in their names, and as much must be another one."""


def captured_format(ranks: Sequence[RankMeasurement]) -> tuple[str, float] | None:
    """(format of most GEMM work by names, FP8 being twice as fast; its share of time); None if unknown."""
    times, whole = format_times(ranks)
    if not whole or sum(times.values()) < _MOSTLY_FRAC * whole:
        return None
    if 2 * times["fp8"] > whole - times["fp8"]:
        return "fp8", times["fp8"] / whole
    most = max(times, key=lambda name: times[name])
    return (most, times[most] / whole) if times[most] >= _MOSTLY_FRAC * whole else None


def format_times(ranks: Sequence[RankMeasurement]) -> tuple[Counter[str], int]:
    """(format to the nanoseconds of GEMMs whose names tell it, nanoseconds of all GEMMs)."""
    times: Counter[str] = Counter()
    whole = 0
    for kernel in (k for rank in ranks for k in rank.kernel_times if k.kernel_class is KernelClass.GEMM):
        whole += kernel.total_ns
        if (shown := format_of(kernel.name)) is not None:
            times[shown] += kernel.total_ns
    return times, whole
