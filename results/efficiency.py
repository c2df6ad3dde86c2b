"""Compute against the roofline: every nanosecond at the peak, or lost by a cause."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from perfdoc.records import dataclass
from perfdoc.results.quality import Measured

CAUSES = ("recomputation", "precision", "memory_bound", "contention", "shape", "clock", "below_roofline")
"""Why compute takes longer than its FLOPs at the peak, in the order in which a kernel's time is given out:

recomputation: forward work that is done again for the backward pass, whatever its rate.
precision: the FLOPs at the peak of the kernel's dtype, beyond those at the peak of a faster one.
memory_bound: what HBM needs for the bytes, beyond what the FLOPs need.
contention: kernels that are slower beside communication than alone.
shape: SMs without work, in launches of fewer thread blocks than SMs and in the last wave.
clock: an SM clock below the highest of the capture.
below_roofline: the rest.
"""


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Compute time lost by one cause, over all ranks' windows."""

    cause: str
    """One of CAUSES."""
    total_ns: int
    frac: float
    """Of compute."""


@dataclass(frozen=True, kw_only=True)
class ClassEfficiency:
    """Time and work of the kernels of one class, in one part of the model and one phase where the rows are
    split by these; sums over ranks.

    `time_ns` gives each nanosecond to one kernel, so that it sums to the ledger's compute. Rates are of
    kernels whose work is known, by their own durations.
    """

    kernel_class: str
    part: str = ""
    phase: str = ""
    kernels: int
    time_ns: int
    known_ns: int
    """Durations of the kernels whose work is known, clipped to the window."""
    flops: float | None
    """Of these, as far as they lie in the window; None where none is known."""
    bytes: float | None
    """To and from HBM at least: every input read once, every output written once."""
    roofline_ns: int
    """What these need at least, by FLOPs or bytes, whichever takes longer."""
    at_peak_ns: int
    """Of time_ns: the FLOPs at the peak."""
    unknown_ns: int
    """Of time_ns: kernels whose work is not known."""
    losses_ns: dict[str, int]
    """The rest of time_ns by cause, those that are not zero."""
    achieved_tflops: float | None
    achieved_tbps: float | None
    roofline_frac: float | None
    """roofline_ns over known_ns."""


@dataclass(frozen=True, kw_only=True)
class OperatorEfficiency:
    """One operator in one shape."""

    name: str
    kernel_class: str
    shapes: str
    """As the capture says them, or in the same form."""
    dtype: str
    """Of the arithmetic."""
    source: Literal["shapes", "model"]
    """shapes: of the operator, in the capture. model: from the model's shape and layout, by the kernel's
    place among those of its layer."""
    calls: int
    """Inside the windows; one that reaches over a bound counts."""
    time_ns: int
    """Durations of its kernels, clipped to the windows."""
    flops: float | None
    """Of one call."""
    bytes: float | None
    achieved_tflops: float | None
    achieved_tbps: float | None
    roofline_frac: float | None
    bound: str
    """compute, memory, or empty where the ceiling is not known."""
    lost_ns: int
    """time_ns beyond the FLOPs at the peak of the fastest dtype that counts."""


@dataclass(frozen=True, kw_only=True)
class KernelEfficiency(Measured):
    """Compute of all ranks' windows: `compute_ns` is the ledger's; at_peak_ns, unknown_ns and losses sum to
    it exactly."""

    compute_ns: int
    at_peak_ns: int
    unknown_ns: int
    """Kernels whose work is not known, and whole CUDA graphs."""
    known_ns: int
    """Of compute_ns: kernels whose work is known, and can be held against a ceiling."""
    known_frac: float | None
    """known_ns over compute_ns. Recomputation and contention are known of other kernels too."""
    fusible_ns: int
    """What runs of memory-bound kernels between matrix multiplications take beyond the longest of each: more
    than this fusing them cannot save. The optimizer's are left out."""
    losses: list[Loss] = field(default_factory=list)
    """Every cause, in the order of CAUSES."""
    by_class: list[ClassEfficiency] = field(default_factory=list)
    """By falling time."""
    by_part: list[ClassEfficiency] = field(default_factory=list)
    """Classes split by part of the model and phase, by falling time."""
    operators: list[OperatorEfficiency] = field(default_factory=list)
    """By falling lost time."""
    operators_left_out: int = 0
    """Further ones, of less lost time."""
    ceilings: list[str] = field(default_factory=list)
    """What the rooflines are: peaks by dtype and memory bandwidth, with who says so."""
    notes: list[str] = field(default_factory=list)
    """What was not looked at, and operators that were left out because they were too fast to be true."""


NO_EFFICIENCY = KernelEfficiency.missing("a diagnosis of an earlier version does not say it")
