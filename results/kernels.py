"""Kernel time by class, by name and by part of the model."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from perfdoc.records import dataclass
from perfdoc.results.quality import Measured, State

PHASES = ("forward", "recompute", "backward", "optimizer", "unknown")
"""What a part of the model is run for."""


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
    """Share of kernel time in GEMMs by name: linear layers, experts, and unfused attention."""
    linear_frac: float | None
    """Share of kernel time in linear layers alone: the ranks' `kernel_parts.linear_ns` over `kernel_ns`.
    None where no rank knows it."""
    linear_reason: str
    """Why it is None, or what may be counted in."""


@dataclass(frozen=True, kw_only=True)
class SuspectedKernel:
    """Kernels of one name and one stream that may be communication."""

    name: str
    short_name: str
    """Namespaces and function, without arguments and template parameters."""
    stream: int
    own_stream: bool
    """Whether hardly anything known computes on its stream, and something does on another: without that the
    suspicion is weaker."""
    count: int
    total_ns: int
    """Sum of durations clipped to the window."""
    blocks: int
    """Median of thread blocks a launch."""
    spread: float | None
    """Ninth over first decile of the durations of equal launches; None with too few of them."""


@dataclass(frozen=True, kw_only=True)
class SuspectedCommunication:
    """Kernels of unknown class that look like communication. They count as compute until --comm-kernel names
    them."""

    kernels: list[SuspectedKernel]
    """By falling time; of very many those of most time. Empty where nothing is suspected."""
    total_ns: int
    """Union of their time in the window."""
    alone_ns: int
    """The part of it with no other compute: exposed communication, if they are communication."""


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
    apart_ns: int = 0
    """What passed since the kernel before on the stream of each, on the host, its own launch included, or,
    where that is longer or not known, on the device. With kernels that go, idle time of it goes."""


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
    stays_ns: int = 0
    """Of total_ns, what a fused kernel takes at least: it still reads the tensor and writes the result."""
    apart_ns: int = 0
    """Of the kernels that go, as of a `PartTime`."""


@dataclass(frozen=True, kw_only=True)
class UnfusedAttention:
    """Softmax between products, as attention of separate kernels runs it, inside the window."""

    forwards: int
    """Softmax with a product on either side; 0 where none was seen."""
    backwards: int | None
    """Gradients of them; None where what may be gradients may as well be something else: then the times are
    of forwards alone."""
    between_ns: int
    """Kernels between the products: scale, mask, softmax, dropout, casts."""
    products_ns: int
    """Their products: queries with keys, and with values."""
    apart_ns: int = 0
    """Of all of these kernels but the first of each pass, as of a `PartTime`."""


NO_UNFUSED_ATTENTION = UnfusedAttention(forwards=0, backwards=0, between_ns=0, products_ns=0)


@dataclass(frozen=True, kw_only=True)
class OptimizerLoop:
    """An optimizer step that updates one parameter after the other, with several small kernels for each."""

    evidence: Literal["none", "range", "sequence"] = "none"
    """How it is known: a range around the launches, or the kernels' sequence. none: no such loop was seen."""
    stretches: int = 0
    """Uninterrupted runs of such kernels inside the window."""
    kernels: int = 0
    """Small kernels in them."""
    kernels_ns: int = 0
    """Their durations, clipped to the window."""
    idle_ns: int = 0
    """The device's idle time between the first and the last kernel of each."""
    host_ns: int = 0
    """From the first launch to the last of each, on the host; 0 where launches are not known."""
    kernels_per_tensor: int | None = None
    """None where the sequence does not tell."""
    names: list[str] = field(default_factory=list)
    """The most frequent functions."""


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
    """GEMMs of linear layers."""
    linear_frac: float | None
    linear_window_frac: float | None
    """Time in which a GEMM of a linear layer ran, as a share of the window: the f of the upper bound of FP8
    on the step, 1 / (1 - f + f / r) for GEMMs that are r times faster."""
    linear_reason: str
    """What it may include beside linear layers; empty if nothing."""
    grouped_linear_ns: int | None
    """GEMMs of experts: grouped ones, and those in ranges of experts or of a whole MoE layer (its router's
    small one included); not in linear_ns."""
    grouped_linear_frac: float | None
    attention_ns: int | None
    """Fused attention, and GEMMs of unfused attention's core; not in linear_ns."""
    attention_frac: float | None
    recompute_ns: int | None
    """Forward pass repeated for the backward pass; the reason says if it is only a part."""
    recompute_frac: float | None
    recompute_reason: str
    """Why it is not known, or what a zero rests on."""
    padding_frac: float | None
    """Share of tokens that are padding."""
    padding_reason: str
    unfused: list[UnfusedPattern]
    optimizer: OptimizerLoop = field(default_factory=OptimizerLoop)
    """An optimizer step that loops over the parameters."""
    unfused_attention: UnfusedAttention = NO_UNFUSED_ATTENTION
    """Attention of separate kernels, by their sequence."""
