"""Rules of the parallel dimensions and the pipeline's messages."""

from __future__ import annotations

from typing import Any

from perfdoc.trainer.constraints.rule import Rule


def _layers_to_split(config: Any) -> int:
    parallel = config.parallel
    return int(
        config.model.num_layers
        + parallel.account_for_embedding_in_pipeline_split
        + parallel.account_for_loss_in_pipeline_split
    )


def _uneven(config: Any) -> bool:
    parallel = config.parallel
    return bool(parallel.num_layers_in_first_pipeline_stage or parallel.num_layers_in_last_pipeline_stage)


def _uneven_rest_does_not_fit(config: Any, layout: Any) -> bool:
    parallel = config.parallel
    ends = [
        size
        for size in (parallel.num_layers_in_first_pipeline_stage, parallel.num_layers_in_last_pipeline_stage)
        if size
    ]
    rest, stages = config.model.num_layers - sum(ends), layout.pp - len(ends)
    if rest < 0 or stages < 0 or (stages == 0 and rest):
        return True
    return any(size % layout.vpp for size in ends) or (stages > 0 and rest % (stages * layout.vpp) != 0)


PARALLEL: tuple[Rule, ...] = (
    (
        "parallel.sequence_parallel",
        lambda c, s, d: c.parallel.sequence_parallel and s.tp == 1,
        "needs tensor_model_parallel_size above 1",
    ),
    (
        "parallel.sequence_parallel",
        lambda c, s, d: bool(c.moe.num_moe_experts) and s.tp > 1 and not c.parallel.sequence_parallel,
        "a mixture of experts with tensor parallelism trains with sequence_parallel only",
    ),
    (
        "parallel.virtual_pipeline_model_parallel_size",
        lambda c, s, d: s.vpp > 1 and s.pp == 1,
        "needs pipeline_model_parallel_size above 1",
    ),
    (
        "model.num_layers",
        lambda c, s, d: not _uneven(c) and _layers_to_split(c) % (s.pp * s.vpp) != 0,
        "not divisible by pipeline_model_parallel_size x virtual_pipeline_model_parallel_size",
    ),
    (
        "parallel.num_layers_in_first_pipeline_stage",
        lambda c, s, d: _uneven(c) and s.pp == 1,
        "uneven stages (first or last) need pipeline_model_parallel_size above 1",
    ),
    (
        "parallel.num_layers_in_first_pipeline_stage",
        lambda c, s, d: _uneven(c) and _layers_to_split(c) != c.model.num_layers,
        "uneven stages exclude account_for_embedding/loss_in_pipeline_split",
    ),
    (
        "parallel.num_layers_in_first_pipeline_stage",
        lambda c, s, d: _uneven(c) and _uneven_rest_does_not_fit(c, s),
        "with num_layers_in_last_pipeline_stage, the other layers do not divide over the other stages",
    ),
    (
        "training.global_batch_size",
        lambda c, s, d: s.vpp > 1 and s.num_microbatches % s.pp != 0,
        "the interleaved schedule needs micro-batches per step (global batch / micro batch / DP) "
        "divisible by pipeline_model_parallel_size",
    ),
    (
        "parallel.microbatch_group_size_per_vp_stage",
        lambda c, s, d: c.parallel.microbatch_group_size_per_vp_stage is not None and s.vpp == 1,
        "needs virtual_pipeline_model_parallel_size",
    ),
    (
        "parallel.microbatch_group_size_per_vp_stage",
        lambda c, s, d: (c.parallel.microbatch_group_size_per_vp_stage or s.pp) < s.pp,
        "less than pipeline_model_parallel_size",
    ),
    (
        "overlap.overlap_p2p_comm",
        lambda c, s, d: c.overlap.overlap_p2p_comm and s.vpp == 1,
        "works with virtual_pipeline_model_parallel_size only",
    ),
    (
        "overlap.overlap_p2p_comm",
        lambda c, s, d: s.vpp > 1 and s.pp == 2 and not c.overlap.overlap_p2p_comm,
        "two interleaved stages with batched sends and receives give silently wrong gradients; "
        "set overlap_p2p_comm=true",
    ),
    (
        "overlap.batch_p2p_comm",
        lambda c, s, d: c.overlap.overlap_p2p_comm and c.overlap.batch_p2p_comm is True,
        "excluded by overlap_p2p_comm",
    ),
    (
        "overlap.batch_p2p_comm",
        lambda c, s, d: s.vpp > 1 and s.pp == 2 and c.overlap.batch_p2p_comm is True,
        "two interleaved stages with batched sends and receives give silently wrong gradients",
    ),
    (
        "overlap.deallocate_pipeline_outputs",
        lambda c, s, d: (
            d == "cpu" and c.overlap.overlap_p2p_comm and c.overlap.deallocate_pipeline_outputs is True
        ),
        "on gloo an output's memory would go while it is still being sent: silently wrong gradients",
    ),
    (
        "overlap.overlap_p2p_comm_warmup_flush",
        lambda c, s, d: c.overlap.overlap_p2p_comm_warmup_flush and not c.overlap.overlap_p2p_comm,
        "needs overlap_p2p_comm",
    ),
    (
        "parallel.num_distributed_optimizer_instances",
        lambda c, s, d: (
            (s.dp * s.cp) % c.parallel.num_distributed_optimizer_instances != 0
            or s.edp % c.parallel.num_distributed_optimizer_instances != 0
        ),
        "does not divide DP x CP and the experts' DP",
    ),
    (
        "parallel.num_distributed_optimizer_instances",
        lambda c, s, d: (
            c.parallel.num_distributed_optimizer_instances > 1 and not c.optimizer.use_distributed_optimizer
        ),
        "needs use_distributed_optimizer",
    ),
    (
        "parallel.cp_comm_type",
        lambda c, s, d: s.cp > 1 and d == "cpu" and c.parallel.cp_comm_type != "all_gather",
        "without Transformer Engine keys and values are gathered: only all_gather",
    ),
    (
        "parallel.cp_comm_type",
        lambda c, s, d: (
            c.parallel.cp_comm_type == "a2a" and (c.model.num_attention_heads // s.tp) % s.cp != 0
        ),
        "a2a needs the heads of a TP rank divisible by context_parallel_size",
    ),
)
