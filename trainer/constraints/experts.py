"""Rules of mixture-of-experts."""

from __future__ import annotations

from perfdoc.trainer.constraints.rule import Rule

EXPERTS: tuple[Rule, ...] = (
    (
        "parallel.expert_model_parallel_size",
        lambda c, s, d: s.ep > 1 and c.moe.num_moe_experts is None,
        "needs num_moe_experts",
    ),
    (
        "parallel.expert_tensor_parallel_size",
        lambda c, s, d: s.etp > 1 and c.moe.num_moe_experts is None,
        "needs num_moe_experts",
    ),
    (
        "moe.num_moe_experts",
        lambda c, s, d: bool(c.moe.num_moe_experts) and c.moe.num_moe_experts % s.ep != 0,
        "not divisible by expert_model_parallel_size",
    ),
    (
        "moe.moe_router_topk",
        lambda c, s, d: bool(c.moe.num_moe_experts) and c.moe.moe_router_topk > c.moe.num_moe_experts,
        "more than num_moe_experts",
    ),
    (
        "parallel.expert_tensor_parallel_size",
        lambda c, s, d: s.etp > 1 and s.ep > 1 and d == "cpu",
        "above 1 with EP fails on gloo, whose all-gather needs equal sizes",
    ),
    (
        "parallel.expert_tensor_parallel_size",
        lambda c, s, d: bool(c.moe.num_moe_experts) and s.ep == 1 and s.etp != s.tp,
        "with EP 1 it must equal tensor_model_parallel_size: the experts' gradients would be summed over the "
        "dense DP group only, and be silently wrong",
    ),
    (
        "model.add_bias_linear",
        lambda c, s, d: bool(c.moe.num_moe_experts) and c.model.add_bias_linear and s.etp > 1,
        "biases in experts need expert_tensor_parallel_size 1",
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
        "moe.moe_pad_expert_input_to_capacity",
        lambda c, s, d: c.moe.moe_pad_expert_input_to_capacity and c.moe.moe_expert_capacity_factor is None,
        "needs moe_expert_capacity_factor",
    ),
    (
        "moe.moe_shared_expert_overlap",
        lambda c, s, d: (
            c.moe.moe_shared_expert_overlap
            and (
                c.moe.moe_shared_expert_intermediate_size is None
                or c.moe.moe_token_dispatcher_type != "alltoall"
            )
        ),
        "needs moe_shared_expert_intermediate_size and the alltoall dispatcher",
    ),
    (
        "overlap.overlap_moe_expert_parallel_comm",
        lambda c, s, d: (
            c.overlap.overlap_moe_expert_parallel_comm
            and (
                s.ep == 1
                or c.moe.moe_token_dispatcher_type == "allgather"
                or c.precision.params_dtype == "fp32"
                or (s.pp > 1 and s.vpp == 1)
                or c.recompute.recompute_granularity == "full"
                or c.moe.moe_shared_expert_overlap
            )
        ),
        "needs EP above 1, alltoall or flex, bf16 or fp16, VPP where there is PP, no full recompute and "
        "no moe_shared_expert_overlap",
    ),
    (
        "overlap.delay_wgrad_compute",
        lambda c, s, d: c.overlap.delay_wgrad_compute and not c.overlap.overlap_moe_expert_parallel_comm,
        "needs overlap_moe_expert_parallel_comm",
    ),
)
