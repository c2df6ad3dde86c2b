"""The configured model's shape, its FLOPs per step, and the share of the hardware's peak that they are."""

from __future__ import annotations

from perfdoc.profiling import flops as model_flops
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


def flops_per_step(config: Config, padded_vocab: int) -> int:
    """Floating-point operations of one step over all ranks."""
    tokens = config.training.global_batch_size * config.model.seq_length
    return tokens * model_flops.flops_per_token(model_shape(config, padded_vocab))


def training_dtype(config: Config) -> str:
    """Dtype of the GEMMs: fp32, bf16, fp16 or fp8."""
    return "fp8" if config.precision.fp8 else config.precision.params_dtype


def mfu(flops: int, step_time_ns: int, devices: int, peak: float | None) -> float | None:
    """Model FLOPs utilization as a fraction, or None where the peak is not known."""
    if peak is None or step_time_ns <= 0:
        return None
    return flops / (step_time_ns * 1e-9 * devices * peak)
