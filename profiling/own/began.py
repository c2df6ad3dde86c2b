"""What a process says of itself when it begins to record steps: its place, its settings, its model."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from perfdoc.profiling import environment
from perfdoc.profiling.flops import check_shape, flops_per_token
from perfdoc.profiling.gpus import peak_flops
from perfdoc.profiling.logs import Began
from perfdoc.profiling.manifest import ModelShape
from perfdoc.profiling.model_config.hugging_face import MissingError, is_hugging_face
from perfdoc.profiling.model_config.megatron import shape_fields
from perfdoc.profiling.process import own_device, own_rank

MAX_FACTS = 300
_DIMENSIONS = {"tp": "tensor", "pp": "pipeline", "dp": "data", "cp": "context"}
_HEADS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


def began(
    role: Mapping[str, int], facts: Mapping[str, Any], model: Mapping[str, Any], length: int, **known: Any
) -> Began:
    """What this process is now. model: what its configuration says. length: of the sequences that it saw.
    known: other fields, of the model's FLOPs."""
    rank, world_size = own_rank()
    device, memory, peak = own_device(), environment.memory_bytes(), None
    if device == "cuda" and (gpu := environment.own_gpu(0)) is not None:
        memory, peak = gpu.memory_bytes, peak_flops(gpu.name)
    if not known.get("flops_per_step"):
        flops, said = flops_of_a_token(model or facts, length)
        known |= {"flops_per_token": flops, "flops_notes" if flops else "flops_unknown": said}
    return Began(
        world_size=world_size,
        device=device,
        role=megatron_role() or dict(role),
        memory_bytes=memory,
        command=job_command() if rank == 0 else (),
        facts={**environment.knob_variables(), **own_facts(facts)},
        **{"peak_flops_per_second": peak, **known},
    )


def flops_of_a_token(model: Mapping[str, Any], length: int) -> tuple[float | None, str]:
    """Of training on a token of a sequence of a length, as `analyze` counts them, and what to know of them;
    else why none are known."""
    if model.get("frozen"):  # the backward then does less than twice the forward
        return None, "some of the model's parameters are frozen"
    if not is_hugging_face(model) and "num_layers" not in model:
        return None, "nothing says the model"
    named = model.get("architectures")
    if named and not str(named[0] if isinstance(named, (list, tuple)) else named).endswith(_HEADS):
        return None, f"the class {str(named)[:80]} is no language model with a vocabulary"
    try:
        name, fields, notes = shape_fields(model)
        length = length or int(model.get("seq_length") or 0)
        if length < 1 or "vocabulary" not in fields:
            return None, f"nothing says the {'vocabulary' if length else 'length of a sequence'}"
        shape = ModelShape(name=name, sequence_length=length, **fields)
        check_shape(msgspec.convert(msgspec.to_builtins(shape), ModelShape))
        return float(flops_per_token(shape)), "; ".join(notes)
    except MissingError as error:
        return None, f"the model's configuration {str(error).partition(';')[0]}"
    except (ValueError, TypeError, ArithmeticError):
        return None, "the model's configuration holds values that no model has"


def job_command() -> tuple[str, ...]:
    """The words that started the job: those of `perfdoc run`, else what torchrun or Slurm tell of them."""
    words = environment.own_command()
    if environment.COMMAND_VARIABLE in os.environ:
        return words
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        tasks = os.environ.get("SLURM_NTASKS", "1")
        return (*(() if tasks == "1" else ("srun", "--ntasks", tasks, "--")), "python", *words)
    nodes = os.environ.get("GROUP_WORLD_SIZE", "1")
    several = () if nodes == "1" else ("--nnodes", nodes)
    program = words[1:] if words[:1] == ("-u",) else words
    return ("torchrun", *several, "--nproc-per-node", os.environ.get("LOCAL_WORLD_SIZE", "1"), *program)


def own_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What of a configuration goes into a record: plain values, no long texts, not without bound."""
    plain = {k: v for k, v in facts.items() if isinstance(v, (str, int, float, bool, type(None)))}
    return {
        environment.encodable(str(name))[:100]: environment.encodable(value[:200])
        if isinstance(value, str)
        else value
        for name, value in list(plain.items())[:MAX_FACTS]
        if not isinstance(value, int) or abs(value) < 2**63
    }


def megatron_role() -> dict[str, int]:
    """This rank's place in megatron-core's layout; empty without one."""
    state: Any = sys.modules.get("megatron.core.parallel_state")
    if state is None or not state.model_parallel_is_initialized():
        return {}
    return {
        short: int(getattr(state, f"get_{name}_{'model_' if short in ('tp', 'pp') else ''}parallel_rank")())
        for short, name in _DIMENSIONS.items()
    }


def tokens_of(batch: object) -> tuple[int, int]:
    """Tokens of a batch, padding included, and those of a sequence; 0 where it looks like none of tokens."""
    if isinstance(batch, Mapping):
        batch = next((batch[key] for key in ("input_ids", "tokens") if key in batch), None)
    elif isinstance(batch, (list, tuple)):
        batch = batch[0] if batch else None
    tensor: Any = batch
    kind: Any = getattr(tensor, "dtype", None)
    if kind is None or getattr(kind, "is_floating_point", True) or getattr(tensor, "ndim", 0) < 1:
        return 0, 0
    return int(tensor.numel()), int(tensor.shape[-1])


def megatron_arguments() -> dict[str, Any]:
    """Of Megatron-LM's command line; empty without one."""
    state: Any = sys.modules.get("megatron.training.global_vars")
    try:
        return dict(vars(state.get_args()))
    except (AttributeError, AssertionError, TypeError):
        return {}


def megatron_tokens(model: Mapping[str, Any]) -> int | None:
    """Of this step over all ranks, where megatron-core counts its micro-batches."""
    counts: Any = sys.modules.get("megatron.core.num_microbatches_calculator")
    try:
        return int(counts.get_current_global_batch_size()) * int(model["seq_length"])
    except (AttributeError, AssertionError, KeyError, TypeError, ValueError):
        return None
