"""Knobs that are environment variables: read by CUDA, NCCL, Transformer Engine or PyTorch at start-up.

A field's name in capitals is the variable's name. null leaves the variable as it is found.
"""

from collections.abc import MutableMapping
from dataclasses import dataclass, fields
from typing import Annotated, Literal

from msgspec import Meta


@dataclass(frozen=True, kw_only=True)
class EnvironmentConfig:
    """Variables that the trainer sets before torch is imported."""

    cuda_device_max_connections: Annotated[int, Meta(ge=1, le=32)] | None = None
    nvte_fwd_layernorm_sm_margin: Annotated[int, Meta(ge=0)] | None = None
    nvte_bwd_layernorm_sm_margin: Annotated[int, Meta(ge=0)] | None = None
    nvte_norm_fwd_use_cudnn: Literal[0, 1] | None = None
    nvte_norm_bwd_use_cudnn: Literal[0, 1] | None = None
    nvte_batch_mha_p2p_comm: Literal[0, 1] | None = None
    nvte_cpu_offload_v1: Literal[0, 1] | None = None
    nccl_nvls_enable: Literal[0, 1, 2] | None = None
    nccl_debug: Literal["VERSION", "WARN", "INFO", "TRACE"] | None = None
    nccl_net_gdr_level: Literal["LOC", "PIX", "PXB", "PHB", "SYS"] | None = None
    nccl_net_gdr_c2c: Literal[0, 1] | None = None
    nccl_graph_register: Literal[0, 1] | None = None
    nccl_cta_policy: Literal[0, 1, 2] | None = None
    nccl_p2p_net_chunksize: Annotated[int, Meta(ge=1)] | None = None
    torch_nccl_high_priority: Literal[0, 1] | None = None
    pytorch_cuda_alloc_conf: str | None = None
    nvlink_domain_size: Annotated[int, Meta(ge=1)] | None = None
    use_mnnvl: Literal[0, 1] | None = None
    num_of_hybrid_ep_ranks_per_nvlink_domain: Annotated[int, Meta(ge=1)] | None = None
    nvshmem_ib_enable_ibgda: bool | None = None
    deep_ep_device_to_hca_mapping: str | None = None


def apply_environment(config: EnvironmentConfig, environment: MutableMapping[str, str]) -> dict[str, str]:
    """Write the given variables into `environment`; returns what was written. Call before importing torch."""
    written: dict[str, str] = {}
    for entry in fields(config):
        value = getattr(config, entry.name)
        if value is not None:
            written[entry.name.upper()] = str(int(value) if isinstance(value, bool) else value)
    environment.update(written)
    return written
