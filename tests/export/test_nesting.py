from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfdoc.export.writer import MAX_LANES, Events, Lanes, disjoint, nested

SLICES = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20)), max_size=24)


def columns(rows: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    start = np.array([a for a, _ in rows], np.int64)
    return start, start + np.array([n for _, n in rows], np.int64)


def played(lane: Events, start: np.ndarray, end: np.ndarray) -> list[int]:
    """Slices that a stack gives back; every end closes its own beginning, in order of time."""
    stack: list[int] = []
    done, at = [], -1
    for row, begins in zip(lane.row.tolist(), lane.is_begin.tolist(), strict=True):
        time = int(start[row] if begins else end[row])
        assert time >= at
        at = time
        if begins:
            stack.append(row)
        else:
            assert stack.pop() == row
            done.append(row)
    assert not stack
    return done


def check(placed: Lanes, rows: list[tuple[int, int]]) -> None:
    start, end = columns(rows)
    done = [row for lane in placed.lanes for row in played(lane, start, end)]
    assert len(done) == len(set(done)) == len(rows) - placed.left_out


@given(SLICES)
def test_every_slice_is_told_once_and_never_across(rows: list[tuple[int, int]]) -> None:
    check(nested(*columns(rows)), rows)


@given(SLICES)
def test_lanes_hold_slices_that_do_not_meet(rows: list[tuple[int, int]]) -> None:
    start, end = columns(rows)
    placed = disjoint(start, end)
    check(placed, rows)
    for lane in placed.lanes:
        order = lane.row[lane.is_begin]
        assert (start[order][1:] >= end[order][:-1]).all()


def test_only_what_crosses_leaves_the_first_lane() -> None:
    # [0, 10) and [5, 15) cross; [20, 30) holds [22, 25).
    rows = [(0, 10), (5, 10), (20, 10), (22, 3)]
    placed = nested(*columns(rows))
    assert [sorted(set(lane.row.tolist())) for lane in placed.lanes] == [[2, 3], [0], [1]]


def test_too_many_at_once_are_counted() -> None:
    rows = [(0, 100 + i % 2) for i in range(MAX_LANES + 5)]
    placed = disjoint(*columns(rows))
    assert (len(placed.lanes), placed.left_out) == (MAX_LANES, 5)
