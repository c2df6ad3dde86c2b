"""The model's shape and its experts."""

from __future__ import annotations

from perfdoc.trainer.constraints.definition import Rule

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
