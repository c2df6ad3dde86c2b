"""The ideal bubble and the perfect schedule against a simulation that ticks every unit of time."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction

import pytest

from perfdoc.analyzers.pipeline.layout import (
    chunks_by_warm_up,
    ideal_bubble_frac,
    perfect_schedule,
    warm_up_forwards,
)
from perfdoc.analyzers.pipeline.result import ideal_bubble_ns, split_idle


def ticked(pp: int, vpp: int, m: int, forward: list[int], backward: list[int]) -> int:
    """Length of a step, one unit of time after the other. Passes are numbered by their turn on a stage."""
    total = m * vpp

    def place(turn: int, is_forward: bool) -> tuple[int, int]:
        """(micro-batch, chunk) of a turn: groups of pp micro-batches go through all chunks."""
        if vpp == 1:
            return turn, 0
        rounds, inside = divmod(turn, pp * vpp)
        chunk, offset = divmod(inside, pp)
        return rounds * pp + offset, chunk if is_forward else vpp - 1 - chunk

    finished: dict[tuple[bool, int, int, int], int] = {}
    turns = [[0, 0] for _ in range(pp)]  # forwards and backwards begun so far
    busy = [0] * pp
    time = 0
    while len(finished) < 2 * total * pp:
        for s in range(pp):
            f, b = turns[s]
            if busy[s] > time or f + b == 2 * total:
                continue
            warm = pp - s - 1 if vpp == 1 else 2 * (pp - s - 1) + (vpp - 1) * pp
            # Forwards until the stage is warm, then one of each in turn, then what is left of backwards.
            is_forward = f < total and f - b <= warm
            micro_batch, chunk = place(f if is_forward else b, is_forward)
            if is_forward:
                before = (True, micro_batch, chunk, s - 1) if s else (True, micro_batch, chunk - 1, pp - 1)
                needed = s > 0 or chunk > 0
            else:
                before = (
                    (False, micro_batch, chunk, s + 1) if s < pp - 1 else (False, micro_batch, chunk + 1, 0)
                )
                needed = True
                if s == pp - 1 and chunk == vpp - 1:
                    before = (True, micro_batch, chunk, s)
            if needed and finished.get(before, time + 1) > time:
                continue
            busy[s] = time + (forward if is_forward else backward)[s]
            finished[is_forward, micro_batch, chunk, s] = busy[s]
            turns[s][0 if is_forward else 1] += 1
        time += 1
        assert time < 100_000, "the schedule stands still"
    return max(finished.values())


LAYOUTS = [
    (2, 1, 2),
    (2, 1, 7),
    (4, 1, 4),
    (4, 1, 9),
    (4, 1, 2),
    (3, 1, 1),
    (2, 2, 4),
    (4, 2, 8),
    (2, 4, 6),
    (4, 3, 4),
]


@pytest.mark.parametrize(("pp", "vpp", "m"), LAYOUTS)
def test_the_ideal_bubble_is_that_of_a_schedule_with_equal_stages(pp: int, vpp: int, m: int) -> None:
    for f, b in ((2, 4), (3, 3), (5, 2)):
        window = ticked(pp, vpp, m, [f] * pp, [b] * pp)
        own = m * vpp * (f + b)
        assert window - own == (pp - 1) * (f + b), "one micro-batch of a chunk for every further stage"
        assert Fraction(window - own, own) == Fraction(pp - 1, vpp * m)
        assert ideal_bubble_ns(pp * own, pp, pp=pp, vpp=vpp, micro_batches=m) == window - own
        assert ideal_bubble_frac(pp=pp, vpp=vpp, micro_batches=m) == pytest.approx((window - own) / window)


@pytest.mark.parametrize(("pp", "vpp", "m"), LAYOUTS)
def test_a_perfect_schedule_of_uneven_stages(pp: int, vpp: int, m: int) -> None:
    draw = random.Random(f"{pp} {vpp} {m}")
    for _ in range(8):
        forward = [draw.randint(1, 9) for _ in range(pp)]
        backward = [draw.randint(1, 9) for _ in range(pp)]
        found = perfect_schedule(vpp=vpp, micro_batches=m, forward=forward, backward=backward)
        assert found is not None
        assert found.window == ticked(pp, vpp, m, forward, backward)
        assert found.own == tuple(m * vpp * (f + b) for f, b in zip(forward, backward, strict=True))
        assert found.idle(0) == found.window - found.own[0]


def test_what_is_no_schedule_or_too_large_is_not_laid_out() -> None:
    assert perfect_schedule(vpp=2, micro_batches=3, forward=[1, 1], backward=[1, 1]) is None
    assert perfect_schedule(vpp=1, micro_batches=10**9, forward=[1, 1], backward=[1, 1]) is None


def test_warm_up() -> None:
    # Four stages without interleaving: 3, 2, 1, 0; with two chunks four more, and two for every stage behind.
    assert [warm_up_forwards(pp=4, vpp=1, stage=s, micro_batches=8) for s in range(4)] == [3, 2, 1, 0]
    assert [warm_up_forwards(pp=4, vpp=2, stage=s, micro_batches=8) for s in range(4)] == [10, 8, 6, 4]
    assert warm_up_forwards(pp=4, vpp=1, stage=0, micro_batches=2) == 2


@pytest.mark.parametrize(
    ("vpp", "micro_batches", "group", "found"),
    [
        (1, 24, 4, 1),
        (2, 8, 4, 2),
        (2, 24, 8, None),  # 6 + 8 forwards before the first stage's steady phase: 3 chunks in groups of 4 too
        (3, 16, 4, None),
        (2, 8, 8, None),
    ],
)
def test_chunks_by_warm_up_where_groups_may_be_larger(
    vpp: int, micro_batches: int, group: int, found: int | None
) -> None:
    warm_ups = [
        (s, 1 + warm_up_forwards(pp=4, vpp=vpp, stage=s, micro_batches=micro_batches, group=group))
        for s in range(4)
    ]
    assert chunks_by_warm_up(4, vpp * micro_batches, warm_ups) == found


def test_a_split_always_sums_to_the_idle_time() -> None:
    for idle, ideal, transfer, handover in itertools.product((0, 1, 50, 100), repeat=4):
        split = split_idle(idle_ns=idle, ideal_ns=ideal, transfer_ns=transfer, handover_ns=handover)
        parts = (split.bubble_ns, split.transfer_ns, split.handover_ns, split.late_peer_ns)
        assert sum(parts) == idle
        assert min(parts) >= 0
        assert split.bubble_ns <= ideal
        assert split.late_peer_ns == max(0, idle - ideal - transfer - handover)
