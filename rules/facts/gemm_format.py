"""The number format of a job's GEMMs, and what FP32 costs it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.analyzers.kernel_class.number_format import (
    format_of,
    in_16_bits_speedup,
    is_fp32,
    tf32_speedup,
    uses_tf32,
)
from perfdoc.analyzers.kernels.parts import NamedTime
from perfdoc.analyzers.measure_device import RankMeasurement

FP8_FRAC = 0.1
"""Of GEMM time: FP8 training has GEMMs in bf16 beside."""
_MOSTLY_FRAC = 0.5
"""Of the time of GEMMs: as many must carry a format in their names, and as much must be another one."""


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


def in_fp32(rank: RankMeasurement) -> list[NamedTime]:
    """GEMMs and attention whose names tell FP32 or TF32."""
    return [k for k in rank.kernel_times if is_fp32(k.name, k.kernel_class)]


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
    gemms = (k for k in in_fp32(rank) if k.kernel_class is KernelClass.GEMM and not uses_tf32(k.name))
    return min(sum(k.total_ns for k in gemms), rank.ledger.compute)


def fp32_ns(rank: RankMeasurement) -> int:
    """A rank's time in them; sums of durations, at most its compute."""
    return min(sum(k.total_ns for k in in_fp32(rank)), rank.ledger.compute)
