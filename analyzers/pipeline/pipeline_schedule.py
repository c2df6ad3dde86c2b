"""The 1F1B pipeline schedule, interleaved or not, as it would run if nothing came in its way.

Passes of micro-batches run in a fixed order on every stage, each as soon as its stage is free and its input
is there; messages take no time. With equal stages the window is longer than a stage's own work by
(pp - 1) / (vpp * micro-batches) of it (Narayanan et al. 2021, arXiv 2104.04473): the bubble that no
implementation can avoid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Takes = float | Sequence[float]
MOST_PASSES = 400_000
"""A schedule of more passes is not laid out."""


def ideal_bubble_frac(*, pp: int, vpp: int, micro_batches: int) -> float:
    """Share of the pipeline's window that a perfect schedule with equal stages leaves idle.

    >>> ideal_bubble_frac(pp=4, vpp=1, micro_batches=8)  # (3 / 8) / (1 + 3 / 8)
    0.2727272727272727
    """
    return (pp - 1) / (vpp * micro_batches + pp - 1)


def warm_up_forwards(*, pp: int, vpp: int, stage: int, micro_batches: int) -> int:
    """Forward passes of a stage before the one that its first backward follows."""
    most = micro_batches * vpp
    return min(most, pp - stage - 1 if vpp == 1 else 2 * (pp - stage - 1) + (vpp - 1) * pp)


@dataclass(frozen=True, kw_only=True)
class PerfectSchedule:
    """One step of a perfect schedule; times in the unit of the passes given."""

    window: float
    """From the start of the first pass to the end of the last."""
    own: tuple[float, ...]
    """By stage: the passes together."""

    def idle(self, stage: int) -> float:
        """What the window leaves over."""
        return self.window - self.own[stage]


def perfect_schedule(
    *, vpp: int, micro_batches: int, forward: Sequence[Takes], backward: Sequence[Takes]
) -> PerfectSchedule | None:
    """Lay out a step whose stages take `forward` and `backward` for one micro-batch in one chunk: a figure a
    stage, or where its chunks differ one for each of them.

    None where the schedule is not defined (interleaved, and the micro-batches are no multiple of the
    stages) or has more than MOST_PASSES passes.
    """
    pp = len(forward)
    takes = {True: _by_chunk(forward, vpp), False: _by_chunk(backward, vpp)}
    if (vpp > 1 and micro_batches % pp) or 2 * pp * vpp * micro_batches > MOST_PASSES:
        return None
    orders = [_order(pp, vpp, stage, micro_batches) for stage in range(pp)]
    done: dict[tuple[bool, int, int, int], float] = {}
    free = [0.0] * pp
    at = [0] * pp
    # A stage goes on until it needs what another one has not done; some stage can always go on.
    waiting = set(range(pp))
    while waiting:
        moved = False
        for stage in sorted(waiting):
            while at[stage] < len(orders[stage]):
                is_forward, micro_batch, chunk = orders[stage][at[stage]]
                source = _source(is_forward, micro_batch, chunk, stage, pp, vpp)
                if source is not None and source not in done:
                    break
                start = max(free[stage], 0.0 if source is None else done[source])
                free[stage] = start + takes[is_forward][stage][chunk]
                done[is_forward, micro_batch, chunk, stage] = free[stage]
                at[stage] += 1
                moved = True
            else:
                waiting.discard(stage)
        assert moved or not waiting, "the schedule waits for itself"
    own = tuple(micro_batches * (sum(f) + sum(b)) for f, b in zip(*takes.values(), strict=True))
    return PerfectSchedule(window=max(free), own=own)


def _by_chunk(takes: Sequence[Takes], vpp: int) -> list[Sequence[float]]:
    return [t if isinstance(t, Sequence) else (t,) * vpp for t in takes]


def _order(pp: int, vpp: int, stage: int, micro_batches: int) -> list[tuple[bool, int, int]]:
    """(forward?, micro-batch, chunk) in the order in which a stage runs them."""
    group = pp if vpp > 1 else 1
    visits = [
        (first + i, chunk)
        for first in range(0, micro_batches, group)
        for chunk in range(vpp)
        for i in range(group)
    ]
    forwards = [(True, micro_batch, chunk) for micro_batch, chunk in visits]
    backwards = [(False, micro_batch, vpp - 1 - chunk) for micro_batch, chunk in visits]
    warm = warm_up_forwards(pp=pp, vpp=vpp, stage=stage, micro_batches=micro_batches)
    steady = [p for pair in zip(forwards[warm:], backwards, strict=False) for p in pair]
    return forwards[:warm] + steady + backwards[len(visits) - warm :]


def _source(
    is_forward: bool, micro_batch: int, chunk: int, stage: int, pp: int, vpp: int
) -> tuple[bool, int, int, int] | None:
    """The pass that must be done before: the chunk before on the way forward, behind on the way back."""
    place = chunk * pp + stage
    if is_forward:
        return (True, micro_batch, *divmod(place - 1, pp)) if place > 0 else None
    if place == vpp * pp - 1:
        return True, micro_batch, chunk, stage
    return (False, micro_batch, *divmod(place + 1, pp))
