"""The number format in which a job multiplies, by the names of its GEMMs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from perfdoc.analyzers.kernel_class.number_format import format_of
from perfdoc.analyzers.kernel_class.rules import KernelClass

if TYPE_CHECKING:
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
