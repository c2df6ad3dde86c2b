"""Memory of a mapping's fullest GPU by the published formulas: an estimate, rather too high than too low.

States: megatron-core's theoretical_memory_usage (6 + 12 / dp bytes a parameter with the distributed
optimizer, 18 without); activations: Korthikanti et al. 2022 (arXiv 2205.05198), with attention fused.
"""

from __future__ import annotations

import math
from dataclasses import replace

from perfdoc.records import dataclass
from perfdoc.traces.known_models import ModelShape

_REPLICATED, _GATHERED, OPTIMIZER_BYTES = 18, 6, 12
"""Bytes of a parameter: bf16 weight 2, fp32 gradient 4, fp32 master 4, Adam's two moments 8."""
_LOGIT_BYTES = 12
"""Of each logit: bf16, fp32 and their gradient."""


@dataclass(frozen=True, kw_only=True)
class Degrees:
    """Parallel degrees of a job; the number of ranks is tp x pp x cp x dp."""

    tp: int
    pp: int
    cp: int
    dp: int
    vpp: int = 1
    """Model chunks on each stage; 1 without interleaving."""
    ep: int = 1
    etp: int = 1

    @property
    def world(self) -> int:
        """Ranks."""
        return self.tp * self.pp * self.cp * self.dp

    @property
    def expert_dp(self) -> int | None:
        """Replicas of each expert: inside experts, context and spare tensor ranks are replicas too.

        tp=2, cp=2, dp=4, ep=4, etp=1: 16 / 4 = 4. None where ep x etp does not divide them.
        """
        ranks, each = self.tp * self.cp * self.dp, self.ep * self.etp
        return ranks // each if ranks % each == 0 else None

    def with_model_parallel(self, *, tp: int, pp: int, cp: int | None = None) -> Degrees | None:
        """The same ranks with other degrees, data parallelism taking what is left; None where none is.

        tp=4, pp=2, cp=1, dp=2 with tp=2, pp=1: dp=8.
        """
        cp = self.cp if cp is None else cp
        if self.world % (tp * pp * cp):
            return None
        etp = tp if self.etp == self.tp and self.tp > 1 else self.etp
        vpp = self.vpp if pp > 1 else 1
        return replace(self, tp=tp, pp=pp, cp=cp, dp=self.world // (tp * pp * cp), vpp=vpp, etp=etp)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What a GPU works on at a time."""

    sequence: int
    micro_sequences: int
    micro_batches: int
    sharded_optimizer: bool
    sequence_parallel: bool
    recompute: bool
    """Whether whole layers are recomputed."""


def parameters_of(shape: ModelShape) -> tuple[int, int, int]:
    """(those of all layers without experts, those of all experts, those of one embedding).

    h=4, one layer, one head of 4, one group, F=8 with SwiGLU, V=16: 4·(4 + 2·4) + 4·4 + 4·8·3 + 2·4 = 168;
    0; 64.
    """
    h, matrices = shape.hidden_size, 3 if shape.gated_mlp else 2
    layers = shape.layers + (shape.mtp_layers or 0)
    routed = 0 if not shape.experts else min(layers, shape.expert_layers or layers)
    attention = _latent_attention(shape) if shape.kv_lora_rank else _attention(shape)
    dense = layers * (attention + 2 * h) + (layers - routed) * h * shape.ffn_hidden_size * matrices
    dense += routed * h * ((shape.shared_expert_ffn_hidden_size or 0) * matrices + (shape.experts or 0))
    dense += (shape.mtp_layers or 0) * 2 * h * h
    width = shape.expert_ffn_hidden_size or shape.ffn_hidden_size
    return dense, routed * (shape.experts or 0) * h * width * matrices, shape.vocabulary * h


def _attention(shape: ModelShape) -> int:
    heads = shape.attention_heads * shape.kv_channels
    return shape.hidden_size * (2 * heads + 2 * shape.query_groups * shape.kv_channels)


def _latent_attention(shape: ModelShape) -> int:
    h, a, low = shape.hidden_size, shape.attention_heads, shape.kv_lora_rank or 0
    rope, values = shape.qk_rope_head_dim or 0, shape.v_head_dim or 0
    wide = a * ((shape.qk_head_dim or 0) + rope)
    queries = shape.q_lora_rank * (h + wide) if shape.q_lora_rank else h * wide
    return queries + h * (low + rope) + low * a * ((shape.qk_head_dim or 0) + values) + a * values * h


def states_bytes(shape: ModelShape, at: Degrees, *, sharded_optimizer: bool) -> int | None:
    """Weights, gradients and optimizer of the fullest stage; None where experts do not divide.

    Optimizer states are sharded over dp x cp, those of experts over the replicas of an expert.
    """
    dense, experts, embedding = parameters_of(shape)
    if at.expert_dp is None:
        return None
    share = math.ceil(shape.layers / at.pp) / shape.layers
    ends = 2 if at.pp == 1 else 1  # embedding and output layer, tied or not
    mine = (dense * share + ends * embedding) / at.tp, experts * share / (at.ep * at.etp)

    def each(replicas: int) -> float:
        return _GATHERED + OPTIMIZER_BYTES / replicas if sharded_optimizer else _REPLICATED

    return round(mine[0] * each(at.dp * at.cp) + mine[1] * each(at.expert_dp))


def layer_activation_bytes(shape: ModelShape, elements: float, tp: int, *, sequence_parallel: bool) -> float:
    """What one layer keeps of a micro-batch on a rank, attention fused; the widest kind of layer, where the
    model has several.

    elements: of the layer's input, sequence x micro-batch x hidden size / CP.
    (18 + c F / h) / tp bytes of each with sequence parallelism, 10 + (8 + c F / h) / tp without; c is 4 for a
    plain MLP and 6 for a gated one. s 4096, b 1, h 8192, F 28672 gated, tp 8 with sequence parallelism:
    156 MiB.
    """
    h = shape.hidden_size
    if shape.experts:
        width = (shape.expert_ffn_hidden_size or shape.ffn_hidden_size) * (shape.experts_per_token or 1)
        width += shape.shared_expert_ffn_hidden_size or 0
        width = max(
            width, shape.ffn_hidden_size if (shape.expert_layers or shape.layers) < shape.layers else 0
        )
        copies = 4.0 * (shape.experts_per_token or 1)
    else:
        width, copies = shape.ffn_hidden_size, 0.0
    inner = 8 + (6 if shape.gated_mlp else 4) * width / h + copies
    return elements * ((10 + inner) / tp if sequence_parallel else 10 + inner / tp)


def layer_input_bytes(elements: float, tp: int, *, sequence_parallel: bool) -> float:
    """What a layer keeps that is wholly recomputed: its input, in 16 bits. elements: as above."""
    return 2 * elements / (tp if sequence_parallel else 1)


def micro_batches_in_flight(*, pp: int, vpp: int, micro_batches: int) -> float:
    """Micro-batches whose activations the first stage holds at once under 1F1B: min(m, pp), and with virtual
    stages more by 1 + (pp - 1) / (pp x vpp). 4 stages of 2 chunks and many micro-batches: 4 x 1.375 = 5.5."""
    some = min(micro_batches, pp)
    return some if vpp == 1 else some + some * (pp - 1) / (pp * vpp)


def activation_bytes(shape: ModelShape, at: Degrees, batch: Batch) -> int:
    """Of the fullest stage: what its layers keep of the micro-batches in flight, and the logits."""
    h = shape.hidden_size
    elements = batch.sequence / at.cp * batch.micro_sequences * h
    whole = layer_activation_bytes(shape, elements, at.tp, sequence_parallel=batch.sequence_parallel)
    kept = layer_input_bytes(elements, at.tp, sequence_parallel=batch.sequence_parallel)
    layers = math.ceil(shape.layers / at.pp)
    flying = micro_batches_in_flight(pp=at.pp, vpp=at.vpp, micro_batches=batch.micro_batches)
    stage = layers * flying * (kept if batch.recompute else whole) + (whole if batch.recompute else 0)
    logits = _LOGIT_BYTES * elements / h * shape.vocabulary / at.tp
    last = stage / flying + logits
    return round(max(stage, last))


def need_bytes(shape: ModelShape, at: Degrees, batch: Batch) -> int | None:
    """States and activations; None where the mapping cannot be."""
    states = states_bytes(shape, at, sharded_optimizer=batch.sharded_optimizer)
    return None if states is None else states + activation_bytes(shape, at, batch)


def sharded_bytes(shape: ModelShape, at: Degrees, batch: Batch) -> int:
    """The same with FSDP: everything over all ranks, and two layers with their gradients whole.

    18 bytes a parameter over the ranks, 2 x 4 a parameter of a layer.
    """
    dense, experts, embedding = parameters_of(shape)
    states = (dense + experts + 2 * embedding) * _REPLICATED / at.world
    whole = 2 * 4 * (dense + experts) / shape.layers
    return round(states + whole) + activation_bytes(shape, at, batch)
