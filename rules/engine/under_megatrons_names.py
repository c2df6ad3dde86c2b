"""What the job's own settings say, under the names of Megatron's by which rules ask."""

from __future__ import annotations

from collections.abc import Iterator

from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import Value
from perfdoc.results.headline import Framework
from perfdoc.rules.facts.framework import accelerates_way, is_verls_fsdp
from perfdoc.rules.facts.titans_micro_batch import titans_micro_batch
from perfdoc.rules.facts.zero import overlaps_comm, uses_deepspeed, zero_stage

_REDUCE, _GATHER, _SHARDED = "overlap_grad_reduce", "overlap_param_gather", "use_distributed_optimizer"
_RECOMPUTE, _WIDE, _MICRO = "recompute_granularity", "grad_reduce_in_fp32", "micro_batch_size"


def under_megatrons_names(framework: Framework, configuration: Configuration) -> Configuration:
    """The settings of a job of torchtitan, DeepSpeed, Accelerate or verl's FSDP, and what follows from them.

    What is set under Megatron's name already stays.
    """
    if framework != "pytorch":
        return configuration
    known = {*configuration.values, *configuration.unknown}
    found = {knob: value for knob, value in _said(configuration) if knob not in known}
    return configuration.with_changes(found) if found else configuration


def _said(configuration: Configuration) -> Iterator[tuple[str, Value]]:
    of, way = configuration.values, accelerates_way(configuration)
    if uses_deepspeed(configuration):
        yield from _zero(configuration)
    if configuration.dialect == "torchtitan":
        yield from _titans(configuration)
    if way == "MULTI_GPU":
        yield _REDUCE, True  # by DDP itself
    if way == "FSDP":
        yield from _switch(of.get("fsdp_forward_prefetch"), _GATHER)
        yield from _recomputed(of.get("fsdp_activation_checkpointing"))
    if is_verls_fsdp(configuration):
        yield from _switch(of.get("verl_forward_prefetch"), _GATHER)
        yield from _recomputed(of.get("verl_gradient_checkpointing"))


def _zero(configuration: Configuration) -> Iterator[tuple[str, Value]]:
    of, stage, overlaps = configuration.values, zero_stage(configuration), overlaps_comm(configuration)
    yield from _reduced_in(of.get("deepspeed_communication_dtype"))
    if stage == 0:
        yield _REDUCE, False
        yield _SHARDED, False
    if not stage:
        return
    yield from _switch(overlaps, _REDUCE)
    size = of.get("zero_reduce_bucket_size")
    if isinstance(size, int | float) and not isinstance(size, bool) and size >= 1:
        yield "bucket_size", int(size)
    if stage == 3:  # gathers before each layer, on the stream of the overlap
        yield _SHARDED, True
        yield from _switch(overlaps, _GATHER)


def _titans(configuration: Configuration) -> Iterator[tuple[str, Value]]:
    of = configuration.values
    yield "manual_gc", True  # always, every training.gc_freq steps
    yield from _reduced_in(of.get("fsdp_reduce_dtype"))
    yield from _switch(of.get("async_tensor_parallel"), "tp_comm_overlap")
    mode = of.get("checkpoint_mode")
    if mode in ("none", "selective", "full"):
        yield _RECOMPUTE, None if mode == "none" else mode
    size = of.get(titans_micro_batch(configuration) or "")
    if isinstance(size, int) and not isinstance(size, bool):
        yield _MICRO, size


def _switch(value: Value, knob: str) -> Iterator[tuple[str, Value]]:
    if isinstance(value, bool):
        yield knob, value


def _recomputed(value: Value) -> Iterator[tuple[str, Value]]:
    """Of each whole layer."""
    if isinstance(value, bool):
        yield _RECOMPUTE, "full" if value else None


def _reduced_in(dtype: Value) -> Iterator[tuple[str, Value]]:
    if isinstance(dtype, str):
        yield _WIDE, dtype == "fp32"
