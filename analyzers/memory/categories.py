"""What memory is for, by the call stack that allocated it: frames of categories.yaml, and how they are read.

The innermost frame that the table knows decides, since the call nearest to the allocation knows best: an
optimizer step with a closure contains a forward, and what that allocates are activations.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import numpy as np

from perfdoc.kept import table
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


_NAMES = SimpleNamespace(**table(Path(__file__).resolve().with_name("categories.yaml")))


@cache
def _compiled() -> list[tuple[Use, re.Pattern[str], re.Pattern[str]]]:
    """On first use: compiling takes longer than all that a capture without a snapshot imports of memory."""
    frames = _NAMES.frames
    return [(Use[use.upper()], re.compile(path), re.compile(function)) for use, path, function in frames]


def use_of_frame(frame: MemoryFrame) -> Use:
    """What one frame says. Only the ends of hostile texts are looked at."""
    path, function = frame.filename[-400:].replace("\\", "/"), frame.function[:400]
    for use, path_form, function_form in _compiled():
        if function_form.match(function) and path_form.search(path):
            return use
    return Use.NONE


Tensor = Literal["loss", "attention", "optimizer", "weights", "cache", ""]


def tensor_of(frames: Sequence[MemoryFrame]) -> Tensor:
    """Which tensor a stack asks memory for, the innermost frame that tells first; empty where none does."""
    for frame in frames:
        said = f"{frame.filename[-400:]}: {frame.function[:400]}".replace("\\", "/")
        for tensor, form in _NAMES.tensors:
            if re.search(form, said, re.IGNORECASE):
                return tensor  # type: ignore[no-any-return]
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
