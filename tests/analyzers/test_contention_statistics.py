"""The comparison of many kernels at once, against one kernel at a time done by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoc.analyzers.contention.comparison import Compared, compare

Sets = list[tuple[list[int], list[int]]]


def compared(sets: Sets) -> Compared:
    rows = [(k, d, s) for k, pair in enumerate(sets) for s in (0, 1) for d in pair[s]]
    rows = sorted(rows, key=lambda r: (r[1] * 7919) % 101)  # the order of samples must not matter
    table = np.array(rows, np.int64).reshape(-1, 3)
    return compare(table[:, 0], table[:, 1], table[:, 2] == 1, len(sets))


def exact_p(first: list[int], second: list[int]) -> float:
    """Two-sided p of the rank sum over every way to deal the durations out; no ties."""
    ranks = {d: r for r, d in enumerate(sorted(first + second), 1)}
    middle = len(second) * (len(first) + len(second) + 1) / 2
    seen = abs(sum(ranks[d] for d in second) - middle)
    deals = list(itertools.combinations(range(1, len(ranks) + 1), len(second)))
    return sum(abs(sum(deal) - middle) >= seen - 1e-9 for deal in deals) / len(deals)


def test_p_by_hand() -> None:
    # Ranks 5 to 8 of 8: U = 16, mean 8, away 7.5; variance 4 * 4 * 9 / 12; z = 7.5 / sqrt(12) = 2.16506.
    found = compared([([1, 2, 3, 4], [5, 6, 7, 8]), ([5, 5], [5, 5]), ([], [1]), ([1], [])])
    assert found.p_value[0] == pytest.approx(math.erfc(2.16506 / math.sqrt(2)), abs=1e-5)
    # All tied: no variance, no difference.
    assert found.p_value[1] == 1.0
    assert np.isnan(found.p_value[2:]).all()


def test_ties_by_hand() -> None:
    # 1 1 2 | 2 2 3: ranks 1.5 1.5 4 | 4 4 6; U = 14 - 6 = 8, mean 4.5, away 3.
    # Ties: 2^3 - 2 + 3^3 - 3 = 30; variance 9/12 * (7 - 30/30) = 4.5; z = 3 / sqrt(4.5).
    found = compared([([1, 1, 2], [2, 2, 3])])
    assert found.p_value[0] == pytest.approx(math.erfc(3 / math.sqrt(4.5) / math.sqrt(2)), abs=1e-12)


@given(st.permutations(range(16)), st.integers(0, 1_000))
def test_p_is_near_the_exact_one_and_never_too_sure(order: list[int], shift: int) -> None:
    first, second = [10 * i + shift for i in order[:8]], [10 * i + shift for i in order[8:]]
    found = float(compared([(first, second)]).p_value[0])
    exact = exact_p(first, second)
    assert abs(found - exact) <= 0.011
    assert found >= exact or exact >= 0.01


@given(st.permutations([1, 1, 1, 2, 2, 3, 3, 3, 4, 4, 5, 6, 7, 8, 9, 9]))
def test_no_p_is_below_the_least_and_none_below_an_exact_one(durations: list[int]) -> None:
    found = compared([(durations[:8], durations[8:])])
    assert found.p_value[0] >= found.least_p_value[0] - 1e-15
    assert found.least_p_value[0] >= 2 / math.comb(16, 8)
    # All of one length against all of another: the approximation gives 0.00014, an exact test 0.000155.
    apart = compared([([10] * 8, [20] * 8)])
    assert apart.p_value[0] == apart.least_p_value[0] == pytest.approx(2 / 12_870)


def test_the_least_p_by_hand() -> None:
    # Eight and eight without ties: away 32 less a half, variance 64 / 12 * 17.
    found = compared([(list(range(8)), list(range(100, 108)))])
    expected = math.erfc(31.5 / math.sqrt(64 * 17 / 12) / math.sqrt(2))
    assert found.least_p_value[0] == found.p_value[0] == pytest.approx(expected)


def test_not_longer_by_the_tolerance() -> None:
    # 5 % on 100 is 105: 104 is shorter on every side, 106 longer.
    found = compared([([100] * 8, [104] * 8), ([100] * 8, [106] * 8), ([100] * 3, [90] * 3), ([1], [])])
    # Three and three: 20 ways to deal them out, one as far away.
    assert found.within_p_value[:3].tolist() == pytest.approx([1 / 12_870, 1.0, 1 / 20], abs=1e-4, rel=0.6)
    assert np.isnan(found.within_p_value[3])


@given(st.lists(st.tuples(st.lists(st.integers(1, 50), max_size=30), st.just([7])), max_size=5))
def test_groups_are_found_as_by_hand(sets: Sets) -> None:
    sets = [([1_000 * d for d in first], second) for first, second in sets]
    found = compared(sets)
    for i, (first, _) in enumerate(sets):
        values = sorted(first)
        least = max(2, math.ceil(0.1 * len(values)))
        expected = any(
            values[k] >= 1.2 * values[k - 1] and values[k] - values[k - 1] > 1_000
            for k in range(least, len(values) - least + 1)
        )
        assert bool(found.gapped[i]) == expected


samples = st.lists(st.integers(0, 50), max_size=12)


@given(st.lists(st.tuples(samples, samples), max_size=5))
def test_tenths_are_those_of_numpy(sets: Sets) -> None:
    found = compared(sets)
    for i, pair in enumerate(sets):
        for which in (0, 1):
            if pair[which]:
                tenths = np.percentile(pair[which], [10, 50, 90])
                own = [q[which][i] for q in (found.low_ns, found.median_ns, found.high_ns)]
                assert own == pytest.approx(tenths, abs=0.51)
