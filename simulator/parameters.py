"""How many parameters a rank holds of a layer, and of the tables at the ends of a model."""

from __future__ import annotations

from perfdoc.traces.known_models import ModelShape


def has_experts(shape: ModelShape, layer: int) -> bool:
    """Whether a layer has experts; dense layers come first."""
    if not shape.experts:
        return False
    return layer >= shape.layers - (shape.layers if shape.expert_layers is None else shape.expert_layers)


def layer_parameters(shape: ModelShape, layer: int, *, tp: int, ep: int) -> tuple[int, int]:
    """Of a layer on one rank: (all but the experts, experts), weights of matrices only.

    llama3-8b, tp=1: 4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14336 = 218,103,808.
    """
    heads_width = shape.attention_heads * shape.kv_channels // tp
    kv_width = max(shape.query_groups // tp, 1) * shape.kv_channels
    attention = shape.hidden_size * (2 * heads_width + 2 * kv_width)
    matrices = 3 if shape.gated_mlp else 2
    if not has_experts(shape, layer):
        return attention + matrices * shape.hidden_size * shape.ffn_hidden_size // tp, 0
    width = shape.expert_ffn_hidden_size or shape.ffn_hidden_size
    shared = matrices * shape.hidden_size * (shape.shared_expert_ffn_hidden_size or 0) // tp
    local = (shape.experts or 1) // ep
    router = shape.hidden_size * (shape.experts or 0)
    return attention + shared + router, local * matrices * shape.hidden_size * width


def table_parameters(shape: ModelShape, *, tp: int) -> int:
    """Of the embedding, and of the output layer, on one rank."""
    return shape.vocabulary * shape.hidden_size // tp
