"""What each kernel needs at least: its FLOPs at the peak, its bytes at the memory bandwidth."""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.work.operator_work import DTYPES, MODEL, KernelWork
from perfdoc.records import dataclass
from perfdoc.results.ceilings import Ceilings
from perfdoc.traces.table import F64, Bool

_SLOW_DTYPES = ("fp32", "tf32")
"""Of matrix multiplications that a 16-bit dtype does faster. FP64 is chosen for its digits."""
TOO_FAST = 1.05
"""A kernel that is this much faster than its FLOPs at the peak has other work, or another peak, than was
said; up to it clocks above the datasheet's are believed."""
_BELIEVED_FRAC = 0.05
"""Of the time of kernels whose work the model's shape says: where more of it is too fast, the shape is
wrong, and what it says of the others no better."""


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """One entry a kernel, in ns; nan where the work or the ceiling is not known."""

    best_ns: F64
    """FLOPs at the peak of the fastest dtype that counts."""
    flops_ns: F64
    """FLOPs at the peak of the kernel's own dtype; 0 for kernels that do no matrix multiplication."""
    bytes_ns: F64
    """Bytes at the memory bandwidth, at most the kernel's duration: caches may serve them faster."""
    too_fast: Bool
    """Left out, since nothing can be so fast."""

    def at(self, rows: I64) -> Roofline:
        """Of some kernels."""
        return Roofline(**{name: column[rows] for name, column in vars(self).items()})

    @property
    def needs_ns(self) -> F64:
        """What the kernel needs at least, whichever is longer; nan unknown."""
        return np.fmax(self.flops_ns, self.bytes_ns)


def rooflines(
    work: KernelWork, matrix: Bool, duration_ns: I64, ceilings: Ceilings, job_dtype: str | None
) -> Roofline:
    """matrix: kernels whose FLOPs are those of matrix multiplications (GEMM, attention, convolution).

    The dtype to reach is the job's, where it is faster; for FP32 and TF32 a 16-bit one, where the device has
    it. FLOPs of other kernels are not held against a peak: memory bounds them.
    """
    if work.of_none:
        none, no = np.broadcast_to(np.nan, len(duration_ns)), np.broadcast_to(False, len(duration_ns))
        return Roofline(best_ns=none, flops_ns=none, bytes_ns=none, too_fast=no)
    own = _rates(ceilings)[work.dtype]
    best = np.fmax(own, _best_rates(ceilings, job_dtype)[work.dtype])
    flops_ns = np.where(matrix, work.flops / own * 1e9, 0.0)
    best_ns = np.where(matrix, work.flops / best * 1e9, 0.0)
    memory = ceilings.memory.value if ceilings.memory is not None else np.nan
    bytes_ns = np.minimum(work.bytes / memory * 1e9, duration_ns)
    too_fast = flops_ns > TOO_FAST * duration_ns
    # A matrix multiplication is known by its FLOPs, anything else by its bytes.
    unknown = too_fast | np.isnan(np.where(matrix, flops_ns, bytes_ns))
    flops_ns = np.minimum(flops_ns, duration_ns)
    best_ns = np.minimum(best_ns, flops_ns)
    return Roofline(
        best_ns=np.where(unknown, np.nan, best_ns),
        flops_ns=np.where(unknown, np.nan, flops_ns),
        bytes_ns=np.where(unknown, np.nan, bytes_ns),
        too_fast=too_fast,
    )


def believed(work: KernelWork, too_fast: Bool, duration_ns: I64) -> KernelWork:
    """The work, without the model's where too much of it cannot be."""
    model = work.source == MODEL
    whole, wrong = int(duration_ns[model].sum()), int(duration_ns[model & too_fast].sum())
    if wrong <= _BELIEVED_FRAC * whole:
        return work
    return work.without_model(
        f"by the model's shape, kernels that take {wrong / whole:.0%} of its time are faster than the peak: "
        "model, batch, layout or GPU are wrong"
    )


def _rates(ceilings: Ceilings) -> F64:
    """Peak in FLOP/s by index into DTYPES; nan unknown."""
    return np.array(
        [ceilings.flops[name].value if name in ceilings.flops else np.nan for name in DTYPES], np.float64
    )


def _best_rates(ceilings: Ceilings, job_dtype: str | None) -> F64:
    """By index into DTYPES of the kernel: the peak that it is held against."""
    known = {name: ceiling.value for name, ceiling in ceilings.flops.items()}
    job = known.get(job_dtype or "", np.nan)
    short = max((known[name] for name in ("bf16", "fp16") if name in known), default=np.nan)
    return np.array(
        [
            np.nan if name == "fp64" else np.fmax(job, short) if name in _SLOW_DTYPES else job
            for name in DTYPES
        ],
        np.float64,
    )
