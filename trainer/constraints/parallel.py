"""Stages, micro-batches, sharding with FSDP2, and what is recomputed on a stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfdoc.trainer.constraints.definition import Rule

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
        "the interleaved schedule needs micro-batches per step (global batch / micro batch / DP) "
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
