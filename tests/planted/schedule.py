"""The planted jobs' own 1F1B: every pass has a slot on its stage, and a place on the way through the model.

The simulator builds the order as lists (`perfdoc.analyzers.pipeline.layout`); this reckons it by index, and
`tests/simulator/test_schedule.py` holds both against megatron-core.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Pass:
    """The forward or backward pass of one micro-batch through one model chunk of a stage."""

    forward: bool
    micro_batch: int
    chunk: int


def order_of(*, pp: int, vpp: int, stage: int, micro_batches: int) -> tuple[list[Pass], int]:
    """The passes of a stage in order, and how many forwards come before the first backward's turn."""
    group = pp if vpp > 1 else 1
    count = micro_batches * vpp
    stages_behind = pp - 1 - stage
    warm = min(count, stages_behind if vpp == 1 else 2 * stages_behind + group * (vpp - 1))
    slots: dict[int, Pass] = {}
    for micro_batch in range(micro_batches):
        for chunk in range(vpp):
            begun = micro_batch - micro_batch % group
            together = min(group, micro_batches - begun)
            index = begun * vpp + chunk * together + micro_batch % group
            # Beyond the warm-up, forwards and backwards take turns; then backwards are left.
            slots[index if index < warm else 2 * index - warm] = Pass(
                forward=True, micro_batch=micro_batch, chunk=chunk
            )
            slots[index + min(index + 1 + warm, count)] = Pass(
                forward=False, micro_batch=micro_batch, chunk=vpp - 1 - chunk
            )
    return [slots[slot] for slot in range(2 * count)], warm


def source_of(step: Pass, *, pp: int, vpp: int, stage: int) -> int | None:
    """The stage whose output the pass waits for; None where it needs none, or its own."""
    return _neighbour(step, -1 if step.forward else 1, pp=pp, vpp=vpp, stage=stage)


def target_of(step: Pass, *, pp: int, vpp: int, stage: int) -> int | None:
    """The stage that waits for the pass's output; None where no other does."""
    return _neighbour(step, 1 if step.forward else -1, pp=pp, vpp=vpp, stage=stage)


def _neighbour(step: Pass, way: int, *, pp: int, vpp: int, stage: int) -> int | None:
    """The stage before or after, counting pp * vpp virtual stages through the model."""
    virtual = step.chunk * pp + stage + way
    other = virtual % pp
    return other if 0 <= virtual < pp * vpp and other != stage else None
