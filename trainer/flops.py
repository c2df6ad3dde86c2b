"""The configured model's shape, its FLOPs per step, and the share of the hardware's peak that they are."""

from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from perfdoc.profiling import flops as model_flops
from perfdoc.profiling.gpus import peak_flops
from perfdoc.profiling.manifest import ModelShape, PeakKind
from perfdoc.profiling.measured import MeasuredCeilings
from perfdoc.trainer.adapt import cuda_available
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


_MAX_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Peak:
    """FLOP/s of one device in the dtype of the GEMMs; None where it is not known."""

    value: float | None = None
    kind: PeakKind | None = None
    source: str = ""


def read_measured(path: Path | None) -> MeasuredCeilings | None:
    """What `perfdoc run` measured, where it holds for this rank: its kind of device, and as many threads.

    None as well where the file cannot be read: a run does not fail for want of it.
    """
    if path is None:
        return None
    try:
        if path.stat().st_size > _MAX_BYTES:
            return None
        found = msgspec.json.decode(path.read_bytes(), type=MeasuredCeilings)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if cuda_available():
        return found if found.device == torch.cuda.get_device_name() else None
    return found if found.kind == "cpu" and found.threads == torch.get_num_threads() else None


def peak_here(config: Config, measured: MeasuredCeilings | None) -> Peak:
    """The peak of this rank's device."""
    dtype = training_dtype(config)
    name = torch.cuda.get_device_name() if cuda_available() else None
    if dtype == "fp32" and name is not None and torch.backends.cuda.matmul.allow_tf32:
        dtype = "tf32"
    listed = peak_flops(name, dtype)
    if listed is not None:
        return Peak(value=listed, kind="datasheet", source=f"dense {dtype} peak of {name}")
    if measured is None or dtype not in measured.flops:
        return Peak()
    rate = measured.flops[dtype]
    return Peak(value=rate.best, kind="measured", source=f"{dtype}, {measured.text(rate)}")
