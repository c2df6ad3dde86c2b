"""In whose words predicted changes are named: the settings' own, else those of the framework of the job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import PYTORCHS
from perfdoc.knobs.terms import OLD_FLOAT8
from perfdoc.results.headline import Framework
from perfdoc.rules.facts.framework import accelerates_way, is_verls_fsdp
from perfdoc.rules.facts.zero import has_own_file, uses_deepspeed, zero_stage
from perfdoc.simulator.replay.gains import Gains
from perfdoc.simulator.replay.proposals import CHANGE_TITLES

_PYTORCH = MappingProxyType(
    {
        "without_gc": "gc.disable, gc.collect every so many steps",
        "without_data": "num_workers of the DataLoader",
        "without_launches": "torch.cuda.CUDAGraph, torch.compile mode reduce-overhead",
        "bf16_gemm": "torch.autocast, model.to(torch.bfloat16)",
        "fp8_gemm": "torchao, Transformer Engine",
        "overlapped_dp": "DDP's or FSDP's own",
        "overlapped_tp": "",
        "overlapped_ep": "",
        "without_queueing_tp": "CUDA_DEVICE_MAX_CONNECTIONS",
        "buckets_x4": "DDP's bucket_cap_mb",
        "buckets_x0.25": "DDP's bucket_cap_mb",
        "dp_half_bytes": "DDP's bf16_compress_hook",
        "without_recompute": "torch.utils.checkpoint",
        "more_virtual_stages": "an interleaved schedule",
        "fewer_virtual_stages": "an interleaved schedule",
    }
)
"""What makes a change, by its key; empty where PyTorch has nothing of the kind."""
_DEEPSPEED = MappingProxyType(
    {
        "overlapped_dp": "overlap_comm",
        "buckets_x4": "reduce_bucket_size",
        "buckets_x0.25": "reduce_bucket_size",
        "dp_half_bytes": "communication_data_type",
    }
)
_NO_DDP = dict.fromkeys(_DEEPSPEED, "")
"""Of jobs whose gradients DDP does not reduce."""
_OF_ZERO = ("overlapped_dp", "buckets_x4", "buckets_x0.25")
_STAGES = "pipeline_parallel_layers_per_stage, pipeline_parallel_schedule"
_OWN: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "torchtitan": {
            "without_gc": "training.gc_freq",
            "without_launches": "",  # compile.enable compiles blocks and captures no graph
            "fp8_gemm": "model.converters",
            "overlapped_tp": "enable_async_tensor_parallel",
            "without_recompute": "activation_checkpoint.mode",
            "more_virtual_stages": _STAGES,
            "fewer_virtual_stages": _STAGES,
        },
        "accelerate": {"fp8_gemm": "mixed_precision"},
    }
)
"""By dialect, where it has a setting of its own however it runs the job."""
_VLLM = MappingProxyType({**_PYTORCH, "bf16_gemm": "dtype", "without_launches": "vLLM without enforce_eager"})
_WORDS: Mapping[Framework, Mapping[str, str]] = MappingProxyType(
    {"pytorch": _PYTORCH, "vllm": _VLLM, "": dict.fromkeys(_PYTORCH, "")}
)


def in_words_of(framework: Framework, gains: Gains, configuration: Configuration) -> Gains:
    """The same predictions, with what a framework calls the setting in brackets. configuration: the settings
    that were given."""
    words = _WORDS.get(framework)
    if words is None:
        return gains
    if framework == "pytorch":
        words = {**words, **_own_words(configuration)}
    predictions = [replace(p, change=_renamed(p.key, p.change, words)) for p in gains.predictions]
    return replace(gains, analysis=replace(gains.analysis, predictions=predictions))


def _own_words(configuration: Configuration) -> Mapping[str, str]:
    """Of the framework whose settings these are, as far as they are read with the others."""
    dialect, way = configuration.dialect, accelerates_way(configuration)
    if dialect not in (*PYTORCHS, "verl"):
        return {}
    own = _OWN.get(dialect, {})
    if dialect == "torchtitan" and {OLD_FLOAT8, "model_converters"} & configuration.written == {OLD_FLOAT8}:
        own = {**own, "fp8_gemm": "float8.enable_float8_linear"}
    if way == "MULTI_GPU":
        return own
    if uses_deepspeed(configuration):
        in_its_file = _DEEPSPEED if has_own_file(configuration) else {}
        unread = _OF_ZERO if zero_stage(configuration) == 0 else ()
        of_the_file = {"fp8_gemm": ""} if dialect == "accelerate" and in_its_file else {}
        own = {**own, **of_the_file, **in_its_file, **dict.fromkeys(unread, "")}
    elif way == "FSDP":
        own = {**own, "without_recompute": "fsdp_activation_checkpointing"}
    elif is_verls_fsdp(configuration):
        own = {**own, "without_recompute": "enable_gradient_checkpointing"}
    return {**_NO_DDP, **own}


def _renamed(key: str, change: str, words: Mapping[str, str]) -> str:
    _, bracket, settings = CHANGE_TITLES.get(key, "").rpartition(" (")
    if key not in words or not bracket or not change.endswith(bracket + settings):
        return change
    plain = change.removesuffix(bracket + settings)
    return f"{plain} ({words[key]})" if words[key] else plain
