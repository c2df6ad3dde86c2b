"""Communication: how it overlaps with compute, and Megatron FSDP, which shards weights and gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

Positive = Annotated[int, Meta(ge=1)]
NonNegative = Annotated[int, Meta(ge=0)]
Probability = Annotated[float, Meta(ge=0.0, lt=1.0)]
Fraction = Annotated[float, Meta(ge=0.0, le=1.0)]
PositiveFloat = Annotated[float, Meta(gt=0.0)]
NonNegativeFloat = Annotated[float, Meta(ge=0.0)]


@dataclass(frozen=True, kw_only=True)
class OverlapConfig:
    """Which communication runs beside compute."""

    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    align_param_gather: bool = False
    overlap_param_gather_with_optimizer_step: bool = False
    bucket_size: Positive | None = None
    """Elements, not bytes; only with overlap_grad_reduce."""
    average_in_collective: bool = False
    reduce_scatter_with_fp32_accumulation: bool = False
    pad_buckets_for_high_nccl_busbw: bool = False
    overlap_p2p_comm: bool = False
    batch_p2p_comm: bool | None = None
    """null: the opposite of overlap_p2p_comm, which excludes it."""
    overlap_p2p_comm_warmup_flush: bool = False
    deallocate_pipeline_outputs: bool | None = None
    """null: on with CUDA. On gloo the memory would go while its send is still under way."""
    defer_embedding_wgrad_compute: bool = False
    wgrad_deferral_limit: NonNegative = 0
    tp_comm_overlap: bool = False
    tp_comm_bulk_wgrad: bool = True
    tp_comm_bulk_dgrad: bool = True
    tp_comm_overlap_ag: bool = True
    tp_comm_overlap_rs: bool = True
    tp_comm_overlap_rs_dgrad: bool = False
    tp_comm_overlap_cfg: str | None = None
    """A YAML file with method, num_sm, cga_size, num_splits and more by GEMM (`qkv_fprop: {…}`)."""
    tp_overlap_num_sm: Positive | None = None
    """For all GEMMs whose method reads it, as the next three; null: Transformer Engine's own choice."""
    tp_overlap_cga_size: Annotated[int, Meta(ge=1, le=4)] | None = None
    tp_overlap_fp8_buf: bool | None = None
    tp_overlap_num_splits: Positive | None = None
    overlap_moe_expert_parallel_comm: bool = False
    ep_overlap_early_attn_memory_release: bool = False
    delay_wgrad_compute: bool = False
    nccl_ub: bool = False
    disable_symmetric_registration: bool = False
    use_sharp: bool = False
    sharp_enabled_group: Literal["dp", "dp_replica"] | None = None
    high_priority_stream_groups: tuple[str, ...] = ()
    nccl_communicator_config_path: str | None = None


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
