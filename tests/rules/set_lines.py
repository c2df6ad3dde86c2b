"""Jobs that are sound, written as a file of each dialect, and set lines of rules put into them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from perfdoc.knobs.knob import Dialect, Value
from perfdoc.knobs.lint.finding import Report
from perfdoc.knobs.lint.text import lint
from perfdoc.knobs.load import catalogue
from perfdoc.knobs.writing import as_written
from perfdoc.results.rules import Advice
from perfdoc.trainer.config.resolve import KEYS

_SHAPE: dict[str, Value] = {
    "num_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_query_groups": 8,
    "seq_length": 8192,
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
    "untie_embeddings_and_output_weights": True,
    "add_bias_linear": False,
    "bf16": True,
    "nnodes": 8,
    "nproc_per_node": 8,
    "micro_batch_size": 1,
    "global_batch_size": 256,
    "use_distributed_optimizer": True,
}
_MOE: dict[str, Value] = {
    **_SHAPE,
    "num_moe_experts": 64,
    "moe_router_topk": 8,
    "moe_grouped_gemm": True,
    "moe_token_dispatcher_type": "alltoall",
    "moe_router_dtype": "fp32",
    "expert_tensor_parallel_size": 1,
}
_OVERLAPPED: dict[str, Value] = {"overlap_grad_reduce": True, "overlap_param_gather": True}
JOBS: Mapping[str, Mapping[str, Value]] = {
    "dense": _SHAPE,
    "overlapped": {**_SHAPE, **_OVERLAPPED},
    "tied": {**_SHAPE, "untie_embeddings_and_output_weights": False},
    "tensor parallel": {
        **_SHAPE,
        "tensor_model_parallel_size": 4,
        "sequence_parallel": True,
        "context_parallel_size": 2,
    },
    "interleaved": {
        **_SHAPE,
        **_OVERLAPPED,
        "tensor_model_parallel_size": 2,
        "sequence_parallel": True,
        "pipeline_model_parallel_size": 4,
        "virtual_pipeline_model_parallel_size": 4,
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
        "overlap_p2p_comm": True,
        "batch_p2p_comm": False,
    },
    "experts": {**_MOE, **_OVERLAPPED, "expert_model_parallel_size": 8},
    "experts in stages": {
        **_MOE,
        "expert_model_parallel_size": 4,
        "pipeline_model_parallel_size": 2,
        "tensor_model_parallel_size": 2,
        "sequence_parallel": True,
        "moe_shared_expert_intermediate_size": 2048,
    },
    "Megatron FSDP": {
        **_SHAPE,
        **_OVERLAPPED,
        "use_megatron_fsdp": True,
        "data_parallel_sharding_strategy": "optim_grads_params",
        "ckpt_format": "fsdp_dtensor",
        "gradient_accumulation_fusion": False,
    },
    "PyTorch FSDP2": {
        **_SHAPE,
        "use_distributed_optimizer": False,
        "use_torch_fsdp2": True,
        "ckpt_format": "torch_dcp",
        "gradient_accumulation_fusion": False,
    },
    "graphed": {
        **_SHAPE,
        "cuda_graph_impl": "local",
        "cuda_graph_scope": ("full_iteration",),
        "use_te_rng_tracker": True,
        "check_for_nan_in_grad": False,
    },
}
_OWN: Mapping[Dialect, Mapping[str, Mapping[str, Value]]] = {
    "deepspeed": {
        f"ZeRO {stage}": {
            "micro_batch_size": 2,
            "gradient_accumulation_steps": 8,
            "zero_stage": stage,
            "deepspeed_bf16": True,
        }
        for stage in range(4)
    },
    "accelerate": {
        "DDP": {"accelerate_distributed_type": "MULTI_GPU", "accelerate_mixed_precision": "bf16"},
        "FSDP 1": {"accelerate_distributed_type": "FSDP", "fsdp_version": 1},
        "FSDP 2": {"accelerate_distributed_type": "FSDP", "fsdp_version": 2},
        "DeepSpeed": {"accelerate_distributed_type": "DEEPSPEED", "zero_stage": 2},
    },
    "torchtitan": {
        "FSDP": {
            "local_batch_size": 4,
            "seq_length": 8192,
            "torch_compile": False,
            "checkpoint_mode": "none",
        },
        "compiled": {
            "local_batch_size": 4,
            "seq_length": 8192,
            "torch_compile": True,
            "checkpoint_mode": "full",
            "tensor_model_parallel_size": 4,
        },
        "stages": {
            "local_batch_size": 16,
            "seq_length": 8192,
            "pipeline_model_parallel_size": 4,
            "pipeline_microbatch_size": 2,
        },
    },
    "verl": {
        "FSDP": {"verl_strategy": "fsdp", "micro_batch_size": 4, "verl_mini_batch_size": 64},
        "FSDP2": {"verl_strategy": "fsdp2", "micro_batch_size": 4, "verl_mini_batch_size": 64},
        "Megatron": {
            "verl_strategy": "megatron",
            "micro_batch_size": 4,
            "verl_mini_batch_size": 64,
            "tensor_model_parallel_size": 2,
            "pipeline_model_parallel_size": 2,
        },
        "by tokens": {"verl_strategy": "fsdp", "verl_dynamic_batch": True, "verl_max_tokens": 32_768},
    },
}
"""Jobs of frameworks that have no more than a few of Megatron's settings."""


def jobs(dialect: Dialect) -> Mapping[str, Mapping[str, Value]]:
    """Sound jobs of a dialect: name → settings by canonical id. A run of perfdoc's own names them all."""
    if dialect != "perfdoc":
        return _OWN.get(dialect, JOBS)
    rest = {name: knob.defaults["megatron_core"] for name, knob in catalogue().items() if _has_default(name)}
    return {job: {**rest, **settings} for job, settings in JOBS.items()}


def _has_default(name: str) -> bool:
    return name in KEYS and "megatron_core" in catalogue()[name].defaults


def lines_of(values: Mapping[str, Value], dialect: Dialect) -> list[str]:
    """A job's set lines; what a dialect has no name for is left out."""
    lines = (as_written(name, value, dialect) for name, value in values.items())
    return [line for line in lines if line and not line.startswith("leave out")]


_VARIABLE = re.compile(r"[A-Z][A-Z_0-9]+=.*", re.DOTALL)
_CALL = re.compile(r"(\w+)\((\w+)=(.*)\)", re.DOTALL)


def _key(line: str) -> str:
    """What a line sets: a flag, a path or a variable."""
    if call := _CALL.fullmatch(line):
        return f"{call[1]}.{call[2]}"
    return line.split()[0] if line.startswith("--") else line.partition("=")[0].lstrip("+")


def with_lines(lines: Sequence[str], new: Iterable[str]) -> list[str]:
    """A job's lines with set lines of advice among them, as somebody would who follows it."""
    held = {_key(line): line for line in lines}
    for line in new:
        if line.startswith(("leave out ", "unset ")):
            for key in re.split(r" and ", line.partition("out ")[2] or line.partition(" ")[2]):
                held.pop(key, None)
        else:
            held[_key(line)] = line
    return [*held.values()]


def file_of(lines: Sequence[str], dialect: Dialect) -> tuple[str, str]:
    """(its text, its name): a job as a file of its dialect."""
    variables = [line for line in lines if _VARIABLE.fullmatch(line)]
    own = [line for line in lines if line not in variables]
    if dialect == "megatron_lm":
        exports = "".join(f"export {line}\n" for line in variables)
        launcher = [line for line in own if re.match(r"--(nnodes|nproc)", line)]
        flags = [line for line in own if line not in launcher]
        return f"{exports}torchrun {' '.join(launcher)} pretrain_gpt.py {' '.join(flags)}\n", "run.sh"
    if dialect in ("deepspeed", "accelerate"):
        tree: dict[str, Any] = {}
        for line in own:
            path, _, text = line.partition("=")
            *parents, leaf = path.split(".")
            place = tree
            for parent in parents:
                place = place.setdefault(parent, {})
            place[leaf] = yaml.safe_load(text)
        return (json.dumps(tree), "ds.json") if dialect == "deepspeed" else (yaml.safe_dump(tree), "a.yaml")
    if dialect == "megatron_core":
        named = (line.partition("=") for line in variables)
        environment = [f"os.environ[{name!r}] = {text!r}" for name, _, text in named]
        return "\n".join(["import os", *environment, *own]) + "\n", "job.py"
    return "\n".join([*variables, *own]) + "\n", "job.args"


def linted(lines: Sequence[str], dialect: Dialect) -> Report:
    """What lint says of it."""
    return lint(*file_of(lines, dialect), dialect=dialect)


def printed(piece: Advice, dialect: Dialect) -> str:
    """What the report tells a job of this dialect to set; empty where it prints nothing."""
    own = [d for d in piece.dialects if d in (dialect, "env", "deepspeed" if dialect == "accelerate" else "")]
    return piece.dialects[own[0]] if own else ""


def has_setting(knob: str, dialect: Dialect) -> bool:
    """Whether the dialect has a name for it, or it is a variable."""
    return bool(catalogue()[knob].spelled(dialect) or catalogue()[knob].spelled("env"))
