"""Megatron's settings under the names that torchtitan, DeepSpeed, Accelerate and verl's FSDP use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from perfdoc.knobs.knob import DIALECT_TITLES, Dialect, Value
from perfdoc.knobs.writing import as_written
from perfdoc.results.rules import Advice
from perfdoc.rules.engine.case import Case

Written = tuple[Dialect, str, Value]
"""Whose setting, its canonical id, and the value."""
_MEGATRONS = (".megatron.", ".override_optimizer_config.", "megatron_lm_config.")
"""In paths of verl and Accelerate: read by megatron-core alone."""
_Own = Callable[[Case, Value], Written | None]
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


def counterpart(case: Case, piece: Advice, value: Value) -> Written | None:
    """The job's own setting that does what a piece of advice does; None where its framework has none."""
    dialect = case.configuration.dialect
    own = _OWN.get(dialect or "", {}).get(piece.knob)
    if own is not None:
        return own(case, value)
    if dialect is None or dialect not in piece.dialects or "env" in piece.dialects:
        return None
    mine = as_written(piece.knob, value, dialect)
    return None if any(part in mine for part in _MEGATRONS) else (dialect, piece.knob, value)


def whose(dialect: Dialect) -> str:
    """What a job with settings of a dialect and without Megatron is called."""
    return "FSDP in verl" if dialect == "verl" else DIALECT_TITLES[dialect]


def _stage(case: Case) -> Value:
    return case.setting("zero_stage")[1]


def _zero(stage: int) -> _Own:
    """At least this stage; one that is higher stays."""

    def own(case: Case, value: Value) -> Written | None:
        now = _stage(case)
        to = max(now, stage) if isinstance(now, int) else stage
        mine = case.configuration.dialect == "accelerate" and not case.setting("accelerate_deepspeed_file")[1]
        return ("accelerate" if mine else "deepspeed", "zero_stage", to) if value else None

    return own


def _to(dialect: Dialect, knob: str) -> _Own:
    """The same value under another name."""
    return lambda _, value: None if value is None else (dialect, knob, value)


def _on(dialect: Dialect, knob: str, to: Value = True) -> _Own:
    """Turns it on; there is nothing for turning it off."""
    return lambda _, value: (dialect, knob, to) if value not in (None, False, "none", "off") else None


def _sharded(own: _Own) -> _Own:
    """Read by ZeRO only: stage 0 reduces without these settings."""
    return lambda case, value: None if _stage(case) == 0 else own(case, value)


def _gathers_ahead(case: Case, value: Value) -> Written | None:
    """Only stage 3 gathers weights before each layer, on a stream of its own where overlap_comm is on."""
    return ("deepspeed", "zero_overlap_comm", True) if value and _stage(case) == 3 else None


def _titans_batch(case: Case, value: Value) -> Written:
    """With a pipeline the samples of a rank are cut once more."""
    pp = case.setting("pipeline_model_parallel_size")[1]
    piped = isinstance(pp, int) and pp > 1
    return "torchtitan", "pipeline_microbatch_size" if piped else "local_batch_size", value


def _reduced_in(dialect: Dialect, knob: str) -> _Own:
    return lambda _, value: (dialect, knob, "fp32" if value else "bf16")


def _under(type_: str, own: _Own) -> _Own:
    """Of one way in which Accelerate runs a job."""
    return lambda case, value: (
        own(case, value) if case.setting("accelerate_distributed_type")[1] == type_ else None
    )


_DEEPSPEED: Mapping[str, _Own] = {
    "bucket_size": _sharded(_to("deepspeed", "zero_reduce_bucket_size")),  # both count elements
    "overlap_grad_reduce": _sharded(_on("deepspeed", "zero_overlap_comm")),
    "overlap_param_gather": _gathers_ahead,
    "grad_reduce_in_fp32": _reduced_in("deepspeed", "deepspeed_communication_dtype"),
    "use_distributed_optimizer": _zero(1),
    "use_torch_fsdp2": _zero(3),
}
_TORCHTITAN: Mapping[str, _Own] = {
    "micro_batch_size": _titans_batch,
    "grad_reduce_in_fp32": lambda _, value: ("torchtitan", "fsdp_reduce_dtype", "fp32") if value else None,
    "tp_comm_overlap": _on("torchtitan", "async_tensor_parallel"),
    "recompute_granularity": lambda _, value: (
        "torchtitan",
        "checkpoint_mode",
        value if value in ("full", "selective") else "none",
    ),
    **dict.fromkeys(
        (
            *("bias_activation_fusion", "bias_dropout_fusion"),
            *("apply_rope_fusion", "cross_entropy_loss_fusion"),
        ),
        _on("torchtitan", "torch_compile"),
    ),
}
_ACCELERATE: Mapping[str, _Own] = {
    **{knob: _under("DEEPSPEED", own) for knob, own in _DEEPSPEED.items()},
    "overlap_param_gather": lambda case, value: (
        _under("FSDP", _on("accelerate", "fsdp_forward_prefetch"))(case, value)
        or _under("DEEPSPEED", _gathers_ahead)(case, value)
    ),
}
_VERL: Mapping[str, _Own] = {
    "overlap_param_gather": _on("verl", "verl_forward_prefetch"),
    "recompute_granularity": lambda _, value: (
        "verl",
        "verl_gradient_checkpointing",
        value not in (None, "none"),
    ),
}
_OWN: Mapping[str, Mapping[str, _Own]] = MappingProxyType(
    {"deepspeed": _DEEPSPEED, "torchtitan": _TORCHTITAN, "accelerate": _ACCELERATE, "verl": _VERL}
)
"""By dialect and Megatron's setting."""
