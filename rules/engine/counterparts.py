"""Megatron's settings under the names that torchtitan, DeepSpeed, Accelerate and verl's FSDP use."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from perfdoc.knobs.knob import DIALECT_TITLES, Dialect, Value
from perfdoc.knobs.terms import FLOAT8_CONVERTERS, OLD_FLOAT8
from perfdoc.knobs.writing import as_written
from perfdoc.results.rules import Advice
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.counterpart import ONE_FORWARD_MORE, WHOLE_LAYERS, Beside, Finder, Own, is_on
from perfdoc.rules.engine.own_batches import (
    MICRO,
    deepspeeds_batch,
    deepspeeds_global_batch,
    titans_batch,
    verls_batch,
)
from perfdoc.rules.facts.framework import accelerates_way, is_megatrons_path, is_verls_fsdp
from perfdoc.rules.facts.zero import has_own_file, zero_stage

OF_ITS_SHARDING = frozenset(
    (
        *("bucket_size", "overlap_grad_reduce", "overlap_param_gather", "grad_reduce_in_fp32"),
        *(
            "use_distributed_optimizer",
            "use_torch_fsdp2",
            "use_megatron_fsdp",
            "data_parallel_sharding_strategy",
        ),
    )
)
"""Of data parallelism, which these frameworks wrap: PyTorch's words for DDP and FSDP have no place there."""


def counterpart(case: Case, piece: Advice, value: Value) -> Own | str | None:
    """The job's own setting that does what a piece of advice does, or why it has none here; None where its
    framework has nothing of the kind."""
    dialect = case.configuration.dialect
    known_engine = dialect != "verl" or piece.knob == MICRO or is_verls_fsdp(case.configuration)
    own = _OWN.get(dialect or "", {}).get(piece.knob) if known_engine else None
    if own is not None:
        return own(case, value)
    if dialect is None or dialect not in piece.dialects or "env" in piece.dialects:
        return None
    if is_megatrons_path(as_written(piece.knob, value, dialect)):
        return None
    return Own(dialect=dialect, knob=piece.knob, value=value)


def whose(case: Case, dialect: Dialect) -> str:
    """What a job with settings of a dialect and without Megatron is called."""
    return "FSDP in verl" if is_verls_fsdp(case.configuration) else DIALECT_TITLES[dialect]


def is_plain_ddp(case: Case, knob: str, value: Value) -> bool:
    """Whether PyTorch's words for DDP hold in a job of Accelerate, for a setting that DDP has."""
    of_ddp = knob in ("bucket_size", "use_distributed_optimizer") or (
        knob == "grad_reduce_in_fp32" and not value
    )
    return of_ddp and accelerates_way(case.configuration) == "MULTI_GPU"


def _to(dialect: Dialect, knob: str) -> Finder:
    """The same value under another name."""
    return lambda _, value: None if value is None else Own(dialect=dialect, knob=knob, value=value)


def _on(dialect: Dialect, knob: str, to: Value = True) -> Finder:
    """Turns it on; there is nothing for turning it off."""
    return lambda _, value: Own(dialect=dialect, knob=knob, value=to) if is_on(value) else None


def _zero(stage: int) -> Finder:
    """At least this stage; one that is higher stays, and one that is not known too."""

    def own(case: Case, value: Value) -> Own | str | None:
        if not value:
            return None
        now = zero_stage(case.configuration)
        if now is None:
            return "the ZeRO stage is not known"
        dialect: Dialect = "deepspeed" if has_own_file(case.configuration) else "accelerate"
        return Own(dialect=dialect, knob="zero_stage", value=max(now, stage))

    return own


def _in_its_file(own: Finder) -> Finder:
    """Of DeepSpeed's own file, which replaces what Accelerate's says of DeepSpeed."""

    def found(case: Case, value: Value) -> Own | str | None:
        if not has_own_file(case.configuration):
            return "it is a setting of a deepspeed_config_file, which replaces the others of deepspeed_config"
        return own(case, value)

    return found


def _sharded(own: Finder) -> Finder:
    """Read by ZeRO only: stage 0 reduces without these settings."""

    def found(case: Case, value: Value) -> Own | str | None:
        if zero_stage(case.configuration) == 0:
            return "DeepSpeed reads it with a ZeRO stage above 0 only"
        return own(case, value)

    return _in_its_file(found)


def _gathers_ahead(case: Case, value: Value) -> Own | None:
    """Only stage 3 gathers weights before each layer, on a stream of its own where overlap_comm is on."""
    if not value or zero_stage(case.configuration) != 3:
        return None
    return Own(dialect="deepspeed", knob="zero_overlap_comm", value=True)


def _reduced_in(dialect: Dialect, knob: str) -> Finder:
    return lambda _, value: Own(dialect=dialect, knob=knob, value="fp32" if value else "bf16")


def _async_tp(case: Case, value: Value) -> Own | None:
    if not is_on(value):
        return None
    compiled = case.is_set_to("torch_compile", True)
    needs = Beside(knob="torch_compile", value=True, why="asynchronous tensor parallelism is the compiler's")
    return Own(
        dialect="torchtitan", knob="async_tensor_parallel", value=True, beside=() if compiled else (needs,)
    )


def _float8(case: Case, value: Value) -> Own | str | None:
    """One converter more; the layers that others convert stay theirs. Older torchtitan has a switch instead,
    which a file of it names."""
    if not is_on(value):
        return None
    if "model_converters" in case.configuration.unknown:
        return "the model's converters are not known"
    known, now = case.setting("model_converters")
    have = now if known and isinstance(now, tuple) else ()
    if not set(have) & set(FLOAT8_CONVERTERS):
        if OLD_FLOAT8 in case.configuration.unknown:
            return "whether enable_float8_linear is on is not known"
        if OLD_FLOAT8 in case.configuration.values:
            compiled = case.is_set_to("torch_compile", True)
            needs = Beside(
                knob="torch_compile", value=True, why="slower than BF16 unless the model is compiled"
            )
            beside = () if compiled else (needs,)
            return Own(dialect="torchtitan", knob=OLD_FLOAT8, value=True, beside=beside)
    to = have if set(have) & set(FLOAT8_CONVERTERS) else (*have, FLOAT8_CONVERTERS[0])
    costs = "older torchtitan calls the converter float8"
    return Own(dialect="torchtitan", knob="model_converters", value=to, costs=costs)


def _accelerates_fp8(case: Case, value: Value) -> Own | str | None:
    if not is_on(value):
        return None
    if has_own_file(case.configuration):
        return "Accelerate refuses mixed_precision beside deepspeed_config_file"
    costs = "needs Transformer Engine, torchao or MS-AMP"
    return Own(dialect="accelerate", knob="accelerate_mixed_precision", value="fp8", costs=costs)


def _recomputed(dialect: Dialect, knob: str) -> Finder:
    """Whole layers, or none."""

    def own(case: Case, value: Value) -> Own:
        if not is_on(value):
            return Own(dialect=dialect, knob=knob, value=False)
        return Own(dialect=dialect, knob=knob, value=True, why=WHOLE_LAYERS, costs=ONE_FORWARD_MORE)

    return own


def _titans_recomputation(case: Case, value: Value) -> Own:
    """Its selective mode is no list of modules: its option chooses operators, or every so many layers."""
    dialect: Dialect = "torchtitan"
    if value == "selective":
        why = "keeps a part of the activations and recomputes the rest, by the mode's option"
        less = case.is_set_to("recompute_granularity", "full")
        costs = "more memory for activations" if less else "a part of a forward pass more"
        return Own(dialect=dialect, knob="checkpoint_mode", value=value, why=why, costs=costs)
    if value == "full":
        costs = f"{ONE_FORWARD_MORE}; mode selective costs less and frees less"
        return Own(dialect=dialect, knob="checkpoint_mode", value=value, why=WHOLE_LAYERS, costs=costs)
    return Own(dialect=dialect, knob="checkpoint_mode", value="none")


def _none(why: str) -> Finder:
    return lambda case, value: why


_TITANS_CHUNKS = (
    "torchtitan makes chunks by parallelism.pipeline_parallel_schedule (Interleaved1F1B) and "
    "parallelism.pipeline_parallel_layers_per_stage, which depends on the layers that the first and the "
    "last stage lack"
)
_DDP_OVERLAPS = "DDP reduces gradients during the backward pass by itself"


def _of_fsdp_1(chosen_by: str, own: Finder) -> Finder:
    """FSDP2 does not read it: which of the two it is must be known, or left at the default, the first."""

    def found(case: Case, value: Value) -> Own | str | None:
        if chosen_by in case.configuration.unknown:
            return "whether it is FSDP or FSDP2, which does not read it, is not known"
        return own(case, value)

    return found


def _by_type(**owns: Finder) -> Finder:
    """By the way in which Accelerate runs a job."""

    def found(case: Case, value: Value) -> Own | str | None:
        own = owns.get(accelerates_way(case.configuration))
        return None if own is None else own(case, value)

    return found


_DEEPSPEED: Mapping[str, Finder] = {
    "bucket_size": _sharded(_to("deepspeed", "zero_reduce_bucket_size")),  # both count elements
    "overlap_grad_reduce": _sharded(_on("deepspeed", "zero_overlap_comm")),
    "overlap_param_gather": _in_its_file(_gathers_ahead),
    "grad_reduce_in_fp32": _in_its_file(_reduced_in("deepspeed", "deepspeed_communication_dtype")),
    "use_distributed_optimizer": _zero(1),
    "use_torch_fsdp2": _zero(3),
}
_TORCHTITAN: Mapping[str, Finder] = {
    "micro_batch_size": titans_batch,
    "grad_reduce_in_fp32": lambda _, value: (
        Own(dialect="torchtitan", knob="fsdp_reduce_dtype", value="fp32") if value else None
    ),
    "tp_comm_overlap": _async_tp,
    "fp8": _float8,
    "recompute_granularity": _titans_recomputation,
    "virtual_pipeline_model_parallel_size": _none(_TITANS_CHUNKS),
    **dict.fromkeys(
        (
            *("bias_activation_fusion", "bias_dropout_fusion"),
            *("apply_rope_fusion", "cross_entropy_loss_fusion"),
        ),
        _on("torchtitan", "torch_compile"),
    ),
}
_ACCELERATE: Mapping[str, Finder] = {
    **{knob: _by_type(DEEPSPEED=own) for knob, own in _DEEPSPEED.items()},
    "overlap_grad_reduce": _by_type(
        DEEPSPEED=_DEEPSPEED["overlap_grad_reduce"], MULTI_GPU=_none(_DDP_OVERLAPS)
    ),
    "overlap_param_gather": _by_type(
        DEEPSPEED=_DEEPSPEED["overlap_param_gather"],
        FSDP=_of_fsdp_1("fsdp_version", _on("accelerate", "fsdp_forward_prefetch")),
    ),
    "recompute_granularity": _by_type(FSDP=_recomputed("accelerate", "fsdp_activation_checkpointing")),
    "fp8": _accelerates_fp8,
}
_VERL: Mapping[str, Finder] = {
    "overlap_param_gather": _of_fsdp_1("verl_strategy", _on("verl", "verl_forward_prefetch")),
    "recompute_granularity": _recomputed("verl", "verl_gradient_checkpointing"),
    "micro_batch_size": verls_batch,
}
_OWN: Mapping[str, Mapping[str, Finder]] = MappingProxyType(
    {
        "deepspeed": {
            **_DEEPSPEED,
            "micro_batch_size": deepspeeds_batch,
            "global_batch_size": deepspeeds_global_batch,
        },
        "torchtitan": _TORCHTITAN,
        "accelerate": _ACCELERATE,
        "verl": _VERL,
    }
)
"""By dialect and Megatron's setting."""
