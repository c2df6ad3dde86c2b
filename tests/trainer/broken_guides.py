"""Broken configurations of the settings that tuning guides name: message, overrides, ranks, device."""

from __future__ import annotations

from perfdoc.trainer.layout import Device

TP2 = ["tensor_model_parallel_size=2", "sequence_parallel=true"]
PP2 = ["pipeline_model_parallel_size=2"]
FSDP = ["use_megatron_fsdp=true"]
OVERLAPS = ["overlap_grad_reduce=true", "overlap_param_gather=true"]
STEP = [
    *[*PP2, *OVERLAPS, "virtual_pipeline_model_parallel_size=2", "overlap_p2p_comm=true"],
    "overlap_param_gather_with_optimizer_step=true",
]
EXPERTS = ["num_moe_experts=4", "expert_model_parallel_size=2"]

BROKEN: list[tuple[str, list[str], int, Device]] = [
    ("fsdp.use_megatron_fsdp = true: needs CUDA", FSDP, 2, "cpu"),
    (
        "fsdp.use_megatron_fsdp = true: needs use_distributed_optimizer",
        [*FSDP, "use_distributed_optimizer=false"],
        2,
        "cuda",
    ),
    *(
        (
            f"fsdp.data_parallel_sharding_strategy = {strategy}: {word}",
            [*FSDP, f"data_parallel_sharding_strategy={strategy}", *more],
            2,
            "cuda",
        )
        for strategy, word, more in (
            ("optim_grads", "reduces gradients during", []),
            ("optim_grads_params", "reduces gradients during", []),
            ("optim_grads_params", "gathers parameters layer by", OVERLAPS[:1]),
        )
    ),
    (
        "parallel.num_distributed_optimizer_instances = 2: hybrid FSDP makes no group",
        [*FSDP, *EXPERTS[:1], "num_distributed_optimizer_instances=2"],
        4,
        "cuda",
    ),
    *(
        (f"{key} = true: Megatron FSDP, which is on", [*FSDP, *more, f"{key}=true"], ranks, "cuda")
        for key, more, ranks in (
            ("kernels.gradient_accumulation_fusion", [], 2),
            ("overlap.average_in_collective", [], 2),
            ("overlap.overlap_param_gather_with_optimizer_step", STEP[:-1], 2),
        )
    ),
    ("checkpoint.save = x: checkpoints of Megatron FSDP", [*FSDP, "save=x"], 2, "cuda"),
    *(
        (f"fsdp.{name} = {shown}: {name} is read with use_megatron_fsdp only", [f"{name}={shown}"], 2, "cuda")
        for name, shown in (
            *(("data_parallel_sharding_strategy", "optim"), ("fsdp_double_buffer", "true")),
            *(("outer_dp_sharding_strategy", "optim"), ("suggested_communication_unit_size", "9")),
            ("gradient_reduce_div_fusion", "false"),
        )
    ),
    *(
        (f"overlap.{name} = {value}: is read with tp_comm_overlap only", [f"{name}={value}"], 2, "cuda")
        for name, value in (
            *(("tp_overlap_num_sm", "4"), ("tp_overlap_cga_size", "2")),
            *(("tp_overlap_fp8_buf", "false"), ("tp_overlap_num_splits", "4")),
        )
    ),
    (
        "overlap.tp_comm_overlap_cfg = a.yaml: a file by GEMM excludes",
        [*TP2, "tp_comm_overlap=true", "tp_comm_overlap_cfg=a.yaml", "tp_overlap_num_sm=4"],
        2,
        "cuda",
    ),
    (
        "overlap.overlap_param_gather_with_optimizer_step = true: one optimizer per chunk",
        [*STEP, "save=x"],
        2,
        "cpu",
    ),
    (
        "overlap.overlap_param_gather_with_optimizer_step = true: one optimizer per chunk",
        [*STEP, "load=x"],
        2,
        "cpu",
    ),
    (
        "overlap.overlap_param_gather_with_optimizer_step = true: a step that the loss scale",
        [*STEP, "params_dtype=fp16"],
        2,
        "cuda",
    ),
    (
        "parallel.use_tp_pp_dp_mapping = true: needs the same groups",
        [*PP2, *EXPERTS, "use_tp_pp_dp_mapping=true"],
        4,
        "cuda",
    ),
    ("precision.fp4 = e2m1: needs a Blackwell", ["fp4=e2m1"], 1, "cuda"),
    ("precision.fp8_dot_product_attention = true: needs fp8", ["fp8_dot_product_attention=true"], 1, "cuda"),
    ("kernels.fused_single_qkv_rope = true: needs", ["fused_single_qkv_rope=true"], 1, "cuda"),
    *(
        (f"recompute.{name} = true: is read with cpu_offloading", [f"{name}=true"], 1, "cuda")
        for name in ("cpu_offloading_weights", "cpu_offloading_double_buffering")
    ),
    (
        "recompute.cpu_offloading_activations = false: cpu_offloading moves",
        ["cpu_offloading=true", "cpu_offloading_num_layers=1", "cpu_offloading_activations=false"],
        1,
        "cuda",
    ),
    (
        "recompute.fine_grained_activation_offloading = true: needs CUDA",
        ["fine_grained_activation_offloading=true", "offload_modules=[core_attn]"],
        1,
        "cpu",
    ),
    (
        "training.empty_unused_memory_level = 1: needs CUDA",
        ["empty_unused_memory_level=1"],
        1,
        "cpu",
    ),
    ("profiling.nsys_gpu_metrics = true: needs CUDA", ["nsys_gpu_metrics=true"], 1, "cpu"),
    ("profiling.memory_snapshot_path = a: needs CUDA", ["memory_snapshot_path=a"], 1, "cpu"),
    (
        "profiling.use_pytorch_profiler = true: one profiler",
        ["use_pytorch_profiler=true", "use_nsys_profiler=true"],
        1,
        "cpu",
    ),
    ("profiling.profile_ranks = ", ["profile_ranks=[0,2]"], 2, "cpu"),
    (
        "training.manual_gc_interval_val = 1: is read with",
        ["manual_gc=false", "manual_gc_interval=0", "manual_gc_interval_val=1"],
        1,
        "cpu",
    ),
]
