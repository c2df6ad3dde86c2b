"""A model by its layers, and the machines that it runs on: all that a job's layout then follows from.

Other jobs of the engine are a few kernels a pass, and settings change them by factors (`changed.py`). Here a
pass is its layers, so every layout has the kernels, launches, sizes and links that it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LayeredModel:
    """Work and sizes of one sequence on one rank without tensor parallelism, of which tp ranks have a tp-th
    each; a micro-batch of n sequences has n times as much."""

    layers: int
    """Of the whole model."""
    forward_ns: int
    """GEMM of a layer; its activations are gathered over tp before it and scattered behind it."""
    backward_ns: int
    """Two GEMMs of half as long; beside the first activations are gathered, beside the second scattered."""
    norm_ns: int = 20_011
    """One in each direction."""
    output_ns: tuple[int, int] = (0, 0)
    """More behind the last layer, forward and backward."""
    activation_bytes: int = 8 << 20
    """Between two layers."""
    weight_bytes: int = 1 << 30
    """Of the whole model. Once a step gradients of twice the size are scattered over dp, then weights
    gathered."""
    ns_per_byte: float = 0.005
    """That a rank moves inside a node."""
    across: float = 1.0
    """How many times as long a byte takes in a group with ranks on several nodes."""
    node: int = 8
    """Ranks of a node."""
    latency_ns: int = 21_001
    """Of a collective."""

    def transfer_ns(self, moved_bytes: float, ranks: Sequence[int]) -> int:
        """From when all are there to the end."""
        slower = self.across if len({r // self.node for r in ranks}) > 1 else 1.0
        return round(self.latency_ns + moved_bytes * self.ns_per_byte * slower)
