"""Megatron FSDP: megatron-core's own sharding of weights, gradients and optimizer states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

Sharding = Literal["no_shard", "optim", "optim_grads", "optim_grads_params"]


@dataclass(frozen=True, kw_only=True)
class FsdpConfig:
    """What is sharded over data-parallel ranks, and how it is moved."""

    use_megatron_fsdp: bool = False
    data_parallel_sharding_strategy: Sharding = "no_shard"
    outer_dp_sharding_strategy: Sharding = "no_shard"
    """Over the replicas, with num_distributed_optimizer_instances above 1."""
    fsdp_double_buffer: bool = False
    suggested_communication_unit_size: Annotated[int, Meta(ge=1)] | None = None
    """Elements, not bytes."""
    gradient_reduce_div_fusion: bool = True
    fsdp_manual_registration: bool = False
