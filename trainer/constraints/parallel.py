"""Parallelism: the layout, Megatron FSDP, and what overlaps with what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfdoc.trainer.constraints.catalogue import Rule

_FSDP2 = "parallel.use_torch_fsdp2"


def _with_fsdp2(broken: Callable[[Any], bool]) -> Callable[[Any, Any, str], bool]:
    return lambda c, s, d: c.parallel.use_torch_fsdp2 and broken(c)


PARALLEL: tuple[Rule, ...] = (
    (
        "parallel.num_layers_in_first_pipeline_stage",
        lambda c, s, d: (
            s.pp == 1
            and bool(
                c.parallel.num_layers_in_first_pipeline_stage or c.parallel.num_layers_in_last_pipeline_stage
            )
        ),
        "uneven stages (first or last) need pipeline_model_parallel_size above 1",
    ),
    (
        "training.global_batch_size",
        lambda c, s, d: s.vpp > 1 and s.num_microbatches % s.pp != 0,
        "the interleaved schedule needs micro-batches per step (global batch / micro-batch / DP) "
        "divisible by pipeline_model_parallel_size, whatever microbatch_group_size_per_vp_stage is",
    ),
    (
        "parallel.microbatch_group_size_per_vp_stage",
        lambda c, s, d: (c.parallel.microbatch_group_size_per_vp_stage or s.pp) < s.pp,
        "less than pipeline_model_parallel_size",
    ),
    (
        "parallel.num_distributed_optimizer_instances",
        lambda c, s, d: s.edp % c.parallel.num_distributed_optimizer_instances != 0,
        "does not divide the experts' DP",
    ),
    (
        "parallel.use_tp_pp_dp_mapping",
        lambda c, s, d: s.stages_inside and s.pp > 1 and s.edp != s.dp,
        "needs the same groups of stages for dense layers and experts: EP x expert-TP must be TP x CP",
    ),
    (
        "recompute.recompute_num_layers",
        lambda c, s, d: (
            c.parallel.pipeline_model_parallel_layout is None
            and (c.recompute.recompute_num_layers or 1) > max(1, c.model.num_layers // (s.pp * s.vpp))
        ),
        "more than the layers of a stage",
    ),
    (
        "recompute.distribute_saved_activations",
        lambda c, s, d: (
            c.recompute.distribute_saved_activations
            and (c.recompute.recompute_granularity != "full" or s.tp == 1)
        ),
        "needs full recompute and TP above 1",
    ),
    (
        _FSDP2,
        _with_fsdp2(lambda c: c.overlap.overlap_grad_reduce),
        "overlaps by itself: needs overlap_grad_reduce=false",
    ),
    (
        _FSDP2,
        _with_fsdp2(lambda c: not c.model.untie_embeddings_and_output_weights),
        "shards the embedding apart from the output layer: needs untie_embeddings_and_output_weights=true",
    ),
    (
        "precision.fp8_param_gather",
        _with_fsdp2(lambda c: c.precision.fp8_param_gather),
        "needs use_distributed_optimizer, which FSDP2 excludes",
    ),
    (
        "precision.grad_reduce_in_fp32",
        _with_fsdp2(lambda c: c.precision.grad_reduce_in_fp32 and c.precision.params_dtype == "bf16"),
        "FSDP2 reduces the gradients of bf16 weights in bf16: needs grad_reduce_in_fp32=false",
    ),
    (
        "checkpoint.save",
        _with_fsdp2(lambda c: (c.checkpoint.save or c.checkpoint.load) is not None),
        "checkpoints of FSDP2 runs are not written yet",
    ),
)


_BY_GEMM = ("tp_overlap_num_sm", "tp_overlap_cga_size", "tp_overlap_fp8_buf", "tp_overlap_num_splits")

OVERLAP: tuple[Rule, ...] = (
    *(
        (
            f"overlap.{name}",
            lambda c, s, d, name=name: getattr(c.overlap, name) is not None and not c.overlap.tp_comm_overlap,
            "is read with tp_comm_overlap only",
        )
        for name in _BY_GEMM
    ),
    (
        "overlap.tp_comm_overlap_cfg",
        lambda c, s, d: (
            c.overlap.tp_comm_overlap_cfg is not None
            and any(getattr(c.overlap, name) is not None for name in _BY_GEMM)
        ),
        f"a file by GEMM excludes {', '.join(_BY_GEMM)}",
    ),
    (
        "overlap.overlap_param_gather_with_optimizer_step",
        lambda c, s, d: (
            c.overlap.overlap_param_gather_with_optimizer_step
            and (
                c.checkpoint.save is not None
                or (c.checkpoint.load is not None and not c.checkpoint.load_weights_only)
            )
        ),
        "one optimizer per chunk has no checkpoints: needs checkpoint.save=null, and load_weights_only=true "
        "with checkpoint.load",
    ),
    (
        "overlap.overlap_param_gather_with_optimizer_step",
        lambda c, s, d: (
            c.overlap.overlap_param_gather_with_optimizer_step and c.precision.params_dtype == "fp16"
        ),
        "a step that the loss scale skips gathers nothing: needs params_dtype bf16 or fp32",
    ),
)


_SWITCH, _STRATEGY = "fsdp.use_megatron_fsdp", "fsdp.data_parallel_sharding_strategy"


def _sharded(broken: Callable[[Any], bool]) -> Callable[[Any, Any, str], bool]:
    return lambda c, s, d: c.fsdp.use_megatron_fsdp and broken(c)


FSDP: tuple[Rule, ...] = (
    (
        _SWITCH,
        lambda c, s, d: c.fsdp.use_megatron_fsdp and d == "cpu",
        "needs CUDA: it makes CUDA devices by name; use_torch_fsdp2 runs on a CPU",
    ),
    (
        _SWITCH,
        _sharded(lambda c: not c.optimizer.use_distributed_optimizer),
        "needs use_distributed_optimizer, which writes the updated shards back into its buffers",
    ),
    (
        _STRATEGY,
        _sharded(
            lambda c: (
                c.fsdp.data_parallel_sharding_strategy in ("optim_grads", "optim_grads_params")
                and not c.overlap.overlap_grad_reduce
            )
        ),
        "reduces gradients during the backward pass: needs overlap_grad_reduce=true",
    ),
    (
        _STRATEGY,
        _sharded(
            lambda c: (
                c.fsdp.data_parallel_sharding_strategy == "optim_grads_params"
                and not c.overlap.overlap_param_gather
            )
        ),
        "gathers parameters layer by layer: needs overlap_param_gather=true",
    ),
    (
        "parallel.num_distributed_optimizer_instances",
        _sharded(
            lambda c: c.parallel.num_distributed_optimizer_instances > 1 and bool(c.moe.num_moe_experts)
        ),
        "hybrid FSDP makes no group for experts: needs 1 with num_moe_experts",
    ),
    *(
        (
            f"{section}.{name}",
            _sharded(lambda c, section=section, name=name: getattr(getattr(c, section), name)),  # type: ignore[misc]
            "Megatron FSDP, which is on, keeps gradients in buffers of its own: needs false",
        )
        for section, name in (
            ("kernels", "gradient_accumulation_fusion"),
            ("overlap", "average_in_collective"),
            ("overlap", "overlap_param_gather_with_optimizer_step"),
        )
    ),
    (
        "checkpoint.save",
        _sharded(lambda c: (c.checkpoint.save or c.checkpoint.load) is not None),
        "checkpoints of Megatron FSDP runs (fsdp_dtensor) are not written yet",
    ),
)
