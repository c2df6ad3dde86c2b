"""Settings in the words of jobs whose captures show PyTorch or vLLM and no Megatron."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from perfdoc.knobs.knob import PYTORCHS, Value
from perfdoc.results.rules import Advice
from perfdoc.rules.engine.advise import proposed, value_of
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.counterpart import ONE_FORWARD_MORE, WHOLE_LAYERS, Own, is_on
from perfdoc.rules.engine.counterparts import OF_ITS_SHARDING, counterpart, is_plain_ddp, whose
from perfdoc.rules.engine.own_batches import GLOBAL_BATCH_CHANGES, MICRO, verls_batch
from perfdoc.rules.engine.rewritten import both, instead, rewritten
from perfdoc.rules.facts.framework import is_megatrons_path

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
    return lambda value: text if is_on(value) else None


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
    the others, each with what it needs beside it; left out where they are so already.
    """
    framework = case.framework
    if framework not in _WORDS_OF:
        pieces = [p for piece in advice for p in _in_verls_batches(case, piece)]
        return [_of_one_engine(piece) if _any_engine(case) else piece for piece in pieces]
    words = [[piece] if piece.forbidden else _spelled(case, piece) for piece in advice]
    return [piece for pieces in _without_refused(case, advice, words) for piece in pieces]


def _without_refused(
    case: Case, advice: Sequence[Advice], words: Sequence[Sequence[Advice]]
) -> list[Sequence[Advice]]:
    """The pieces again, each checked without those that the framework has no words for: a switch is not
    advised without what the other settings demand beside it."""
    left = [
        piece for piece, spelled in zip(advice, words, strict=True) if not (spelled and spelled[0].forbidden)
    ]
    against = {piece.knob: piece.forbidden for piece in proposed(case, left)}
    return [
        [replace(spelled[0], forbidden=why)] if spelled and (why := against.get(spelled[0].knob)) else spelled
        for spelled in words
    ]


def _any_engine(case: Case) -> bool:
    """Whether it is not known with which engine verl trains."""
    return case.configuration.dialect == "verl" and not case.framework


def _in_verls_batches(case: Case, piece: Advice) -> list[Advice]:
    """Every engine of verl cuts by tokens where it is told to."""
    if case.configuration.dialect != "verl" or piece.knob != MICRO or piece.forbidden:
        return [piece]
    own = verls_batch(case, value_of(piece))
    if isinstance(own, Own):
        return [piece] if own.knob == MICRO else rewritten(case, piece, own)
    return [piece] if own is None else [replace(piece, dialects={}, forbidden=own)]


def _of_one_engine(piece: Advice) -> Advice:
    if not is_megatrons_path(piece.dialects.get("verl", "")):
        return piece
    return replace(piece, costs=both(piece.costs, "read with verl's strategy megatron only"))


def _spelled(case: Case, piece: Advice) -> list[Advice]:
    """The piece, and what is set beside it; nothing for what the job's own setting says already."""
    framework, dialect, value = case.framework, case.configuration.dialect, value_of(piece)
    wrapped = framework == DIALECT and dialect in (*PYTORCHS, "verl")
    own = counterpart(case, piece, value) if wrapped else None
    if isinstance(own, Own):
        return rewritten(case, piece, own)
    spelling = _WORDS_OF[framework].get(piece.knob)
    words = spelling(value) if spelling is not None and own is None else None
    has_pytorchs_words = (
        not wrapped or piece.knob not in OF_ITS_SHARDING or is_plain_ddp(case, piece.knob, value)
    )
    if words is not None and has_pytorchs_words:
        if piece.knob == "recompute_granularity":
            if case.is_set_to(piece.knob, "full"):
                return []  # less of it has no words here, and all of it is what the job does
            piece = instead(piece, WHOLE_LAYERS, ONE_FORWARD_MORE)
        more = GLOBAL_BATCH_CHANGES if piece.knob == MICRO else ""
        return [replace(piece, dialects={framework: words}, costs=both(piece.costs, more))]
    if "env" in piece.dialects:
        return [replace(piece, dialects={"env": piece.dialects["env"]})]
    megatron = piece.dialects.get("megatron_lm", "")
    example = f"; in Megatron-LM: {megatron}" if megatron else ""
    name = whose(case, dialect) if wrapped and dialect is not None else _NAMES[framework]
    return [replace(piece, dialects={}, forbidden=own or f"{name} {_NONE}{example}")]


def no_setting(framework: str) -> str:
    """What is said where a framework has no setting of the kind."""
    return f"{_NAMES[framework]} {_NONE}"
