"""Rules of the model's shape."""

from __future__ import annotations

from perfdoc.trainer.constraints.rule import Rule

MODEL: tuple[Rule, ...] = (
    (
        "model.num_attention_heads",
        lambda c, s, d: (
            c.model.kv_channels is None and c.model.hidden_size % c.model.num_attention_heads != 0
        ),
        "hidden_size is not a multiple of it; give kv_channels",
    ),
    (
        "model.num_attention_heads",
        lambda c, s, d: c.model.num_attention_heads % s.tp != 0,
        "not divisible by tensor_model_parallel_size",
    ),
    (
        "model.num_query_groups",
        lambda c, s, d: c.model.num_attention_heads % c.model.num_query_groups != 0,
        "does not divide num_attention_heads",
    ),
    (
        "model.num_query_groups",
        lambda c, s, d: c.model.num_query_groups % s.tp != 0 and s.tp % c.model.num_query_groups != 0,
        "neither a multiple nor a divisor of tensor_model_parallel_size",
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
        lambda c, s, d: s.cp > 1 and c.model.seq_length % (2 * s.cp) != 0,
        "not divisible by 2 x context_parallel_size",
    ),
    (
        "model.seq_length",
        lambda c, s, d: c.parallel.sequence_parallel and (c.model.seq_length // s.cp) % s.tp != 0,
        "what context parallelism leaves of it is not divisible by tensor_model_parallel_size, "
        "as sequence_parallel needs",
    ),
)
