"""Our configuration in megatron-core's terms."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch

from perfdoc.trainer.adapt import cuda_available, transformer_engine_available
from perfdoc.trainer.config.resolve import KEYS
from perfdoc.trainer.config.schema import Config
from perfdoc.trainer.layout import Layout

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.uint8}


def _same_names(theirs: type, config: Config) -> dict[str, Any]:
    """The settings that one of megatron-core's dataclasses has under the same name."""
    names = [entry.name for entry in fields(theirs) if entry.name in KEYS]
    return {name: getattr(getattr(config, KEYS[name]), name) for name in names}


def uses_transformer_engine(config: Config) -> bool:
    """Whether this run's layers are Transformer Engine's. Raises ValueError if asked for and missing."""
    wanted = config.kernels.transformer_impl
    available = transformer_engine_available()
    if wanted == "transformer_engine" and not available:
        raise ValueError("kernels.transformer_impl = transformer_engine: not importable with CUDA here")
    used = wanted != "local" and available
    if (
        config.parallel.context_parallel_size > 1
        and not used
        and config.parallel.cp_comm_type != "all_gather"
    ):
        raise ValueError(
            f"parallel.cp_comm_type = {config.parallel.cp_comm_type}: only all_gather without "
            "Transformer Engine"
        )
    for key, needs in (
        ("precision.fp8", config.precision.fp8 is not None),
        ("precision.fp4", config.precision.fp4 is not None),
        ("recompute.cpu_offloading", config.recompute.cpu_offloading),
        ("overlap.tp_comm_overlap", config.overlap.tp_comm_overlap),
        ("optimizer.use_precision_aware_optimizer", config.optimizer.use_precision_aware_optimizer),
    ):
        if needs and not used:
            raise ValueError(f"{key}: needs Transformer Engine, which is not in use here")
    return used


def transformer_config(config: Config, layout: Layout) -> Any:
    """megatron-core's TransformerConfig of this run."""
    from megatron.core.transformer.enums import AttnBackend
    from megatron.core.transformer.transformer_config import TransformerConfig

    values = _same_names(TransformerConfig, config)
    with_engine = uses_transformer_engine(config)
    dtype = DTYPES[config.precision.params_dtype]
    batch_p2p = config.overlap.batch_p2p_comm
    deallocate = config.overlap.deallocate_pipeline_outputs
    values.update(
        layernorm_epsilon=config.model.norm_epsilon,
        gated_linear_unit=config.model.swiglu,
        activation_func=torch.nn.functional.silu if config.model.swiglu else torch.nn.functional.gelu,
        params_dtype=dtype,
        pipeline_dtype=dtype if layout.pp > 1 else None,
        bf16=config.precision.params_dtype == "bf16",
        fp16=config.precision.params_dtype == "fp16",
        batch_p2p_comm=not config.overlap.overlap_p2p_comm if batch_p2p is None else batch_p2p,
        deallocate_pipeline_outputs=cuda_available() if deallocate is None else deallocate,
        attention_backend=AttnBackend[config.kernels.attention_backend],
        transformer_impl="transformer_engine" if with_engine else "local",
        use_cpu_initialization=not cuda_available(),
        fp8_param=config.precision.fp8_param_gather,
        recompute_modules=list(config.recompute.recompute_modules) or None,
        offload_modules=list(config.recompute.offload_modules),
        cuda_graph_scope=list(config.kernels.cuda_graph_scope),
        persist_layer_norm=with_engine,
    )
    if (sizes := config.parallel.hierarchical_context_parallel_sizes) is not None:
        values["hierarchical_context_parallel_sizes"] = list(sizes)
    moe = config.moe
    if moe.num_moe_experts is None:
        values = {name: value for name, value in values.items() if KEYS.get(name) != "moe"}
    else:
        values["moe_ffn_hidden_size"] = moe.moe_ffn_hidden_size or config.model.ffn_hidden_size
        if moe.moe_router_load_balancing_type in ("none", "sinkhorn"):
            values["moe_aux_loss_coeff"] = 0.0
    return TransformerConfig(**values)


def ddp_config(config: Config) -> Any:
    """megatron-core's DistributedDataParallelConfig of this run."""
    from megatron.core.distributed import DistributedDataParallelConfig

    return DistributedDataParallelConfig(**_same_names(DistributedDataParallelConfig, config))


def optimizer_config(config: Config) -> Any:
    """megatron-core's OptimizerConfig of this run."""
    from megatron.core.optimizer import OptimizerConfig

    dtype = config.precision.params_dtype
    values = _same_names(OptimizerConfig, config)
    values.update({name: DTYPES[value] for name, value in values.items() if name.endswith("_dtype")})
    values.update(
        optimizer="adam",
        bf16=dtype == "bf16",
        fp16=dtype == "fp16",
        fp8_recipe=config.precision.fp8_recipe if config.precision.fp8 else None,
    )
    return OptimizerConfig(**values)
