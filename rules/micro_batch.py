"""A larger micro-batch: to what size, and whether memory takes it."""

from __future__ import annotations

from typing import Literal

from perfdoc.rules.case import Case
from perfdoc.rules.memory_room import tightest
from perfdoc.rules.model_memory import pp_of, vpp_of
from perfdoc.rules.more_micro_batches import few
from perfdoc.rules.rule import Advice

KNOB = "micro_batch_size"


def fits_doubled(case: Case) -> Literal["yes", "no", "unknown"]:
    """Whether the tightest device takes twice the micro-batch, by what a step allocates above its start: all
    of that is at most proportional to the micro-batch."""
    room = tightest(case)
    above = None if room is None else room.device.peak_above_start_bytes
    if room is None or above is None or room.spare_bytes is None:
        return "unknown"
    return "yes" if not room.failed and above <= room.spare_bytes else "no"


def doubled(case: Case) -> int | None:
    """Twice the micro-batch, where the step's micro-batches halve and a pipeline keeps enough of them: with
    few the bubble grows by more than larger kernels save. None where that is not known or packing fixes it at
    1."""
    now, count, pp = case.number(KNOB), case.micro_batches, pp_of(case)
    packed = case.number("sequence_packing_size") or 0
    if now is None or count is None or count % 2 or pp is None or packed > 0:
        return None
    if pp > 1 and few(pp=pp, vpp=vpp_of(case) or 1, micro_batches=count // 2):
        return None
    return 2 * now


def larger(case: Case, why: str) -> list[Advice]:
    """Twice the micro-batch as advice, where memory is known to take it."""
    to = doubled(case)
    if to is None or fits_doubled(case) != "yes":
        return []
    costs = "activations of twice the size; with a pipeline, half as many micro-batches to fill it"
    return [Advice(knob=KNOB, to=to, why=why, costs=costs)]
