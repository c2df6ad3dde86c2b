"""Model FLOPs as Megatron-LM counts them (core_v0.16.1), and GPUs' dense peaks by dtype, without sparsity.

Sources: torchtitan's and verl's tables and the vendors' sheets; where they disagree, what most of them say.

Per token, a factor 6 for every multiply-add of the forward pass: two operations each, and the backward pass
does twice the forward's. Attention counts the causal half of the scores. Experts count by the number that a
token visits. Recomputation is not counted: these are the model's operations, not the hardware's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from perfdoc.profiling.manifest import ModelShape

_A100 = {"bf16": 312.0}
_H100 = {"bf16": 989.0, "fp8": 1979.0}
_H100_NVL = {"bf16": 835.0, "fp8": 1671.0}
_H100_PCIE = {"bf16": 756.0, "fp8": 1513.0}
_B200 = {"bf16": 2250.0, "fp8": 4500.0}
_GB200 = {"bf16": 2500.0, "fp8": 5000.0}

_TFLOPS: tuple[tuple[str, Mapping[str, float]], ...] = (
    (r"A[18]00(-(SXM4?|PCIE))?([ -](40|80)GB)?( PCIe| Active)?", _A100),
    (r"H[18]00([ -]SXM5?)?([ -](80|96)GB)?( HBM3)?", _H100),
    (r"H100[ -]NVL([ -]94GB)?", _H100_NVL),
    (r"H100([ -]PCIe([ -]80GB)?| 80GB PCIe)", _H100_PCIE),
    (r"H200([ -]SXM)?( 141GB)?( HBM3e)?", _H100),
    (r"GH200( (96|120|144|480)GB)?( HBM3e?)?", _H100),
    (r"H20(-3e)?( (96|141)GB)?( HBM3e?)?", {"bf16": 148.0, "fp8": 296.0}),
    (r"B200( (180|192)GB)?( HBM3e)?|B300( SXM6)?( AC)?( (275|288)GB)?( HBM3e)?", _B200),
    (r"GB[23]00", _GB200),
    (r"L40S( 48GB)?", {"bf16": 362.0, "fp8": 733.0}),
    (r"(GeForce )?RTX 4090", {"bf16": 165.0, "fp8": 330.0}),
    (r"RTX PRO 6000 Blackwell( (Workstation|Server) Edition)?", {"bf16": 504.0, "fp8": 1008.0}),
)
"""Whole names, after `NVIDIA`, and teraflop/s; fp16 runs at the rate of bf16 on all of these.

A name with any other word in it is unknown: `H100 80GB HBM3 MIG 3g.40gb` is a slice, `RTX 4090 D` and
`RTX 4090 Laptop GPU` are smaller chips, `A100-40C` is a virtual share, `A100-SXM-64GB` has more SMs.
"""
_NAMES = [(re.compile(pattern, re.IGNORECASE), rates) for pattern, rates in _TFLOPS]
_LONGEST_NAME = 100


def peak_flops(gpu_name: str | None, dtype: str = "bf16") -> float | None:
    """Dense peak of one GPU in FLOP/s; None for a CPU, a dtype that is not listed, or a name that is not
    known to the last word.

    `NVIDIA H100 80GB HBM3` is an H100 of 989e12, `NVIDIA H100 PCIe` one of 756e12.
    """
    if gpu_name is None or len(gpu_name) > _LONGEST_NAME:
        return None
    name = re.sub(r"^(NVIDIA|Tesla)\s+", "", " ".join(gpu_name.split()), flags=re.IGNORECASE)
    rates = next((rates for pattern, rates in _NAMES if pattern.fullmatch(name)), {})
    teraflops = rates.get("bf16" if dtype == "fp16" else dtype)
    return None if teraflops is None else teraflops * 1e12


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
    adds = (dense + routed) * (_latent_attention(shape) if shape.kv_lora_rank else _attention(shape))
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


def _attention(shape: ModelShape) -> int:
    """Projections of queries, keys, values and output, and the causal half of scores and their product."""
    width = shape.attention_heads * shape.kv_channels
    groups = shape.query_groups * shape.kv_channels
    return shape.hidden_size * (2 * width + 2 * groups) + width * shape.sequence_length


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
