"""The micro-batch size: smaller for more micro-batches in a pipeline, larger if memory allows."""

from __future__ import annotations

from typing import Literal

from perfdoc.results.rules import Advice
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.case import Case
from perfdoc.rules.facts.bubble import PER_STAGE
from perfdoc.rules.facts.memory_need import pp_of, vpp_of
from perfdoc.rules.facts.memory_room import tightest

OTHERWISE = "Use a larger global batch, more virtual stages, or fewer stages if the model still fits."


def few(*, pp: int, vpp: int, micro_batches: int) -> bool:
    """Whether a step has fewer micro-batches than `bubble.PER_STAGE` per stage, each counted once per chunk,
    as in the bubble's formula."""
    return vpp * micro_batches < PER_STAGE * pp


def wanted(*, pp: int, vpp: int) -> int:
    """The least number of micro-batches that is not few. 4 stages of 2 chunks: 8."""
    return -(-PER_STAGE * pp // vpp)


def more(case: Case, *, pp: int, vpp: int, micro_batches: int) -> list[Advice]:
    """A smaller micro-batch; at one sequence per micro-batch, a larger global batch."""
    least = wanted(pp=pp, vpp=vpp)
    return [*_smaller_micro_batch(case, least, micro_batches), *_larger_batch(case, least, pp)]


def _smaller_micro_batch(case: Case, least: int, micro_batches: int) -> list[Advice]:
    """The largest smaller size with enough micro-batches; else the smallest."""
    size = case.number("micro_batch_size")
    if not size or size < 2:
        return []
    smaller = [s for s in _divisors(size) if s < size]
    enough = [s for s in smaller if micro_batches * (size // s) >= least]
    to = max(enough, default=min(smaller))
    why = f"{micro_batches * (size // to)} micro-batches of the same global batch"
    return [advise(knob="micro_batch_size", to=to, why=why, costs="smaller kernels, more launches")]


def _larger_batch(case: Case, least: int, pp: int) -> list[Advice]:
    """At one sequence per micro-batch: the wanted number, rounded up to a multiple of pp."""
    size, dp = case.number("micro_batch_size"), case.dp
    if size != 1 or not dp or case.number("global_batch_size") is None:
        return []
    why = f"{-(-least // pp) * pp} micro-batches"
    costs = "changes the optimisation: adapt learning rate and schedule"
    return [advise(knob="global_batch_size", to=-(-least // pp) * pp * size * dp, why=why, costs=costs)]


def _divisors(number: int) -> list[int]:
    """All divisors of a size up to 4,096; of larger ones only powers of two."""
    if number <= 4096:
        return [d for d in range(1, number + 1) if number % d == 0]
    return [1 << i for i in range(number.bit_length()) if number % (1 << i) == 0]


KNOB = "micro_batch_size"


def fits_doubled(case: Case) -> Literal["yes", "no", "unknown"]:
    """Whether twice the micro-batch fits the tightest device, by what a step allocates above its start,
    which is at most proportional to the micro-batch."""
    room = tightest(case)
    above = None if room is None else room.device.peak_above_start_bytes
    if room is None or above is None or room.spare_bytes is None:
        return "unknown"
    return "yes" if not room.failed and above <= room.spare_bytes else "no"


def doubled(case: Case) -> int | None:
    """Twice the micro-batch, if the number of micro-batches is even and a pipeline keeps enough of them:
    with few the bubble grows by more than larger kernels save. None if unknown, or if packing fixes it at
    1."""
    now, count, pp = case.number(KNOB), case.micro_batches, pp_of(case)
    packed = case.number("sequence_packing_size") or 0
    if now is None or count is None or count % 2 or pp is None or packed > 0:
        return None
    if pp > 1 and few(pp=pp, vpp=vpp_of(case) or 1, micro_batches=count // 2):
        return None
    return 2 * now


def larger(case: Case, why: str) -> list[Advice]:
    """Twice the micro-batch as advice, if it is known to fit."""
    to = doubled(case)
    if to is None or fits_doubled(case) != "yes":
        return []
    costs = "twice the activations; with a pipeline, half as many micro-batches to fill it"
    return [advise(knob=KNOB, to=to, why=why, costs=costs)]
