"""Rules of gradient reduction, sharding, registered buffers and tensor-parallel overlap.

Sources: megatron-core 0.16.1 (DistributedDataParallelConfig, OptimizerConfig, parallel_state), Megatron-LM
core_v0.16.1 arguments.py, Megatron-Bridge 0.3.1 comm_overlap.py.
"""

from __future__ import annotations

from perfdoc.knobs.configuration import View
from perfdoc.knobs.constraints.definition import Constraint

SUMS = "reduce_scatter_with_fp32_accumulation"
OPTIMIZER, GRADS, PARAMS = "use_distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather"


def _fsdp(v: View) -> bool:
    return v.on("use_megatron_fsdp")


def _tp_overlap_part(name: str, default: bool) -> Constraint:
    return Constraint(
        name=f"{name.replace('_', '-')}-needs-tp-overlap",
        subject=name,
        kind="ineffective",
        broken=lambda v: v(name) is not None and v(name) is not default and not v.on("tp_comm_overlap"),
        rule=f"{name} is read with tp_comm_overlap only",
    )


DATA_PARALLEL: tuple[Constraint, ...] = (
    Constraint(
        name="bucket-size-needs-overlap",
        subject="bucket_size",
        kind="ineffective",
        broken=lambda v: v("bucket_size") is not None and not v.on(GRADS) and not _fsdp(v),
        rule="bucket_size is ignored without overlap_grad_reduce: all gradients go in one bucket",
        fix=((GRADS, True),),
        needs_companion=True,
    ),
    Constraint(
        name="param-gather-needs-sharding",
        subject=PARAMS,
        kind="forbidden",
        broken=lambda v: v.on(PARAMS) and not v.on(OPTIMIZER) and not v.named_on("use_megatron_fsdp"),
        rule="overlap_param_gather gathers what the distributed optimizer (or Megatron FSDP) has sharded",
        fix=((OPTIMIZER, True),),
    ),
    Constraint(
        name="param-gather-needs-grad-overlap",
        subject=PARAMS,
        kind="forbidden",
        broken=lambda v: v.on(PARAMS) and not v.on(GRADS) and not v.named_on("use_megatron_fsdp"),
        rule="overlap_param_gather needs overlap_grad_reduce",
        fix=((GRADS, True),),
    ),
    Constraint(
        name="align-needs-param-gather",
        subject="align_param_gather",
        kind="ineffective",
        broken=lambda v: v.on("align_param_gather") and (not v.on(PARAMS) or v.pp == 1 or v.vpp == 1),
        rule="align_param_gather takes effect with overlap_param_gather and virtual pipeline stages only",
    ),
    Constraint(
        name="gather-with-step-needs-overlap",
        subject="overlap_param_gather_with_optimizer_step",
        kind="forbidden",
        broken=lambda v: (
            v.on("overlap_param_gather_with_optimizer_step")
            and (not v.on(PARAMS) or not v.on(OPTIMIZER) or v.vpp == 1)
        ),
        rule="overlap_param_gather_with_optimizer_step needs overlap_param_gather, the distributed optimizer "
        "and virtual pipeline stages",
    ),
    Constraint(
        name="optimizer-instances-need-sharding",
        subject="num_distributed_optimizer_instances",
        kind="ineffective",
        broken=lambda v: (
            v.degree("num_distributed_optimizer_instances") > 1 and not v.on(OPTIMIZER) and not _fsdp(v)
        ),
        rule="num_distributed_optimizer_instances divides the distributed optimizer's domain, so it needs "
        "use_distributed_optimizer",
        fix=((OPTIMIZER, True),),
    ),
    Constraint(
        name="optimizer-instances-over-dp",
        subject="num_distributed_optimizer_instances",
        kind="forbidden",
        broken=lambda v: (
            v.degree("num_distributed_optimizer_instances") > 1
            and (v.dp * v.cp) % v.degree("num_distributed_optimizer_instances") != 0
        ),
        rule="DP x CP must be divisible by num_distributed_optimizer_instances",
    ),
    Constraint(
        name="fp32-sums-need-sharding",
        subject=SUMS,
        kind="ineffective",
        broken=lambda v: v.on(SUMS) and not v.on(OPTIMIZER),
        rule="reduce_scatter_with_fp32_accumulation replaces the distributed optimizer's reduce-scatter; "
        "without it gradients are all-reduced",
        fix=((OPTIMIZER, True),),
    ),
    Constraint(
        name="fp32-sums-exclude-instances",
        subject=SUMS,
        kind="forbidden",
        broken=lambda v: v.on(SUMS) and v.degree("num_distributed_optimizer_instances") > 1,
        rule="reduce_scatter_with_fp32_accumulation works with num_distributed_optimizer_instances 1 only",
        fix=(("num_distributed_optimizer_instances", 1),),
    ),
    Constraint(
        name="fp32-sums-exclude-average",
        subject=SUMS,
        kind="forbidden",
        broken=lambda v: v.on(SUMS) and v.on("average_in_collective"),
        rule="reduce_scatter_with_fp32_accumulation sums only: it excludes average_in_collective",
        fix=(("average_in_collective", False),),
    ),
    *(
        Constraint(
            name=f"{name.replace('_', '-')}-needs-fsdp",
            subject=name,
            kind="ineffective",
            broken=lambda v, name=name, plain=plain: v(name) != plain and not _fsdp(v),  # type: ignore[misc]
            rule=f"{name} is read with use_megatron_fsdp only",
            fix=(("use_megatron_fsdp", True),),
            needs_companion=True,
            dialects=("megatron_core", "megatron_bridge", "megatron_lm", "verl", "perfdoc"),
        )
        for name, plain in (
            ("outer_dp_sharding_strategy", "no_shard"),
            ("suggested_communication_unit_size", None),
            ("gradient_reduce_div_fusion", True),
        )
    ),
    Constraint(
        name="outer-sharding-needs-instances",
        subject="outer_dp_sharding_strategy",
        kind="ineffective",
        broken=lambda v: (
            v("outer_dp_sharding_strategy") not in (None, "no_shard")
            and v.degree("num_distributed_optimizer_instances") == 1
        ),
        rule="outer_dp_sharding_strategy shards over the replicas of hybrid FSDP, so it needs "
        "num_distributed_optimizer_instances above 1",
    ),
    Constraint(
        name="average-excludes-per-token-loss",
        subject="average_in_collective",
        kind="forbidden",
        broken=lambda v: v.on("average_in_collective") and v.on("calculate_per_token_loss"),
        rule="average_in_collective divides by ranks, calculate_per_token_loss by tokens: take one",
        fix=(("average_in_collective", False),),
    ),
    Constraint(
        name="sharding-strategy-needs-fsdp",
        subject="data_parallel_sharding_strategy",
        kind="ineffective",
        broken=lambda v: v("data_parallel_sharding_strategy") not in (None, "no_shard") and not _fsdp(v),
        rule="data_parallel_sharding_strategy is read with use_megatron_fsdp only",
        fix=(("use_megatron_fsdp", True),),
        needs_companion=True,
        dialects=("megatron_core", "megatron_bridge", "megatron_lm", "verl", "perfdoc"),
    ),
    Constraint(
        name="two-kinds-of-fsdp",
        subject="use_torch_fsdp2",
        kind="forbidden",
        broken=lambda v: v.on("use_torch_fsdp2") and _fsdp(v),
        rule="use_torch_fsdp2 and use_megatron_fsdp exclude each other",
    ),
    Constraint(
        name="fsdp2-excludes-pp-ep",
        subject="use_torch_fsdp2",
        kind="forbidden",
        broken=lambda v: v.on("use_torch_fsdp2") and (v.pp > 1 or v.ep > 1),
        rule="use_torch_fsdp2 works with PP 1 and EP 1 only",
    ),
    Constraint(
        name="fsdp2-excludes-distributed-optimizer",
        subject="use_torch_fsdp2",
        kind="forbidden",
        broken=lambda v: v.on("use_torch_fsdp2") and v.on(OPTIMIZER),
        rule="use_torch_fsdp2 shards the optimizer itself and excludes use_distributed_optimizer",
        fix=((OPTIMIZER, False),),
        dialects=("megatron_lm", "perfdoc"),
    ),
    Constraint(
        name="fsdp2-excludes-gradient-fusion",
        subject="use_torch_fsdp2",
        kind="forbidden",
        broken=lambda v: v.on("use_torch_fsdp2") and v.on("gradient_accumulation_fusion"),
        rule="use_torch_fsdp2 excludes gradient_accumulation_fusion",
        fix=(("gradient_accumulation_fusion", False),),
    ),
    Constraint(
        name="fsdp2-excludes-fp16",
        subject="use_torch_fsdp2",
        kind="forbidden",
        broken=lambda v: v.on("use_torch_fsdp2") and v.on("fp16"),
        rule="use_torch_fsdp2 does not train in fp16",
        dialects=("megatron_lm", "perfdoc"),
    ),
    Constraint(
        name="fsdp-excludes-rank-order",
        subject="use_tp_pp_dp_mapping",
        kind="forbidden",
        broken=lambda v: v.on("use_tp_pp_dp_mapping") and _fsdp(v),
        rule="use_tp_pp_dp_mapping excludes Megatron FSDP",
        fix=(("use_tp_pp_dp_mapping", False),),
    ),
    Constraint(
        name="rank-order-excludes-ep-cp",
        subject="use_tp_pp_dp_mapping",
        kind="forbidden",
        broken=lambda v: v.on("use_tp_pp_dp_mapping") and (v.ep > 1 or v.cp > 1),
        rule="use_tp_pp_dp_mapping works without expert and context parallelism only",
        dialects=("megatron_bridge",),
    ),
    Constraint(
        name="double-buffer-needs-fsdp",
        subject="fsdp_double_buffer",
        kind="ineffective",
        broken=lambda v: v.on("fsdp_double_buffer") and not _fsdp(v),
        rule="fsdp_double_buffer is read with use_megatron_fsdp only",
        fix=(("use_megatron_fsdp", True),),
        needs_companion=True,
        dialects=("megatron_core", "megatron_bridge", "megatron_lm", "verl", "perfdoc"),
    ),
    Constraint(
        name="manual-registration-needs-buffers",
        subject="fsdp_manual_registration",
        kind="forbidden",
        broken=lambda v: v.on("fsdp_manual_registration") and not (_fsdp(v) and v.on("nccl_ub")),
        rule="fsdp_manual_registration needs use_megatron_fsdp and nccl_ub",
    ),
    Constraint(
        name="symmetric-registration-needs-buffers",
        subject="disable_symmetric_registration",
        kind="ineffective",
        broken=lambda v: v.on("disable_symmetric_registration") and not v.on("nccl_ub"),
        rule="disable_symmetric_registration is read with nccl_ub only",
    ),
    Constraint(
        name="sharp-group-needs-sharp",
        subject="sharp_enabled_group",
        kind="ineffective",
        broken=lambda v: v("sharp_enabled_group") is not None and not v.on("use_sharp"),
        rule="sharp_enabled_group is read with use_sharp only",
        fix=(("use_sharp", True),),
        needs_companion=True,
    ),
    Constraint(
        name="sharp-replica-needs-instances",
        subject="sharp_enabled_group",
        kind="forbidden",
        broken=lambda v: (
            v("sharp_enabled_group") == "dp_replica" and v.degree("num_distributed_optimizer_instances") == 1
        ),
        rule="sharp_enabled_group dp_replica needs num_distributed_optimizer_instances above 1",
    ),
    Constraint(
        name="tp-overlap-needs-tp-and-sp",
        subject="tp_comm_overlap",
        kind="forbidden",
        broken=lambda v: v.on("tp_comm_overlap") and (v.tp == 1 or not v.on("sequence_parallel")),
        rule="tp_comm_overlap needs tensor_model_parallel_size above 1 and sequence_parallel; "
        "Megatron-Bridge switches it off with only a warning",
        fix=(("sequence_parallel", True),),
    ),
    Constraint(
        name="tp-overlap-config-needs-overlap",
        subject="tp_comm_overlap_cfg",
        kind="ineffective",
        broken=lambda v: v("tp_comm_overlap_cfg") is not None and not v.on("tp_comm_overlap"),
        rule="tp_comm_overlap_cfg is read with tp_comm_overlap only",
        fix=(("tp_comm_overlap", True),),
    ),
    *(
        _tp_overlap_part(f"tp_comm_{n}", True)
        for n in ("bulk_wgrad", "bulk_dgrad", "overlap_ag", "overlap_rs")
    ),
    _tp_overlap_part("tp_comm_overlap_rs_dgrad", False),
    Constraint(
        name="cga-above-sm",
        subject="tp_overlap_cga_size",
        kind="inadvisable",
        broken=lambda v: v.number("tp_overlap_cga_size") > v.number("tp_overlap_num_sm"),
        rule="cga_size must not exceed num_sm: a cluster of thread blocks needs that many SMs",
    ),
    Constraint(
        name="fp8-buffer-needs-fp8",
        subject="tp_overlap_fp8_buf",
        kind="ineffective",
        broken=lambda v: v.on("tp_overlap_fp8_buf") and v("fp8") is None,
        rule="fp8_buf sends FP8 outputs and needs FP8 training",
    ),
)
