"""Kernel time by class, by name and by part of the model."""

from __future__ import annotations

from dataclasses import dataclass

from perfdoc.results.quality import Measured, State


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


@dataclass(frozen=True, kw_only=True)
class PartTime:
    """Kernels of one part of the model in one direction."""

    part: str
    """attention, mlp, moe, moe_router, moe_dispatch, moe_experts, norm, embedding, output_layer, loss,
    optimizer, data, communication, other, unknown."""
    phase: str
    """forward, recompute (forward that is done again for the backward), backward, optimizer, unknown."""
    evidence: str
    """How the part is known, strongest first: range, sequence (autograd's numbers), kernel_name, none."""
    count: int
    total_ns: int
    """Sum of durations clipped to the window; concurrent kernels count twice."""


@dataclass(frozen=True, kw_only=True)
class UnfusedPattern:
    """Sequences of kernels that one fused kernel would replace."""

    pattern: str
    knob: str | None
    """Canonical id of the knob that replaces it; None where no knob does."""
    note: str
    count: int
    """Sequences."""
    kernels: int
    """Kernels in them."""
    total_ns: int
    """Their durations, clipped to the window: a fused kernel takes some of it too."""
    evidence: list[str]
    """Full names of the kernels of the first sequence."""


@dataclass(frozen=True, kw_only=True)
class KernelPartsAnalysis(Measured):
    """Kernel time of one device by part of the model, inside the window.

    Times are sums of durations clipped to the window; shares are of `kernel_ns` unless said otherwise.
    """

    kernel_ns: int
    """All kernels, communication included: the rows of `parts` sum to it."""
    compute_kernel_ns: int
    parts: list[PartTime]
    """By falling time."""
    unknown_frac: float | None
    """Share of compute_kernel_ns whose part is not known."""
    linear_ns: int | None
    """Matrix products of linear layers."""
    linear_frac: float | None
    linear_window_frac: float | None
    """Time in which a linear layer's product ran, as a share of the window: the f of an FP8 ceiling on the
    step, 1 / (1 - f + f / r) for products that are r times faster."""
    linear_reason: str
    """What may be counted in that is no linear layer's; empty where nothing is."""
    grouped_linear_ns: int | None
    """Matrix products of experts: grouped ones, and those in ranges of experts or of a whole MoE layer (its
    router's small one included); not in linear_ns."""
    grouped_linear_frac: float | None
    attention_ns: int | None
    """Fused attention, and products inside of attention's core; not in linear_ns."""
    attention_frac: float | None
    recompute_ns: int | None
    """Forward that is done again for the backward; the reason says where it is only a part of it."""
    recompute_frac: float | None
    recompute_reason: str
    """Why it is not known, or what a zero rests on."""
    padding_frac: float | None
    """Share of tokens that are padding."""
    padding_reason: str
    unfused: list[UnfusedPattern]
