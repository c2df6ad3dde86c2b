"""What memory is for, by the call stack that allocated it: one table of frames, and the rule to apply it.

The innermost frame that the table knows decides, since the call nearest to the allocation knows best: an
optimizer step with a closure contains a forward, and what that allocates are activations.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum
from functools import cache
from typing import Literal

import numpy as np

from perfdoc.records import dataclass
from perfdoc.traces.memory.model import MemoryFrame, MemorySnapshot
from perfdoc.traces.table import I64, Bool

CATEGORIES = (
    "parameters",
    "gradients",
    "optimizer",
    "activations",
    "communication_buffers",
    "other",
    "unknown",
)
"""`other` has a stack that says none of these; `unknown` has nothing that says what it is."""


class Use(IntEnum):
    """What a frame says about the memory that is allocated below it."""

    NONE = 0
    PARAMETERS = 1
    GRADIENTS = 2
    OPTIMIZER = 3
    FORWARD = 4
    COMMUNICATION = 5
    BACKWARD = 6
    """Gradients of parameters or of activations; which, the end of the memory tells."""
    GRADIENT_BUFFER = 7
    """megatron-core's contiguous buffers: of parameters and of gradients, allocated by one function."""


_RULES: tuple[tuple[Use, str, str], ...] = (
    # C++: these frames have no line numbers, and paths without folders.
    (Use.GRADIENTS, "", r"(?:\w+ )?torch::autograd::(?:\(anonymous namespace\)::)?AccumulateGrad"),
    (Use.COMMUNICATION, "", r"(?:\w+ )?c10d::"),
    (Use.BACKWARD, "", r"torch::autograd::(?:python::Python)?Engine::"),
    # Communication: memory that exists to be sent or received.
    (Use.COMMUNICATION, r"megatron/core/pipeline_parallel/(?:p2p|bridge)_communicat", ""),
    (Use.COMMUNICATION, r"megatron/core/utils\.py$", r"(?:GlobalMemoryBuffer\.)?get_tensor$"),
    (Use.COMMUNICATION, r"megatron/core/nccl_allocator\.py$", ""),
    (Use.COMMUNICATION, r"megatron_fsdp/param_and_grad_buffer\.py$", r"(?:\w+\.)*allocate"),
    (
        Use.COMMUNICATION,
        r"torch/distributed/fsdp/_fully_shard/_fsdp_(?:collectives|param|param_group)\.py$",
        "",
    ),
    (Use.COMMUNICATION, r"torch/distributed/fsdp/_flat_param\.py$", r".*(?:unshard|alloc)"),
    (
        Use.COMMUNICATION,
        r"torch/distributed/(?:distributed_c10d|_symmetric_memory|_functional_collectives)",
        "",
    ),
    (Use.COMMUNICATION, r"torch/nn/parallel/distributed\.py$", r".*(?:__init__|_ddp_init|_sync_module)"),
    (Use.COMMUNICATION, r"(?:^|/)deep_ep/", ""),
    (Use.COMMUNICATION, r"transformer_engine/", r".*initialize_ub"),
    # Optimizers: their state and what a step needs for itself.
    (Use.GRADIENTS, "", r".*zero_grad(?:_buffer)?$"),
    (Use.OPTIMIZER, r"torch/optim/(?!lr_scheduler)", ""),
    (Use.OPTIMIZER, r"megatron/core/optimizer/", ""),
    (Use.OPTIMIZER, r"(?:apex|transformer_engine/pytorch)/optimizers/|bitsandbytes/optim/", ""),
    (Use.OPTIMIZER, r"torch/amp/grad_scaler\.py$|torch/nn/utils/clip_grad\.py$", ""),
    # Parameters and buffers: making, moving and converting modules.
    (Use.GRADIENT_BUFFER, r"megatron/core/distributed/param_and_grad_buffer\.py$", r".*__init__$"),
    (
        Use.PARAMETERS,
        r"torch/nn/modules/module\.py$",
        r"(?:Module\.)?(?:_apply|to|cuda|to_empty|half|float|bfloat16)\b",
    ),
    (Use.PARAMETERS, r"torch/nn/(?:parameter|init)\.py$", ""),
    (
        Use.PARAMETERS,
        r"torch/nn/modules/|megatron/core/(?:tensor_parallel|transformer|models)/|transformer_engine/pytorch/",
        r".*(?:__init__|reset_parameters|_initialize_affine_weight\w*)$",
    ),
    # Backward before forward: both may be in one stack, and functions called `backward` are of autograd.
    (Use.GRADIENTS, r"megatron/core/distributed/finalize_model_grads\.py$", ""),
    (Use.BACKWARD, r"torch/autograd/(?:graph|__init__)\.py$", ""),
    (Use.BACKWARD, "", r"(?:\w+\.)?backward$"),
    (Use.FORWARD, "", r"(?:\w+\.)?forward$"),
    (Use.FORWARD, r"torch/nn/(?:functional\.py$|modules/)|torch/autograd/function\.py$", ""),
    (Use.FORWARD, r"megatron/core/(?:tensor_parallel|transformer|models|fusions|ssm)/", ""),
    (Use.FORWARD, r"transformer_engine/pytorch/|flash_attn/|/torchinductor_", ""),
)
"""Use; a pattern that is found in the path with forward slashes; one that the function begins with. The
first that fits a frame counts."""


@cache
def _compiled() -> list[tuple[Use, re.Pattern[str], re.Pattern[str]]]:
    """On first use: compiling takes longer than all that a capture without a snapshot imports of memory."""
    return [(use, re.compile(path), re.compile(function)) for use, path, function in _RULES]


def use_of_frame(frame: MemoryFrame) -> Use:
    """What one frame says. Only the ends of hostile texts are looked at."""
    path, function = frame.filename[-400:].replace("\\", "/"), frame.function[:400]
    for use, path_form, function_form in _compiled():
        if function_form.match(function) and path_form.search(path):
            return use
    return Use.NONE


Tensor = Literal["loss", "attention", "optimizer", "weights", "cache", ""]
_TENSORS: tuple[tuple[Tensor, str], ...] = (
    ("loss", r"cross_entropy|crossentropy|nll_loss|log_softmax|lm_head|logits|output_layer|compute_loss"),
    ("loss", r"ForCausalLMLoss|loss_utils\.py:"),
    ("attention", r"attention|attn|(?:^|[_/])sdpa"),
    ("optimizer", r"torch/optim/|/optimizers?/|optimizer\.py:|ops/adam|bitsandbytes/optim"),
    ("weights", r"unshard|all_gather|_flat_param|_fsdp_collectives|partition_parameters|_allgather_params"),
    ("cache", r"kv_?cache|cache_utils\.py:|static_?cache|dynamic_?cache"),
)
"""Tensor; a pattern that is found in `file: function`, whatever its case."""


def tensor_of(frames: Sequence[MemoryFrame]) -> Tensor:
    """Which tensor a stack asks memory for, the innermost frame that tells first; empty where none does."""
    for frame in frames:
        said = f"{frame.filename[-400:]}: {frame.function[:400]}".replace("\\", "/")
        for tensor, form in _TENSORS:
            if re.search(form, said, re.IGNORECASE):
                return tensor
    return ""


@dataclass(frozen=True, kw_only=True, eq=False)
class StackUses:
    """What every stack of a snapshot says; element i is of stack i."""

    use: I64
    """Use of the innermost frame that says anything."""
    in_backward: Bool
    """Whether autograd runs a backward, whatever the innermost frame says."""


def uses_of_stacks(snapshot: MemorySnapshot) -> StackUses:
    """Classify every distinct stack. A forward in a backward (recompute, autograd functions) is backward."""
    by_frame = np.array([int(use_of_frame(frame)) for frame in snapshot.frames] or [0], np.int64)
    members, offsets = snapshot.stack_frames.astype(np.int64), snapshot.stack_offsets
    use_of_member = by_frame[members] if len(members) else np.empty(0, np.int64)
    telling = np.append(np.flatnonzero(use_of_member), len(members))
    first = telling[np.searchsorted(telling, offsets[:-1])]
    decided = first < offsets[1:]
    frame = np.full(len(first), -1, np.int64)
    frame[decided] = members[first[decided]]
    use = np.where(decided, by_frame[np.maximum(frame, 0)], Use.NONE)
    backwards = np.concatenate(([0], np.cumsum(use_of_member == Use.BACKWARD)))
    in_backward: Bool = backwards[offsets[1:]] > backwards[offsets[:-1]]
    use[(use == Use.FORWARD) & in_backward] = Use.BACKWARD
    _split_gradient_buffers(snapshot.frames, use, frame)
    return StackUses(use=use, in_backward=in_backward)


def _split_gradient_buffers(frames: Sequence[MemoryFrame], use: I64, frame: I64) -> None:
    """megatron-core's constructor allocates the gradients' buffer last, below the parameters' if it has one.

    So the highest line that allocates is the gradients' (seen in 0.16.1).
    """
    rows = np.flatnonzero(use == Use.GRADIENT_BUFFER)
    if not len(rows):
        return
    line = np.array([frames[i].line for i in frame[rows].tolist()])
    use[rows] = np.where(line == line.max(), Use.GRADIENTS, Use.PARAMETERS)


_RANGES = (
    (Use.FORWARD, re.compile(r"perfdoc\.forward\b|## forward ##|DistributedDataParallel\.forward")),
    (Use.BACKWARD, re.compile(r"perfdoc\.backward\b|## backward ##")),
    (Use.OPTIMIZER, re.compile(r"perfdoc\.optimizer\b|Optimizer\.step#|## optimizer ##")),
    (Use.GRADIENTS, re.compile(r"Optimizer\.zero_grad#")),
    (Use.COMMUNICATION, re.compile(r"perfdoc\.comm\.|FSDP::(?:all_gather|reduce_scatter)|nccl:")),
)


def use_of_range(name: str) -> Use:
    """What a range says about memory that is allocated in it, for allocations without a telling stack."""
    return next((use for use, form in _RANGES if form.match(name)), Use.NONE)
