"""What needs CUDA, and what gloo cannot do."""

from __future__ import annotations

from perfdoc.trainer.constraints.catalogue import Rule


def _cuda_only(section: str, name: str, rule: str = "needs CUDA") -> Rule:
    """A switch that a CPU cannot turn on."""
    return (
        f"{section}.{name}",
        lambda c, s, d: d == "cpu" and bool(getattr(getattr(c, section), name)),
        rule,
    )


CPU: tuple[Rule, ...] = (
    (
        "parallel.expert_tensor_parallel_size",
        lambda c, s, d: s.etp > 1 and s.ep > 1 and d == "cpu",
        "above 1 with EP fails on gloo, whose all-gather needs equal sizes",
    ),
    (
        "parallel.cp_comm_type",
        lambda c, s, d: s.cp > 1 and d == "cpu" and c.parallel.cp_comm_type != "all_gather",
        "without Transformer Engine keys and values are gathered: only all_gather",
    ),
    (
        "moe.moe_token_dispatcher_type",
        lambda c, s, d: (
            bool(c.moe.num_moe_experts)
            and c.moe.moe_token_dispatcher_type == "flex"
            and (d == "cpu" or s.etp * s.ep == 1)
        ),
        "flex needs CUDA and expert_model_parallel_size x expert_tensor_parallel_size above 1",
    ),
    (
        "overlap.deallocate_pipeline_outputs",
        lambda c, s, d: (
            d == "cpu" and c.overlap.overlap_p2p_comm and c.overlap.deallocate_pipeline_outputs is True
        ),
        "on gloo an output's memory would go while it is still being sent: silently wrong gradients",
    ),
    (
        "kernels.transformer_impl",
        lambda c, s, d: c.kernels.transformer_impl == "transformer_engine" and d == "cpu",
        "Transformer Engine does not run without a GPU",
    ),
    (
        "kernels.cuda_graph_impl",
        lambda c, s, d: c.kernels.cuda_graph_impl != "none" and d == "cpu",
        "needs CUDA",
    ),
    (
        "precision.fp8",
        lambda c, s, d: c.precision.fp8 is not None and (d == "cpu" or c.precision.params_dtype == "fp32"),
        "needs CUDA, Transformer Engine and params_dtype bf16 or fp16",
    ),
    _cuda_only("overlap", "tp_comm_overlap", "needs CUDA and Transformer Engine"),
    _cuda_only("overlap", "nccl_ub"),
    _cuda_only("overlap", "use_sharp", "needs CUDA and an InfiniBand fabric with SHARP"),
    (
        "precision.fp4",
        lambda c, s, d: c.precision.fp4 is not None and (d == "cpu" or c.precision.params_dtype != "bf16"),
        "needs a Blackwell GPU, Transformer Engine and params_dtype bf16",
    ),
    (
        "precision.fp8_dot_product_attention",
        lambda c, s, d: c.precision.fp8_dot_product_attention and c.precision.fp8 is None,
        "needs fp8",
    ),
    (
        "kernels.fused_single_qkv_rope",
        lambda c, s, d: c.kernels.fused_single_qkv_rope and not c.kernels.apply_rope_fusion,
        "needs apply_rope_fusion",
    ),
    *(
        (
            f"recompute.{name}",
            lambda c, s, d, name=name: getattr(c.recompute, name) and not c.recompute.cpu_offloading,
            "is read with cpu_offloading only",
        )
        for name in ("cpu_offloading_weights", "cpu_offloading_double_buffering")
    ),
    (
        "recompute.cpu_offloading_activations",
        lambda c, s, d: (
            c.recompute.cpu_offloading
            and not (c.recompute.cpu_offloading_activations or c.recompute.cpu_offloading_weights)
        ),
        "cpu_offloading moves activations or weights, and both are off",
    ),
    _cuda_only("recompute", "fine_grained_activation_offloading", "needs CUDA, whose streams do the copies"),
    _cuda_only("training", "empty_unused_memory_level", "needs CUDA: it empties the cache of its allocator"),
    _cuda_only("profiling", "nsys_gpu_metrics", "needs CUDA: the counters are the GPU's"),
    _cuda_only("profiling", "memory_snapshot_path", "needs CUDA: snapshots are of its allocator"),
    _cuda_only("recompute", "cpu_offloading"),
    _cuda_only("optimizer", "use_precision_aware_optimizer", "needs CUDA and Transformer Engine"),
    *(
        _cuda_only("kernels", name)
        for name in (
            "gradient_accumulation_fusion",
            "bias_activation_fusion",
            "bias_dropout_fusion",
            "masked_softmax_fusion",
            "apply_rope_fusion",
            "cross_entropy_loss_fusion",
            "use_te_rng_tracker",
        )
    ),
    *(_cuda_only("moe", name) for name in ("moe_grouped_gemm", "moe_permute_fusion", "moe_router_fusion")),
)
