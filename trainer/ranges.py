"""Where the trainer marks what it is doing: the vocabulary's names, emitted by `perfdoc.profiling`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from perfdoc.profiling import ranges
from perfdoc.profiling.vocabulary import (
    BACKWARD,
    DATA,
    EVALUATION,
    FORWARD,
    MICRO_BATCH,
    OPTIMIZER,
    STEP,
    format_compute,
    numbered,
)
from perfdoc.profiling.vocabulary import CHECKPOINT as _CHECKPOINT

CHECKPOINT_SAVE = f"{_CHECKPOINT} save"
CHECKPOINT_LOAD = f"{_CHECKPOINT} load"

push = ranges.push
pop = ranges.pop
span = ranges.range

__all__ = [
    "BACKWARD",
    "CHECKPOINT_LOAD",
    "CHECKPOINT_SAVE",
    "DATA",
    "EVALUATION",
    "FORWARD",
    "MICRO_BATCH",
    "OPTIMIZER",
    "STEP",
    "compute",
    "micro_batch",
    "pop",
    "push",
    "span",
    "step",
]


def step(number: int) -> str:
    """Name of a step's range."""
    return numbered(STEP, number)


def compute(prefix: str, layer: int | None = None, module: str | None = None) -> str:
    """Name of a forward or backward range at a place of the model."""
    return format_compute(prefix, layer=layer, module=module)


@contextlib.contextmanager
def micro_batch(number: int | None, prefix: str) -> Iterator[None]:
    """One pass of one micro-batch; without its number (backwards) only the pass is named."""
    outer = contextlib.nullcontext() if number is None else span(numbered(MICRO_BATCH, number))
    with outer, span(prefix):
        yield
