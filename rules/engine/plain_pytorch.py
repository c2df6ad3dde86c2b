"""Settings in the words of jobs whose captures show PyTorch or vLLM and no Megatron."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from perfdoc.knobs.check import check
from perfdoc.knobs.knob import PYTORCHS, Dialect, Value
from perfdoc.knobs.values import as_text
from perfdoc.knobs.writing import as_written
from perfdoc.results.rules import Advice
from perfdoc.rules.engine.advise import proposed, value_of
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.own_settings import OF_ITS_SHARDING, counterpart, whose

DIALECT = "pytorch"
_BYTES = 4
"""Of a gradient's element: DDP reduces in the parameters' type, at most FP32."""
_OVERLAPS = "torch.nn.parallel.DistributedDataParallel(model)"
"""It overlaps the reduction of gradients by itself."""
_COMPILED = "torch.compile(model)"


def _bucket(value: Value) -> str:
    mib = max(round(value * _BYTES / 2**20), 1) if isinstance(value, int) else 25
    return f"DistributedDataParallel(model, bucket_cap_mb={mib})"


def _of(text: str) -> Callable[[Value], str | None]:
    """Words for turning it on; there are none for turning it off."""
    return lambda value: text if value not in (None, False, "none", "off") else None


WORDS: Mapping[str, Callable[[Value], str | None]] = MappingProxyType(
    {
        "bucket_size": _bucket,
        "overlap_grad_reduce": _of(_OVERLAPS),
        "overlap_param_gather": _of("FSDP2: model.set_modules_to_forward_prefetch([...])"),
        "grad_reduce_in_fp32": lambda value: (
            "FSDP2: MixedPrecisionPolicy(reduce_dtype=torch.float32)"
            if value
            else "model.register_comm_hook(None, default_hooks.bf16_compress_hook)"
        ),
        "use_distributed_optimizer": _of("torch.distributed.optim.ZeroRedundancyOptimizer, or FSDP2"),
        "use_torch_fsdp2": _of("torch.distributed.fsdp.fully_shard(layer)"),
        "cuda_graph_impl": _of('torch.compile(model, mode="reduce-overhead"), or torch.cuda.CUDAGraph'),
        "recompute_granularity": _of("torch.utils.checkpoint.checkpoint(layer, ..., use_reentrant=False)"),
        "dataloader_num_workers": lambda value: (
            f"DataLoader(..., num_workers={value}, pin_memory=True, persistent_workers=True)"
        ),
        "micro_batch_size": lambda value: f"DataLoader(..., batch_size={value})",
        "manual_gc": _of("gc.disable() before the loop, gc.collect() every so many steps on all ranks"),
        "manual_gc_interval": lambda value: f"gc.collect() every {value} steps",
        "fp8": _of("torchao.float8.convert_to_float8_training(model)"),
        "attention_backend": _of("torch.nn.functional.scaled_dot_product_attention"),
        "record_memory_history": _of("torch.cuda.memory._record_memory_history()"),
        **dict.fromkeys(
            (
                *("masked_softmax_fusion", "bias_activation_fusion", "bias_dropout_fusion"),
                *("apply_rope_fusion", "cross_entropy_loss_fusion"),
            ),
            _of(_COMPILED),
        ),
    }
)
"""By knob, what to write for a value; None where PyTorch has nothing to write for it."""


VLLM: Mapping[str, Callable[[Value], str | None]] = MappingProxyType(
    {
        "cuda_graph_impl": _of("LLM(..., enforce_eager=False)"),
        "fp8": _of('LLM(..., quantization="fp8")'),
    }
)
"""The same for vLLM, which serves and does not train."""
_WORDS_OF: Mapping[str, Mapping[str, Callable[[Value], str | None]]] = MappingProxyType(
    {DIALECT: WORDS, "vllm": VLLM}
)
_NAMES = {DIALECT: "PyTorch", "vllm": "vLLM"}
_NONE = "has no such setting"


def in_its_words(case: Case, advice: Sequence[Advice]) -> list[Advice]:
    """The advice as it is; in a job of plain PyTorch or of vLLM in its words, or refused where it has none,
    with Megatron's setting as an example. Environment variables are the same everywhere.

    With settings of torchtitan, DeepSpeed, Accelerate or verl's FSDP, their own come first, checked against
    the others; left out where they are so already.
    """
    framework = case.framework
    if framework not in _WORDS_OF:
        return list(advice)
    words = [piece if piece.forbidden else _spelled(case, piece) for piece in advice]
    return [piece for piece in words if piece is not None]


def _without_refused(
    case: Case, advice: Sequence[Advice], words: Sequence[Advice | None]
) -> list[Advice | None]:
    """The pieces again, each checked without those that the framework has no words for: a switch is not
    advised without what the other settings demand beside it."""
    left = [
        piece for piece, spelled in zip(advice, words, strict=True) if not (spelled and spelled.forbidden)
    ]
    against = {piece.knob: piece.forbidden for piece in proposed(case, left)}
    return [
        replace(piece, forbidden=against[piece.knob]) if piece and against.get(piece.knob) else piece
        for piece in words
    ]


def _spelled(case: Case, piece: Advice) -> Advice | None:
    """None for what the job's own setting says already."""
    framework, dialect, value = case.framework, case.configuration.dialect, value_of(piece)
    wrapped = framework == DIALECT and dialect in (*PYTORCHS, "verl")
    if wrapped and (own := counterpart(case, piece, value)) is not None:
        return _own(case, piece, *own)
    spelling = _WORDS_OF[framework].get(piece.knob)
    words = spelling(value) if spelling is not None else None
    if words is not None and not (wrapped and piece.knob in OF_ITS_SHARDING):
        return replace(piece, dialects={framework: words})
    if "env" in piece.dialects:
        return replace(piece, dialects={"env": piece.dialects["env"]})
    megatron = piece.dialects.get("megatron_lm", "")
    example = f"; in Megatron-LM: {megatron}" if megatron else ""
    name = whose(dialect) if wrapped and dialect is not None else _NAMES[framework]
    return replace(piece, dialects={}, forbidden=f"{name} {_NONE}{example}")


def _own(case: Case, piece: Advice, dialect: Dialect, knob: str, value: Value) -> Advice | None:
    known, now = case.setting(knob)
    if known and now == value:
        return None
    against = check(case.configuration, {knob: value})
    return replace(
        piece,
        from_value=as_text(now) if known else None,
        dialects={dialect: as_written(knob, value, dialect)},
        forbidden=against[0].words if against else "",
    )


def no_setting(framework: str) -> str:
    """What is said where a framework has no setting of the kind."""
    return f"{_NAMES[framework]} {_NONE}"
