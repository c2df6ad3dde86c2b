"""The shape of the configured model, as the manifest holds it."""

from __future__ import annotations

from perfdoc.profiling.manifest import ModelShape
from perfdoc.trainer.config.schema import Config


def model_shape(
    config: Config, padded_vocab: int, *, name: str = "", parameters: int | None = None
) -> ModelShape:
    """What the model's FLOPs and memory follow from.

    padded_vocab: entries of the embedding. parameters: over all ranks, each counted once.
    """
    model, moe = config.model, config.moe
    experts = moe.num_moe_experts
    return ModelShape(
        name=name,
        layers=model.num_layers,
        hidden_size=model.hidden_size,
        ffn_hidden_size=model.ffn_hidden_size,
        attention_heads=model.num_attention_heads,
        query_groups=model.num_query_groups,
        kv_channels=model.kv_channels or model.hidden_size // model.num_attention_heads,
        vocabulary=padded_vocab,
        sequence_length=model.seq_length,
        gated_mlp=model.swiglu,
        experts=experts,
        experts_per_token=None if experts is None else moe.moe_router_topk,
        expert_ffn_hidden_size=None if experts is None else moe.moe_ffn_hidden_size or model.ffn_hidden_size,
        shared_expert_ffn_hidden_size=None if experts is None else moe.moe_shared_expert_intermediate_size,
        parameters=parameters,
    )
