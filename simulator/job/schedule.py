"""1F1B, plain and interleaved, with the messages between stages: when each stage is done.

With overlap a message starts as its pass ends and the other side has posted its receive, as it does when its
own pass of that kind before is done; only the pass that needs it waits. Without, a stage stands
still while it sends and receives, and a message begins when both sides are there: the output of one pass and
the input of the next in one exchange, as megatron-core does. With interleaving and without overlap every pass
takes one message longer; who waits for whom inside those exchanges is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from perfdoc.analyzers.pipeline.layout import MOST_PASSES, pass_order, source_of, warm_up_forwards
from perfdoc.records import dataclass

Pass = tuple[bool, int, int]
"""(forward, micro-batch, chunk)."""
Takes = Sequence[Sequence[float]]
"""By stage and chunk: what a pass takes."""


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
    if vpp == 1 and not overlap:
        return _blocking(_exchanges(pp, micro_batches), forward, backward, message, extra)
    if not overlap:
        forward, backward = (
            [[ns + message for ns in chunks] for chunks in way] for way in (forward, backward)
        )
    return _overlapped(_visits(pp, vpp, micro_batches), forward, backward, message, extra)


_CACHED = 32
"""Orders of so many kinds of steps are kept: settings are tried by the hundred, and many share them."""
_NONE = -1


@dataclass(frozen=True)
class _Visit:
    """One pass of a stage. Passes are numbered over all stages."""

    is_forward: bool
    chunk: int
    is_first: bool
    """Whether it is the forward of the first micro-batch."""
    number: int
    source: int
    """The pass whose output it needs; -1 none."""
    from_other: bool
    """Whether that is of another stage."""


def _number(what: Pass, stage: int, pp: int, vpp: int, micro_batches: int) -> int:
    is_forward, micro_batch, chunk = what
    return ((is_forward * micro_batches + micro_batch) * vpp + chunk) * pp + stage


def _visit(what: Pass, stage: int, pp: int, vpp: int, micro_batches: int) -> _Visit:
    source = source_of(*what, stage, pp, vpp)
    return _Visit(
        what[0],
        what[2],
        what[0] and not what[1],
        _number(what, stage, pp, vpp, micro_batches),
        _NONE if source is None else _number(source[:3], source[3], pp, vpp, micro_batches),
        source is not None and source[3] != stage,
    )


@lru_cache(maxsize=_CACHED)
def _visits(pp: int, vpp: int, micro_batches: int) -> tuple[tuple[_Visit, ...], ...]:
    """By stage, in order."""
    return tuple(
        tuple(_visit(p, s, pp, vpp, micro_batches) for p in pass_order(pp, vpp, s, micro_batches))
        for s in range(pp)
    )


def _overlapped(
    orders: Sequence[Sequence[_Visit]],
    forward: Takes,
    backward: Takes,
    message: float,
    extra: Sequence[float],
) -> Window:
    pp, length = len(orders), len(orders[0])
    done = [-1.0] * (pp * length)
    free, at, start = [0.0] * pp, [0] * pp, [0.0] * pp
    posted = [[0.0, 0.0] for _ in orders]
    """By stage, when the receive for the next backward and forward is posted."""
    warm = [next(i for i, v in enumerate(order) if not v.is_forward) - 1 for order in orders]
    waiting = list(range(pp))
    while waiting:
        for stage in waiting:
            order, now, i = orders[stage], free[stage], at[stage]
            takes, receives = (backward[stage], forward[stage]), posted[stage]
            while i < length:
                visit = order[i]
                if visit.source >= 0:
                    ready = done[visit.source]
                    if ready < 0:
                        break
                    if visit.from_other:
                        ready = max(ready, receives[visit.is_forward]) + message
                    if ready > now:
                        now = ready
                if i == 0:
                    start[stage] = now
                if visit.is_first:
                    now += extra[stage]
                now += takes[visit.is_forward][visit.chunk]
                done[visit.number] = receives[visit.is_forward] = now
                i += 1
                if i == warm[stage]:
                    receives[False] = now
            free[stage], at[stage] = now, i
        waiting = [s for s in waiting if at[s] < length]
    return Window(start=tuple(start), end=tuple(free))


@dataclass(frozen=True)
class _Exchange:
    """What a stage sends and receives at once, and the pass behind it. A message has two sides, numbered."""

    mine: tuple[int, ...]
    others: tuple[int, ...]
    """The other sides of the same messages."""
    visit: _Visit | None
    """None behind the last."""


def _blocking(
    programs: Sequence[Sequence[_Exchange]],
    forward: Takes,
    backward: Takes,
    message: float,
    extra: Sequence[float],
) -> Window:
    """Both sides of an exchange arrive; each goes on when all its messages have passed."""
    pp = len(programs)
    arrived: dict[int, float] = {}
    free, at, end = [0.0] * pp, [0] * pp, [0.0] * pp
    start: dict[int, float] = {}
    waiting = list(range(pp))
    while waiting:
        for stage in waiting:
            program, now, i = programs[stage], free[stage], at[stage]
            while i < len(program):
                exchange = program[i]
                if exchange.mine:
                    for side in exchange.mine:
                        arrived[side] = now
                    others = [arrived.get(side, -1.0) for side in exchange.others]
                    if min(others) < 0:
                        break
                    now = max(now, *others) + message
                visit = exchange.visit
                if visit is not None:
                    start.setdefault(stage, now)
                    if visit.is_first:
                        now += extra[stage]
                    now += (forward if visit.is_forward else backward)[stage][0]
                    end[stage] = now
                i += 1
            free[stage], at[stage] = now, i
        waiting = [s for s in waiting if at[s] < len(programs[s])]
    return Window(start=tuple(start[s] for s in range(pp)), end=tuple(end))


@lru_cache(maxsize=_CACHED)
def _exchanges(pp: int, micro_batches: int) -> tuple[tuple[_Exchange, ...], ...]:
    """By stage, in order. What is sent and what is received next go in one exchange, but while the pipeline
    fills and drains."""
    found = []
    for stage in range(pp):
        warm = warm_up_forwards(pp=pp, vpp=1, stage=stage, micro_batches=micro_batches)
        mine: list[_Exchange] = []
        sent: _Sides = []
        for i, what in enumerate(pass_order(pp, 1, stage, micro_batches)):
            visit = _visit(what, stage, pp, 1, micro_batches)
            received = [(2 * visit.source + 1, 2 * visit.source)] if visit.from_other else []
            if warm < i < 2 * micro_batches - warm or not sent:
                mine.append(_exchange(sent + received, visit))
            else:
                mine += [_exchange(sent, None), _exchange(received, visit)]
            is_last = stage == (pp - 1 if what[0] else 0)
            sent = [] if is_last else [(2 * visit.number, 2 * visit.number + 1)]
        found.append((*mine, _exchange(sent, None)) if sent else tuple(mine))
    return tuple(found)


_Sides = list[tuple[int, int]]
"""(this stage's side, the other's): a sender's is twice the pass, a receiver's one more."""


def _exchange(sides: _Sides, visit: _Visit | None) -> _Exchange:
    return _Exchange(tuple(m for m, _ in sides), tuple(o for _, o in sides), visit)
