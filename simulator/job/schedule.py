"""1F1B, plain and interleaved, with the messages between stages: when each stage is done.

With overlap a message starts as its pass ends and the other side has posted its receive, as it does when its
own pass of that kind before is done; only the pass that needs it waits. Without, a stage stands
still while it sends and receives, and a message begins when both sides are there: the output of one pass and
the input of the next in one exchange, as megatron-core does. With interleaving and without overlap every pass
takes one message longer; who waits for whom inside those exchanges is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfdoc.analyzers.pipeline.layout import MOST_PASSES, pass_order, source_of, warm_up_forwards

Pass = tuple[bool, int, int]
"""(forward, micro-batch, chunk)."""
Takes = Sequence[Sequence[float]]
"""By stage and chunk: what a pass takes."""
_Message = tuple[bool, int, int, int]
"""The output of a pass: (forward, micro-batch, chunk, stage)."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """A step's passes; times from the start of the first."""

    start: tuple[float, ...]
    """By stage, when its first pass starts."""
    end: tuple[float, ...]
    """By stage, when its last pass ends."""

    @property
    def length(self) -> float:
        """To the end of the last pass of all."""
        return max(self.end)


def run_schedule(
    *,
    micro_batches: int,
    forward: Takes,
    backward: Takes,
    message: float,
    overlap: bool,
    first_extra: Sequence[float] = (),
) -> Window:
    """Run one step. ValueError, one line, where the schedule is not defined (interleaved, and the
    micro-batches are not a multiple of the stages) or has more than MOST_PASSES passes.

    first_extra: by stage, how much longer the first micro-batch's forward takes in each chunk: weights are
    gathered as that forward goes on.
    """
    extra = first_extra or [0.0] * len(forward)
    pp, vpp = len(forward), len(forward[0])
    if vpp > 1 and micro_batches % pp:
        raise ValueError(
            f"{micro_batches} micro-batches are not a multiple of {pp} stages, as interleaving needs"
        )
    if 2 * pp * vpp * micro_batches > MOST_PASSES:
        raise ValueError(f"a step of {2 * pp * vpp * micro_batches:,} passes is too long")
    if pp == 1:
        return Window(
            start=(0.0,), end=(vpp * extra[0] + micro_batches * (sum(forward[0]) + sum(backward[0])),)
        )
    orders = [pass_order(pp, vpp, stage, micro_batches) for stage in range(pp)]
    if vpp == 1 and not overlap:
        return _blocking(orders, forward, backward, message, extra)
    if not overlap:
        forward, backward = (
            [[ns + message for ns in chunks] for chunks in way] for way in (forward, backward)
        )
    return _overlapped(orders, forward, backward, message, extra)


def _overlapped(
    orders: Sequence[Sequence[Pass]],
    forward: Takes,
    backward: Takes,
    message: float,
    extra: Sequence[float],
) -> Window:
    pp, vpp = len(orders), len(forward[0])
    done: dict[_Message, float] = {}
    free, at, start = [0.0] * pp, [0] * pp, [0.0] * pp
    posted = [{True: 0.0, False: 0.0} for _ in orders]
    warm = [order.index((False, 0, vpp - 1)) - 1 for order in orders]
    waiting = list(range(pp))
    while waiting:
        for stage in waiting:
            order, now, i = orders[stage], free[stage], at[stage]
            while i < len(order):
                is_forward, micro_batch, chunk = order[i]
                source = source_of(is_forward, micro_batch, chunk, stage, pp, vpp)
                if source is not None:
                    ready = done.get(source)
                    if ready is None:
                        break
                    if source[3] != stage:
                        ready = max(ready, posted[stage][is_forward]) + message
                    if ready > now:
                        now = ready
                if i == 0:
                    start[stage] = now
                if is_forward and not micro_batch:
                    now += extra[stage]
                now += (forward if is_forward else backward)[stage][chunk]
                done[is_forward, micro_batch, chunk, stage] = now
                posted[stage][is_forward] = now
                i += 1
                if i == warm[stage]:
                    posted[stage][False] = now
            free[stage], at[stage] = now, i
        waiting = [s for s in waiting if at[s] < len(orders[s])]
    return Window(start=tuple(start), end=tuple(free))


def _blocking(
    orders: Sequence[Sequence[Pass]],
    forward: Takes,
    backward: Takes,
    message: float,
    extra: Sequence[float],
) -> Window:
    """Both sides of an exchange arrive; each goes on when all its messages have passed."""
    pp = len(orders)
    programs = [_program(orders[s], s, pp) for s in range(pp)]
    arrived: dict[tuple[_Message, int], float] = {}
    free, at, end = [0.0] * pp, [0] * pp, [0.0] * pp
    start: dict[int, float] = {}
    waiting = list(range(pp))
    while waiting:
        for stage in waiting:
            program = programs[stage]
            while at[stage] < len(program):
                what, messages = program[at[stage]]
                if messages:
                    for name, _ in messages:
                        arrived[name, stage] = free[stage]
                    others = [arrived.get((name, peer)) for name, peer in messages]
                    if None in others:
                        break
                    free[stage] = max(free[stage], *(o for o in others if o is not None)) + message
                if what is not None:
                    start.setdefault(stage, free[stage])
                    if what[0] and not what[1]:
                        free[stage] += extra[stage]
                    free[stage] += (forward if what[0] else backward)[stage][0]
                    end[stage] = free[stage]
                at[stage] += 1
        waiting = [s for s in waiting if at[s] < len(programs[s])]
    return Window(start=tuple(start[s] for s in range(pp)), end=tuple(end))


_Exchange = list[tuple[_Message, int]]


def _program(order: Sequence[Pass], stage: int, pp: int) -> list[tuple[Pass | None, _Exchange]]:
    """Exchanges of (message, peer), and the pass behind each (None behind the last). What is sent and what is
    received next go in one exchange, but while the pipeline fills and drains."""
    warm = warm_up_forwards(pp=pp, vpp=1, stage=stage, micro_batches=len(order) // 2)
    found: list[tuple[Pass | None, _Exchange]] = []
    sent: _Exchange = []
    for i, what in enumerate(order):
        received = _received(what, stage, pp)
        if warm < i < len(order) - warm or not sent:
            found.append((what, sent + received))
        else:
            found += [(None, sent), (what, received)]
        sent = _sent(what, stage, pp)
    return [*found, (None, sent)] if sent else found


def _received(what: Pass, stage: int, pp: int) -> _Exchange:
    source = source_of(*what, stage, pp, 1)
    return [] if source is None or source[3] == stage else [(source, source[3])]


def _sent(what: Pass, stage: int, pp: int) -> _Exchange:
    peer = stage + (1 if what[0] else -1)
    return [((*what, stage), peer)] if 0 <= peer < pp else []
