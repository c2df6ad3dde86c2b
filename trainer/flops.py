"""Model FLOPs of a step, as Megatron-LM counts them, and the share of the hardware's peak that they are.

Per token, a factor 6 for every multiply-add of the forward pass: 2 operations, and the backward pass does
twice
the forward's. Recomputation is not counted. Attention counts the causal half of the scores. Experts are
counted
by the number that a token visits.
"""

from __future__ import annotations

from types import MappingProxyType

from perfdoc.trainer.config.schema import Config

CONVENTION = "megatron-lm: forward + backward, causal half of attention, experts by top-k, no recompute"

PEAK_BF16_FLOPS = MappingProxyType(
    {
        "A100": 312e12,
        "H100 NVL": 835e12,
        "H100 PCIe": 756e12,
        "H100": 989e12,
        "H200": 989e12,
        "H20": 148e12,
        "B200": 2250e12,
        "B300": 2250e12,
        "GB200": 2500e12,
        "GB300": 2500e12,
        "L40S": 362e12,
    }
)
"""Dense peaks per GPU, without sparsity, by a part of the device's name."""


def flops_per_token(config: Config, padded_vocab: int) -> int:
    """Floating-point operations of training on one token of a full sequence.

    h=4, one layer, one head of width 4, s=8, F=8 with SwiGLU, V=16: 6·(4·8·3 + 4·(4+2·4) + 4·8 + 4·4 + 4·16)
    = 6·256 = 1536.
    """
    model, moe = config.model, config.moe
    hidden = model.hidden_size
    width = model.num_attention_heads * (model.kv_channels or hidden // model.num_attention_heads)
    groups = model.num_query_groups * (model.kv_channels or hidden // model.num_attention_heads)
    matrices = 3 if model.swiglu else 2
    attention = hidden * (width + 2 * groups) + width * model.seq_length + width * hidden
    if moe.num_moe_experts is None:
        mlp = hidden * model.ffn_hidden_size * matrices
    else:
        routed = (moe.moe_ffn_hidden_size or model.ffn_hidden_size) * moe.moe_router_topk
        mlp = hidden * matrices * (routed + (moe.moe_shared_expert_intermediate_size or 0))
    return 6 * (model.num_layers * (attention + mlp) + hidden * padded_vocab)


def flops_per_step(config: Config, padded_vocab: int) -> int:
    """Floating-point operations of one step over all ranks."""
    tokens = config.training.global_batch_size * config.model.seq_length
    return tokens * flops_per_token(config, padded_vocab)


def peak_flops(device_name: str | None) -> float | None:
    """Dense bf16 peak of a GPU by its name, or None for a CPU or a name that is not known."""
    if device_name is None:
        return None
    matches = [name for name in PEAK_BF16_FLOPS if name in device_name]
    return PEAK_BF16_FLOPS[max(matches, key=len)] if matches else None


def mfu(flops: int, step_time_ns: int, devices: int, peak: float | None) -> float | None:
    """Model FLOPs utilisation as a fraction, or None where the peak is not known."""
    if peak is None or step_time_ns <= 0:
        return None
    return flops / (step_time_ns * 1e-9 * devices * peak)
