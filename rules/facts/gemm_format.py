"""The number format of GEMMs, as their names tell it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from perfdoc.analyzers.kernel_class.rules import KernelClass
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


def gemms_ns(rank: RankMeasurement, shown: str) -> int:
    """A rank's time in GEMMs whose names tell this format; sums of durations, not above its compute."""
    total = sum(
        k.total_ns
        for k in rank.kernel_times
        if k.kernel_class is KernelClass.GEMM and format_of(k.name) == shown
    )
    return min(total, rank.ledger.compute)
