"""Our configuration in megatron-core's terms."""

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
    values = {name: getattr(getattr(config, KEYS[name]), name) for name in names}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def uses_transformer_engine(config: Config) -> bool:
    """Whether this run's layers are Transformer Engine's."""
    return config.kernels.transformer_impl != "local" and transformer_engine_available()


def attends_in_bf16(config: Config) -> bool:
    """Whether own attention (`adapt.layers.CoreAttention`) leaves fp32, in which CUDA has no fused kernel for
    grouped queries."""
    return (
        cuda_available()
        and not uses_transformer_engine(config)
        and config.precision.params_dtype == "fp32"
        and config.parallel.context_parallel_size == 1
        and config.model.num_query_groups < config.model.num_attention_heads
    )


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
        recompute_modules=values["recompute_modules"] or None,
        persist_layer_norm=with_engine,
    )
    moe = config.moe
    if moe.num_moe_experts is None:
        values = {name: value for name, value in values.items() if KEYS.get(name) != "moe"}
    else:
        values["moe_ffn_hidden_size"] = moe.moe_ffn_hidden_size or config.model.ffn_hidden_size
        # Of one score the softmax is 1, whatever the router says: it goes over all experts then.
        values["moe_router_pre_softmax"] = moe.moe_router_topk == 1
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
