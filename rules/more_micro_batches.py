"""More micro-batches for a pipeline: by smaller ones, or by a larger global batch."""

from __future__ import annotations

from perfdoc.rules.bubble import PER_STAGE
from perfdoc.rules.case import Case
from perfdoc.rules.rule import Advice

OTHERWISE = (
    "A larger global batch, more virtual stages, or fewer stages where the model still fits, make up for few "
    "micro-batches."
)


def few(*, pp: int, vpp: int, micro_batches: int) -> bool:
    """Whether a step has fewer micro-batches than `bubble.PER_STAGE` a stage. One counts once for every
    chunk of a stage, as the bubble's formula has it."""
    return vpp * micro_batches < PER_STAGE * pp


def wanted(*, pp: int, vpp: int) -> int:
    """The least number that is not few. 4 stages of 2 chunks: 8."""
    return -(-PER_STAGE * pp // vpp)


def more(case: Case, *, pp: int, vpp: int, micro_batches: int) -> list[Advice]:
    """A smaller micro-batch; where one holds a single sequence already, a larger global batch."""
    least = wanted(pp=pp, vpp=vpp)
    return [*_smaller_micro_batch(case, least, micro_batches), *_larger_batch(case, least, pp)]


def _smaller_micro_batch(case: Case, least: int, micro_batches: int) -> list[Advice]:
    """The largest smaller size that makes enough of them; else the smallest."""
    size = case.number("micro_batch_size")
    if not size or size < 2:
        return []
    smaller = [s for s in _divisors(size) if s < size]
    enough = [s for s in smaller if micro_batches * (size // s) >= least]
    to = max(enough, default=min(smaller))
    why = f"makes {micro_batches * (size // to)} micro-batches of the same global batch"
    return [Advice(knob="micro_batch_size", to=to, why=why, costs="smaller kernels, more launches")]


def _larger_batch(case: Case, least: int, pp: int) -> list[Advice]:
    """Where micro-batches hold one sequence already: as many as are wanted, whole groups of pp."""
    size, dp = case.number("micro_batch_size"), case.dp
    if size != 1 or not dp or case.number("global_batch_size") is None:
        return []
    why = f"makes {-(-least // pp) * pp} micro-batches"
    costs = "another optimisation: learning rate and schedule have to go with it"
    return [Advice(knob="global_batch_size", to=-(-least // pp) * pp * size * dp, why=why, costs=costs)]


def _divisors(number: int) -> list[int]:
    """Of a size up to 4,096; of larger ones only powers of two."""
    if number <= 4096:
        return [d for d in range(1, number + 1) if number % d == 0]
    return [1 << i for i in range(number.bit_length()) if number % (1 << i) == 0]
