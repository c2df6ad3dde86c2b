"""The model, its training, and what needs CUDA or what gloo cannot do."""

from __future__ import annotations

from perfdoc.trainer.constraints.catalogue import Rule

MODEL: tuple[Rule, ...] = (
    (
        "model.num_attention_heads",
        lambda c, s, d: (
            c.model.kv_channels is None and c.model.hidden_size % c.model.num_attention_heads != 0
        ),
        "hidden_size is not a multiple of it; give kv_channels",
    ),
    (
        "model.num_query_groups",
        lambda c, s, d: c.model.num_attention_heads % c.model.num_query_groups != 0,
        "does not divide num_attention_heads",
    ),
    (
        "model.ffn_hidden_size",
        lambda c, s, d: c.model.ffn_hidden_size % s.tp != 0,
        "not divisible by tensor_model_parallel_size",
    ),
    (
        "model.make_vocab_size_divisible_by",
        lambda c, s, d: c.model.make_vocab_size_divisible_by % s.tp != 0,
        "not divisible by tensor_model_parallel_size",
    ),
    (
        "model.seq_length",
        lambda c, s, d: c.parallel.sequence_parallel and (c.model.seq_length // s.cp) % s.tp != 0,
        "what context parallelism leaves of it is not divisible by tensor_model_parallel_size, "
        "as sequence_parallel needs",
    ),
    (
        "parallel.sequence_parallel",
        lambda c, s, d: bool(c.moe.num_moe_experts) and s.tp > 1 and not c.parallel.sequence_parallel,
        "a mixture of experts with tensor parallelism trains with sequence_parallel only",
    ),
    (
        "parallel.expert_tensor_parallel_size",
        lambda c, s, d: c.parallel.expert_tensor_parallel_size > 1 and c.moe.num_moe_experts is None,
        "needs num_moe_experts",
    ),
    (
        "parallel.expert_tensor_parallel_size",
        lambda c, s, d: bool(c.moe.num_moe_experts) and s.ep == 1 and s.etp != s.tp,
        "with EP 1 it must equal tensor_model_parallel_size: the experts' gradients would be summed over the "
        "dense DP group only, and be silently wrong",
    ),
    (
        "moe.moe_router_topk",
        lambda c, s, d: bool(c.moe.num_moe_experts) and c.moe.moe_router_topk > c.moe.num_moe_experts,
        "more than num_moe_experts",
    ),
    (
        "environment.cuda_device_max_connections",
        lambda c, s, d: (
            c.environment.cuda_device_max_connections == 1 and c.overlap.overlap_moe_expert_parallel_comm
        ),
        "must be above 1 with overlap_moe_expert_parallel_comm",
    ),
)


TRAINING: tuple[Rule, ...] = (
    (
        "optimizer.min_lr",
        lambda c, s, d: c.optimizer.min_lr > c.optimizer.lr,
        "above lr",
    ),
    (
        "optimizer.lr_warmup_iters",
        lambda c, s, d: c.optimizer.lr_warmup_iters >= (c.optimizer.lr_decay_iters or c.training.train_iters),
        "not below lr_decay_iters (where that is null, train_iters): a short run wants a smaller one",
    ),
    (
        "data.split",
        lambda c, s, d: (
            c.training.eval_interval is not None
            and (len(c.data.split.split(",")) < 2 or float(c.data.split.split(",")[1]) == 0)
        ),
        "gives validation nothing although eval_interval is set; set eval_interval=null",
    ),
    (
        "data.split",
        lambda c, s, d: float(c.data.split.split(",")[0]) == 0,
        "gives training nothing",
    ),
    (
        "checkpoint.save_interval",
        lambda c, s, d: c.checkpoint.save_interval is not None and c.checkpoint.save is None,
        "needs checkpoint.save",
    ),
    (
        "checkpoint.load_step",
        lambda c, s, d: c.checkpoint.load_step is not None and c.checkpoint.load is None,
        "needs checkpoint.load",
    ),
    (
        "training.manual_gc_interval_val",
        lambda c, s, d: c.training.manual_gc_interval_val > 0 and not c.training.manual_gc,
        "is read with manual_gc only",
    ),
    (
        "profiling.use_pytorch_profiler",
        lambda c, s, d: c.profiling.use_pytorch_profiler and c.profiling.use_nsys_profiler,
        "one profiler at a time: use_nsys_profiler or use_pytorch_profiler",
    ),
    (
        "profiling.profile_ranks",
        lambda c, s, d: max(c.profiling.profile_ranks or (0,)) >= s.world_size,
        "names a rank that the run does not have",
    ),
    (
        "precision.first_last_layers_bf16",
        lambda c, s, d: c.precision.first_last_layers_bf16 and c.precision.fp8 is None,
        "needs fp8 with a recipe other than delayed",
    ),
)


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
