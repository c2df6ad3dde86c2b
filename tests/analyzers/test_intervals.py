from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from perfdoc.analyzers.base.intervals import Intervals, count_up_to, owners_by_last_end, union
from perfdoc.analyzers.base.rows import kept
from tests.analyzers.brute import covered, exposed_by_dimension

END = 40
# Few distinct ends, so that ties, touching, nested and zero-length intervals come up all the time.
interval = st.tuples(st.integers(0, END), st.integers(0, END)).map(lambda p: (min(p), max(p)))
intervals = st.lists(interval, max_size=12)


def make(pairs: list[tuple[int, int]]) -> Intervals:
    return union(np.array([a for a, _ in pairs], np.int64), np.array([b for _, b in pairs], np.int64))


@given(intervals)
def test_union_covers_the_same_nanoseconds_in_disjoint_sorted_pieces(pairs: list[tuple[int, int]]) -> None:
    result = make(pairs)
    pieces = list(zip(result.start_ns.tolist(), result.end_ns.tolist(), strict=True))
    assert covered(pieces, 0, END) == covered(pairs, 0, END)
    assert all(a < b for a, b in pieces)
    assert all(b < a for (_, b), (a, _) in pairwise(pieces)), "pieces touch"
    assert result.total_ns == len(covered(pairs, 0, END))


@given(intervals, interval)
def test_clip_gaps_and_coverage_agree_with_a_count(
    pairs: list[tuple[int, int]], window: tuple[int, int]
) -> None:
    result, (a, b) = make(pairs), window
    inside = covered(pairs, a, b)
    assert result.clip(a, b).total_ns == len(inside)
    gaps = result.gaps(a, b)
    assert covered(list(zip(gaps.start_ns.tolist(), gaps.end_ns.tolist(), strict=True)), 0, END) == (
        set(range(a, b)) - inside
    )
    assert int(result.covered_within(a, b)) == len(inside)


@given(intervals, intervals)
@example([(0, 2), (4, 6), (8, 9), (11, 12), (14, 15), (17, 18)], [(5, 11)])
@example([(0, 2), (4, 6), (8, 9), (11, 12), (14, 15), (17, 18)], [(20, 21)])
def test_or_is_the_union_of_both(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    """One that joins three, touching the last of them; one behind all."""
    found, both = make(one) | make(other), make(one + other)
    assert found.start_ns.tolist() == both.start_ns.tolist()
    assert found.end_ns.tolist() == both.end_ns.tolist()


@given(intervals, intervals)
@example([(0, 9)], [(0, 2), (4, 5), (7, 9)])
@example([(0, 4), (5, 9)], [(2, 7)])
@example([(2, 4), (5, 7)], [(0, 9)])
@example([(2, 4), (5, 7)], [(0, 2), (4, 5), (7, 9)])
def test_difference_leaves_out_the_other(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    """Cut in the middle and at both ends; one that cuts two; none left; only touched."""
    left = make(one) - make(other)
    pieces = list(zip(left.start_ns.tolist(), left.end_ns.tolist(), strict=True))
    assert covered(pieces, 0, END) == covered(one, 0, END) - covered(other, 0, END)
    assert all(a < b for a, b in pieces)
    assert all(b < a for (_, b), (a, _) in pairwise(pieces)), "pieces touch"


@given(intervals, st.lists(interval, max_size=80))
def test_difference_of_few_and_many(few: list[tuple[int, int]], many: list[tuple[int, int]]) -> None:
    """Counting goes the other way round where one set has many times what the other has."""
    for one, other in ((few[:2], many), (many, few[:2])):
        left = make(one) - make(other)
        pieces = list(zip(left.start_ns.tolist(), left.end_ns.tolist(), strict=True))
        assert covered(pieces, 0, END) == covered(one, 0, END) - covered(other, 0, END)


@given(intervals)
def test_every_nanosecond_belongs_to_the_interval_that_ends_last(pairs: list[tuple[int, int]]) -> None:
    start, end, owner = owners_by_last_end(
        np.array([a for a, _ in pairs], np.int64), np.array([b for _, b in pairs], np.int64)
    )
    got: dict[int, int] = {}
    for a, b, i in zip(start.tolist(), end.tolist(), owner.tolist(), strict=True):
        got[i] = got.get(i, 0) + b - a
    numbered = [(a, b, i) for i, (a, b) in enumerate(pairs)]
    assert got == exposed_by_dimension(numbered, [], 0, END)


def test_large_times_do_not_lose_a_nanosecond() -> None:
    base = 2**60  # float64 is exact only to 2^53
    result = union(np.array([base, base + 5]), np.array([base + 3, base + 6]))
    assert result.total_ns == 4
    assert result.covered_before([base + 1, base + 4, base + 9]).tolist() == [1, 3, 4]


@given(st.lists(st.integers(0, 6), max_size=4), st.lists(st.integers(0, 6), max_size=30), st.booleans())
@example([2], [1, 2, 2, 2, 3], True)
@example([2], [3, 2, 2, 2, 1], False)
def test_instants_up_to_each_time_agree_with_a_count(
    instants: list[int], times: list[int], in_order: bool
) -> None:
    # Up to 30 times for up to 4 instants: both ways of counting, in order or not.
    instants, times = sorted(instants), sorted(times) if in_order else times
    found = count_up_to(np.array(instants, np.int64), np.array(times, np.int64))
    assert found.tolist() == [sum(i <= t for i in instants) for t in times]


@given(st.lists(st.booleans(), max_size=12))
def test_kept_rows_are_those_of_the_mask(mask: list[bool]) -> None:
    first, second = np.arange(len(mask)), np.arange(len(mask)) * 10
    a, b = kept(np.array(mask, bool), first, second)
    wanted = [i for i, keeps in enumerate(mask) if keeps]
    assert (a.tolist(), b.tolist()) == (wanted, [10 * i for i in wanted])
