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
    linear_frac: float | None
