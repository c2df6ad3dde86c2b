"""Model FLOPs as Megatron-LM counts them (core_v0.16.1).

Per token, a factor 6 for every multiply-add of the forward pass: two operations each, and the backward pass
does twice the forward's. Attention counts the causal half of the scores; in layers that are known to have a
sliding window, what is inside of it. Experts count by the number that a
token visits. Recomputation is not counted: these are the model's operations, not the hardware's.
"""

from perfdoc.profiling.manifest import ModelShape

CONVENTION = "megatron-lm: forward + backward, causal half of attention, experts by top-k, no recompute"


def check_shape(shape: ModelShape) -> None:
    """Raises ValueError, one line, where a shape contradicts itself or lacks what its FLOPs follow from."""
    if shape.kv_channels < 1:
        raise ValueError("head_dim: hidden_size is smaller than the number of heads; give head_dim.")
    if shape.experts is not None and not shape.experts_per_token:
        raise ValueError("experts: give topk too, the experts that a token visits.")
    if (shape.expert_layers or 0) > shape.layers:
        raise ValueError(f"moe_layers={shape.expert_layers} is more than layers={shape.layers}.")
    widths = (shape.qk_head_dim, shape.qk_rope_head_dim, shape.v_head_dim)
    if shape.kv_lora_rank and None in widths:
        raise ValueError("kv_lora_rank: give qk_head_dim, qk_rope_head_dim and v_head_dim too.")


def flops_per_token(shape: ModelShape) -> int:
    """Floating-point operations of training on one token of a full sequence.

    h=4, one layer, one head of width 4, s=8, F=8 with SwiGLU, V=16:
    6·(4·8·3 + 4·(4+2·4) + 4·8 + 4·4 + 4·16) = 6·256 = 1536.
    """
    mtp = shape.mtp_layers or 0
    dense, routed = _layers(shape, mtp)
    hidden = shape.hidden_size
    layers = dense + routed
    if shape.kv_lora_rank:
        adds = layers * _latent_attention(shape)
    else:
        windowed = min(shape.windowed_layers or 0, shape.layers) if shape.attention_window else 0
        adds = (layers - windowed) * _attention(shape, None)
        adds += windowed * _attention(shape, shape.attention_window)
    adds += dense * hidden * shape.ffn_hidden_size * _matrices(shape) + routed * _experts(shape)
    adds += hidden * shape.vocabulary * (1 + mtp)
    # A multi-token-prediction layer norms two inputs and its output and joins the two by one matrix.
    adds += mtp * (3 * hidden + 2 * hidden * hidden)
    return 6 * adds


def _layers(shape: ModelShape, mtp: int) -> tuple[int, int]:
    """Dense layers and layers with experts; prediction layers are of the last layer's kind."""
    if shape.experts is None:
        return shape.layers + mtp, 0
    routed = shape.layers if shape.expert_layers is None else shape.expert_layers
    return shape.layers - routed, routed + mtp


def _matrices(shape: ModelShape) -> int:
    return 3 if shape.gated_mlp else 2


def _experts(shape: ModelShape) -> int:
    width = shape.expert_ffn_hidden_size or shape.ffn_hidden_size
    visited = width * (shape.experts_per_token or 1) + (shape.shared_expert_ffn_hidden_size or 0)
    return shape.hidden_size * _matrices(shape) * visited


def _attention(shape: ModelShape, window: int | None) -> int:
    """Projections of queries, keys, values and output, and the causal half of scores and their product.

    Of s keys a token attends to s / 2 in the mean; with a window of w to w - w² / 2s: 8 of 16 without one,
    3.5 with one of 4.
    """
    width = shape.attention_heads * shape.kv_channels
    groups = shape.query_groups * shape.kv_channels
    twice_keys = shape.sequence_length
    if window is not None and window < shape.sequence_length:
        twice_keys = 2 * window - window * window // shape.sequence_length
    return shape.hidden_size * (2 * width + 2 * groups) + width * twice_keys


def _latent_attention(shape: ModelShape) -> int:
    """Multi-latent attention: keys and values (and queries, with a rank of their own) pass a low-rank
    bottleneck, the positional part of the keys goes around it."""
    hidden, heads = shape.hidden_size, shape.attention_heads
    rank = shape.kv_lora_rank or 0
    plain, rope, value = (d or 0 for d in (shape.qk_head_dim, shape.qk_rope_head_dim, shape.v_head_dim))
    query_width = heads * (plain + rope)
    bottleneck = shape.q_lora_rank
    query = bottleneck * (hidden + query_width + 1) if bottleneck else hidden * query_width
    latent = rank * (hidden + heads * (plain + value) + 1) + hidden * rope
    scores = shape.sequence_length * heads * (plain + rope + value) // 2
    return query + latent + heads * value * hidden + scores
