"""Our configuration in megatron-core's terms."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch

from perfdoc.trainer.adapt import cuda_available, transformer_engine_available
from perfdoc.trainer.config.schema import Config
from perfdoc.trainer.layout import Layout

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.uint8}

SAME_NAME = {
    "model": (
        "num_layers",
        "hidden_size",
        "ffn_hidden_size",
        "num_attention_heads",
        "num_query_groups",
        "kv_channels",
        "normalization",
        "add_bias_linear",
        "init_method_std",
        "hidden_dropout",
        "attention_dropout",
    ),
    "parallel": (
        "tensor_model_parallel_size",
        "sequence_parallel",
        "pipeline_model_parallel_size",
        "virtual_pipeline_model_parallel_size",
        "num_layers_in_first_pipeline_stage",
        "num_layers_in_last_pipeline_stage",
        "account_for_embedding_in_pipeline_split",
        "account_for_loss_in_pipeline_split",
        "pipeline_model_parallel_layout",
        "microbatch_group_size_per_vp_stage",
        "context_parallel_size",
        "cp_comm_type",
        "hierarchical_context_parallel_sizes",
        "expert_model_parallel_size",
        "expert_tensor_parallel_size",
    ),
    "overlap": (
        "overlap_p2p_comm",
        "overlap_p2p_comm_warmup_flush",
        "defer_embedding_wgrad_compute",
        "wgrad_deferral_limit",
        "tp_comm_overlap",
        "tp_comm_bulk_wgrad",
        "tp_comm_bulk_dgrad",
        "tp_comm_overlap_ag",
        "tp_comm_overlap_rs",
        "tp_comm_overlap_rs_dgrad",
        "overlap_moe_expert_parallel_comm",
        "ep_overlap_early_attn_memory_release",
        "delay_wgrad_compute",
    ),
    "precision": ("fp8", "fp8_recipe", "fp8_dot_product_attention", "fp4", "first_last_layers_bf16"),
    "recompute": (
        "recompute_granularity",
        "recompute_method",
        "recompute_num_layers",
        "distribute_saved_activations",
        "cpu_offloading",
        "cpu_offloading_num_layers",
        "cpu_offloading_activations",
        "cpu_offloading_weights",
        "cpu_offloading_double_buffering",
        "fine_grained_activation_offloading",
    ),
    "kernels": (
        "gradient_accumulation_fusion",
        "bias_activation_fusion",
        "bias_dropout_fusion",
        "masked_softmax_fusion",
        "apply_rope_fusion",
        "fused_single_qkv_rope",
        "cross_entropy_loss_fusion",
        "cross_entropy_fusion_impl",
        "cuda_graph_impl",
        "use_te_rng_tracker",
    ),
}
"""Settings that TransformerConfig has under the same name."""


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

    values: dict[str, Any] = {
        name: getattr(getattr(config, section), name)
        for section, names in SAME_NAME.items()
        for name in names
    }
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
        persist_layer_norm=with_engine,
    )
    if (sizes := config.parallel.hierarchical_context_parallel_sizes) is not None:
        values["hierarchical_context_parallel_sizes"] = list(sizes)
    values["cuda_graph_scope"] = list(config.kernels.cuda_graph_scope)
    if config.moe.num_moe_experts is not None:
        values.update(_moe_values(config))
    return TransformerConfig(**values)


def _moe_values(config: Config) -> dict[str, Any]:
    moe = config.moe
    balancing = moe.moe_router_load_balancing_type
    return {
        "num_moe_experts": moe.num_moe_experts,
        "moe_router_topk": moe.moe_router_topk,
        "moe_ffn_hidden_size": moe.moe_ffn_hidden_size or config.model.ffn_hidden_size,
        "moe_shared_expert_intermediate_size": moe.moe_shared_expert_intermediate_size,
        "moe_shared_expert_overlap": moe.moe_shared_expert_overlap,
        "moe_token_dispatcher_type": moe.moe_token_dispatcher_type,
        "moe_flex_dispatcher_backend": moe.moe_flex_dispatcher_backend,
        "moe_deepep_num_sms": moe.moe_deepep_num_sms,
        "moe_hybridep_num_sms": moe.moe_hybridep_num_sms,
        "moe_router_load_balancing_type": balancing,
        "moe_aux_loss_coeff": 0.0 if balancing in ("none", "sinkhorn") else moe.moe_aux_loss_coeff,
        "moe_router_dtype": moe.moe_router_dtype,
        "moe_grouped_gemm": moe.moe_grouped_gemm,
        "moe_permute_fusion": moe.moe_permute_fusion,
        "moe_router_fusion": moe.moe_router_fusion,
        "moe_expert_capacity_factor": moe.moe_expert_capacity_factor,
        "moe_pad_expert_input_to_capacity": moe.moe_pad_expert_input_to_capacity,
        "moe_router_padding_for_quantization": moe.moe_router_padding_for_quantization,
    }


def ddp_config(config: Config) -> Any:
    """megatron-core's DistributedDataParallelConfig of this run."""
    from megatron.core.distributed import DistributedDataParallelConfig

    overlap, fsdp = config.overlap, config.fsdp
    return DistributedDataParallelConfig(
        grad_reduce_in_fp32=config.precision.grad_reduce_in_fp32,
        overlap_grad_reduce=overlap.overlap_grad_reduce,
        overlap_param_gather=overlap.overlap_param_gather,
        align_param_gather=overlap.align_param_gather,
        use_distributed_optimizer=config.optimizer.use_distributed_optimizer,
        num_distributed_optimizer_instances=config.parallel.num_distributed_optimizer_instances,
        check_for_nan_in_grad=config.precision.check_for_nan_in_grad,
        bucket_size=overlap.bucket_size,
        pad_buckets_for_high_nccl_busbw=overlap.pad_buckets_for_high_nccl_busbw,
        average_in_collective=overlap.average_in_collective,
        fp8_param_gather=config.precision.fp8_param_gather,
        reduce_scatter_with_fp32_accumulation=overlap.reduce_scatter_with_fp32_accumulation,
        reuse_grad_buf_for_mxfp8_param_ag=config.precision.reuse_grad_buf_for_mxfp8_param_ag,
        nccl_ub=overlap.nccl_ub,
        disable_symmetric_registration=overlap.disable_symmetric_registration,
        **{entry.name: getattr(fsdp, entry.name) for entry in fields(fsdp)},
        delay_wgrad_compute=overlap.delay_wgrad_compute,
    )


def optimizer_config(config: Config) -> Any:
    """megatron-core's OptimizerConfig of this run."""
    from megatron.core.optimizer import OptimizerConfig

    settings, dtype = config.optimizer, config.precision.params_dtype
    return OptimizerConfig(
        optimizer="adam",
        lr=settings.lr,
        min_lr=settings.min_lr,
        weight_decay=settings.weight_decay,
        adam_beta1=settings.adam_beta1,
        adam_beta2=settings.adam_beta2,
        adam_eps=settings.adam_eps,
        clip_grad=settings.clip_grad,
        bf16=dtype == "bf16",
        fp16=dtype == "fp16",
        params_dtype=DTYPES[dtype],
        initial_loss_scale=config.precision.initial_loss_scale,
        fp8_recipe=config.precision.fp8_recipe if config.precision.fp8 else None,
        use_distributed_optimizer=settings.use_distributed_optimizer,
        overlap_param_gather=config.overlap.overlap_param_gather,
        overlap_param_gather_with_optimizer_step=config.overlap.overlap_param_gather_with_optimizer_step,
        reuse_grad_buf_for_mxfp8_param_ag=config.precision.reuse_grad_buf_for_mxfp8_param_ag,
        use_precision_aware_optimizer=settings.use_precision_aware_optimizer,
        exp_avg_dtype=DTYPES[settings.exp_avg_dtype],
        exp_avg_sq_dtype=DTYPES[settings.exp_avg_sq_dtype],
        main_grads_dtype=DTYPES[settings.main_grads_dtype],
        main_params_dtype=DTYPES[settings.main_params_dtype],
        optimizer_cpu_offload=settings.optimizer_cpu_offload,
        optimizer_offload_fraction=settings.optimizer_offload_fraction,
        overlap_cpu_optimizer_d2h_h2d=settings.overlap_cpu_optimizer_d2h_h2d,
    )
