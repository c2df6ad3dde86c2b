"""In which order a pipeline stage runs the passes of its micro-batches, and what each pass waits for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Pass:
    """The forward or backward pass of one micro-batch through one model chunk of a stage."""

    forward: bool
    micro_batch: int
    chunk: int


def order_of(*, pp: int, vpp: int, stage: int, micro_batches: int) -> tuple[list[Pass], int]:
    """The passes of a stage in order, and how many forwards come before the first backward's turn.

    1F1B, interleaved where vpp is above 1 (Narayanan et al. 2021, arXiv 2104.04473): micro-batches go
    through a chunk in groups of pp, and a stage warms up with 2 (pp - stage - 1) + (vpp - 1) pp forwards
    (without interleaving with pp - stage - 1).
    """
    forwards = [
        Pass(forward=True, micro_batch=first + i, chunk=chunk)
        for first in range(0, micro_batches, pp if vpp > 1 else 1)
        for chunk in range(vpp)
        for i in range(min(pp if vpp > 1 else 1, micro_batches - first))
    ]
    backwards = [Pass(forward=False, micro_batch=f.micro_batch, chunk=vpp - 1 - f.chunk) for f in forwards]
    warm = pp - stage - 1 if vpp == 1 else 2 * (pp - stage - 1) + (vpp - 1) * pp
    warm = min(warm, len(forwards))
    order = forwards[:warm]
    for i in range(len(forwards) - warm):
        order += [forwards[warm + i], backwards[i]]
    return order + backwards[len(forwards) - warm :], warm


def source_of(step: Pass, *, pp: int, vpp: int, stage: int) -> int | None:
    """The stage whose output the pass waits for; None where it needs none, or its own."""
    if step.forward:
        return stage - 1 if stage > 0 else pp - 1 if step.chunk > 0 else None
    return stage + 1 if stage < pp - 1 else 0 if step.chunk < vpp - 1 else None


def target_of(step: Pass, *, pp: int, vpp: int, stage: int) -> int | None:
    """The stage that waits for the pass's output; None where no other does."""
    if step.forward:
        return stage + 1 if stage < pp - 1 else 0 if step.chunk < vpp - 1 else None
    return stage - 1 if stage > 0 else pp - 1 if step.chunk > 0 else None
