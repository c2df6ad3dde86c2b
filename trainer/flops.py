"""Model FLOPs of a step of the configured training, and the share of the hardware's peak that they are."""

from __future__ import annotations

from perfdoc.profiling import model_flops
from perfdoc.trainer.config.schema import Config
from perfdoc.trainer.model_shape import model_shape


def flops_per_step(config: Config, padded_vocab: int) -> int:
    """Floating-point operations of one step over all ranks."""
    tokens = config.training.global_batch_size * config.model.seq_length
    return tokens * model_flops.flops_per_token(model_shape(config, padded_vocab))


def training_dtype(config: Config) -> str:
    """Dtype of the matrix products: fp32, bf16, fp16 or fp8."""
    return "fp8" if config.precision.fp8 else config.precision.params_dtype


def mfu(flops: int, step_time_ns: int, devices: int, peak: float | None) -> float | None:
    """Model FLOPs utilisation as a fraction, or None where the peak is not known."""
    if peak is None or step_time_ns <= 0:
        return None
    return flops / (step_time_ns * 1e-9 * devices * peak)
