"""Kernel time by class and by name."""

from __future__ import annotations

from dataclasses import dataclass

from perfdoc.diagnosis.state import State


@dataclass(frozen=True, kw_only=True)
class KernelClass:
    """Kernels of one class over all ranks' windows."""

    name: str
    count: int
    total_ns: int
    """Sum of durations clipped to the windows: concurrent kernels count twice here, unlike in the
    ledger."""
    share_frac: float
    """Of the sum over all classes."""


@dataclass(frozen=True, kw_only=True)
class TopKernel:
    """One kernel name over all ranks' windows."""

    name: str
    short_name: str
    """Function name without arguments and template parameters; several kernels may share it."""
    kernel_class: str
    count: int
    total_ns: int
    mean_ns: int
    share_frac: float


@dataclass(frozen=True, kw_only=True)
class KernelsAnalysis:
    """Kernel time by class and by name."""

    state: State
    reason: str
    classes: list[KernelClass]
    top: list[TopKernel]
    other_frac: float | None
    """Share of kernel time that no pattern of the classifier names."""
    gemm_frac: float | None
    """Share of kernel time in matrix products by their names: linear layers, experts, and attention that is
    not fused."""
    linear_frac: float | None
    """Share of kernel time in linear layers alone: the ranks' `kernel_parts.linear_ns` over `kernel_ns`.
    None where no rank knows it."""
    linear_reason: str
    """Why it is None, or what may be counted in."""
