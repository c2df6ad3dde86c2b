"""What a GPU and a network do in how much time: rooflines with stated efficiencies.

The efficiencies are round figures that kernels of training reach, not measurements: they make the parts of a
step stand in plausible proportion, and no absolute time that follows from them is claimed to be real.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from perfdoc.profiling.gpus import gpu_model
from perfdoc.records import dataclass

MATRIX_EFFICIENCY = 0.65
"""Of the dense peak, for GEMMs of training's sizes."""
ATTENTION_FORWARD_EFFICIENCY = 0.55
ATTENTION_BACKWARD_EFFICIENCY = 0.45
MEMORY_EFFICIENCY = 0.8
"""Of the memory bandwidth, for kernels that only move data."""
WIRE_EFFICIENCY = 0.8
"""Of the link's bandwidth, for large messages."""
KERNEL_FLOOR_NS = 2_200
"""No kernel is shorter."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU and its links. Bandwidths are bytes per nanosecond (GB/s), one way."""

    name: str
    sm_count: int
    memory_bytes: int
    dense_tflops: float
    """Peak in bf16 without sparsity."""
    memory_gbps: float
    compute_capability: tuple[int, int]
    node_gbps: float
    """Between GPUs of one node."""
    network_gbps: float = 50.0
    """Between nodes, by GPU."""
    per_node: int = 8
    node_latency_ns: int = 9_000
    """Of a collective inside a node, whatever it carries."""
    network_latency_ns: int = 24_000

    @property
    def flops_per_ns(self) -> float:
        """Dense bf16 peak."""
        return self.dense_tflops * 1e3

    def matrix_ns(self, rows: int, inner: int, columns: int, *, count: int = 1) -> int:
        """`count` GEMMs (rows x inner) (inner x columns) in bf16: the longer of compute and memory.

        8192 x 8192 x 8192 on an H100: 2 * 8192^3 / (989e3 * 0.65) = 1,710,000 ns.
        """
        flops = 2.0 * rows * inner * columns * count
        moved = 2.0 * count * (rows * inner + inner * columns + rows * columns)
        return max(_whole(flops / (self.flops_per_ns * MATRIX_EFFICIENCY)), self.moving_ns(moved))

    def attention_ns(self, flops: float, *, backward: bool) -> int:
        """Fused attention of so many operations."""
        efficiency = ATTENTION_BACKWARD_EFFICIENCY if backward else ATTENTION_FORWARD_EFFICIENCY
        return max(_whole(flops / (self.flops_per_ns * efficiency)), KERNEL_FLOOR_NS)

    def moving_ns(self, size_bytes: float) -> int:
        """A kernel that reads and writes so much in all."""
        return max(_whole(size_bytes / (self.memory_gbps * MEMORY_EFFICIENCY)), KERNEL_FLOOR_NS)

    def collective_ns(self, operation: str, size_bytes: int, ranks: int, *, crosses_nodes: bool) -> int:
        """From the last member's arrival to the end. size_bytes is what NCCL's payload says: of a gather and
        a scatter the part of one rank, of an all-reduce the whole, of an exchange what goes to each peer.

        Ring: latency + moved bytes / bandwidth; an all-reduce of B over n moves 2 B (n - 1) / n.
        """
        latency = self.network_latency_ns if crosses_nodes else self.node_latency_ns
        wire = (self.network_gbps if crosses_nodes else self.node_gbps) * WIRE_EFFICIENCY
        moved = {
            "all_gather": size_bytes * (ranks - 1),
            "reduce_scatter": size_bytes * (ranks - 1),
            "all_reduce": 2.0 * size_bytes * (ranks - 1) / ranks,
            "all_to_all": size_bytes * (ranks - 1),
            "send_recv": size_bytes,
        }[operation]
        return latency + _whole(moved / wire)


def _whole(ns: float) -> int:
    return int(ns + 0.5)


def _gpu(name: str, *, gib: int, **more: Any) -> Gpu:
    """With the rates of profiling/gpus.yaml."""
    sheet = gpu_model(name)
    assert sheet is not None
    assert sheet.sm_count is not None
    assert sheet.memory_gbps is not None
    return Gpu(
        name=name,
        sm_count=sheet.sm_count,
        memory_bytes=gib * 2**30,
        dense_tflops=sheet.tflops["bf16"],
        memory_gbps=sheet.memory_gbps,
        **more,
    )


GPUS: Mapping[str, Gpu] = MappingProxyType(
    {
        "a100": _gpu(
            "NVIDIA A100-SXM4-80GB", gib=80, compute_capability=(8, 0), node_gbps=300, network_gbps=25
        ),
        "h100": _gpu("NVIDIA H100 80GB HBM3", gib=80, compute_capability=(9, 0), node_gbps=450),
        "h200": _gpu("NVIDIA H200", gib=141, compute_capability=(9, 0), node_gbps=450),
        "b200": _gpu("NVIDIA B200", gib=180, compute_capability=(10, 0), node_gbps=900),
    }
)
"""By the name that a user gives. Links from the vendor's data sheets."""
