"""The critical path: its parts always sum to the window."""

from __future__ import annotations

import random

import pytest

from perfdoc.analyzers.pipeline.transfers import StageMessages
from perfdoc.analyzers.pipeline.windows import critical_path


def stage(*rows: tuple[int, int, int], partners: list[list[tuple[int, int]]] | None = None) -> StageMessages:
    """Messages as (start, wait, end) without gaps, each of 64 bytes."""
    return StageMessages(
        row=list(range(len(rows))),
        start_ns=[r[0] for r in rows],
        wait_ns=[r[1] for r in rows],
        end_ns=[r[2] for r in rows],
        gap_before_ns=[0] * len(rows),
        gap_after_ns=[0] * len(rows),
        bytes=[64] * len(rows),
        partners=partners or [[] for _ in rows],
    )


def test_a_message_whose_other_side_is_not_known() -> None:
    # Stage 0 waits [400, 900) in a message; the fastest of its size takes 30, so 470 are waiting.
    path = critical_path([stage((300, 400, 900)), stage()], 0, 1000, 0, {64: 30})
    assert (path.own_ns, path.transfer_ns, path.unmatched_ns) == ((100 + 400, 0), 30, 470)


def test_a_message_that_compute_hides_is_not_on_the_path() -> None:
    other = stage((100, 200, 250), partners=[[(0, 0)]])
    path = critical_path([stage((100, 250, 250), partners=[[(1, 0)]]), other], 0, 1000, 0, {})
    assert (path.own_ns, path.messages) == ((1000, 0), 0)


def test_the_path_goes_to_whoever_came_last() -> None:
    # Three stages exchange in one kernel each; stage 2 joins last, at 700, and all end at 760.
    everyone = [(0, 0), (1, 0), (2, 0)]
    stages = [
        stage((start, start, 760), partners=[[p for p in everyone if p[0] != number]])
        for number, start in enumerate((300, 500, 700))
    ]
    path = critical_path(stages, 0, 1000, 1, {})
    assert path.own_ns == (0, 240, 700)
    assert (path.transfer_ns, path.messages) == (60, 1)


@pytest.mark.parametrize("seed", range(200))
def test_the_parts_sum_to_the_window_whatever_the_messages(seed: int) -> None:
    draw = random.Random(seed)
    stages = []
    counts = [draw.randint(0, 12) for _ in range(draw.randint(1, 4))]
    for count in counts:
        rows = []
        for _ in range(count):
            start = draw.randint(-200, 1200)
            end = start + draw.randint(0, 300)
            rows.append((start, draw.randint(start, end), end))
        rows.sort(key=lambda r: r[2])
        places = [(s, r) for s, c in enumerate(counts) for r in range(c)]
        m = stage(*rows, partners=[draw.sample(places, min(len(places), draw.randint(0, 2))) for _ in rows])
        m.gap_before_ns[:] = [draw.randint(0, 20) for _ in rows]
        m.gap_after_ns[:] = [draw.randint(0, 20) for _ in rows]
        stages.append(m)
    path = critical_path(stages, 0, 1000, draw.randrange(len(stages)), {64: draw.randint(0, 50)})
    parts = (*path.own_ns, path.transfer_ns, path.handover_ns, path.unmatched_ns)
    assert sum(parts) == 1000
    assert min(parts) >= 0
