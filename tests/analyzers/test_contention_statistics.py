"""The comparison of many kernels at once, against one kernel at a time done by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoc.analyzers.contention_statistics import Compared, compare

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


def test_quantiles_lie_between_samples() -> None:
    # Eleven samples: the tenths are the second and the tenth; four: a tenth of the way is 0.3 samples on.
    found = compared([(list(range(100, 1200, 100)), [10, 20, 30, 40]), ([], [7])])
    assert found.count[0].tolist() == [11, 0]
    assert found.count[1].tolist() == [4, 1]
    assert found.low_ns[0].tolist() == [200, -1]
    assert found.median_ns[0].tolist() == [600, -1]
    assert found.high_ns[0].tolist() == [1000, -1]
    assert found.low_ns[1].tolist() == [13, 7]
    assert found.median_ns[1].tolist() == [25, 7]
    assert found.high_ns[1].tolist() == [37, 7]


def test_p_by_hand() -> None:
    # Ranks 3 and 4 of 4: U = 4, mean 2, away 1.5; variance 2 * 2 * 5 / 12; z = 1.5 / sqrt(5/3) = 1.16190.
    found = compared([([1, 2], [3, 4]), ([5, 5], [5, 5]), ([], [1]), ([1], [])])
    assert found.p_value[0] == pytest.approx(math.erfc(1.16190 / math.sqrt(2)), abs=1e-5)
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


samples = st.lists(st.integers(0, 50), max_size=12)


@given(st.lists(st.tuples(samples, samples), max_size=5))
def test_many_kernels_together_are_as_each_alone(sets: Sets) -> None:
    together = compared(sets)
    for i, pair in enumerate(sets):
        alone = compared([pair])
        for quantile in ("low_ns", "median_ns", "high_ns", "count"):
            for which in (0, 1):
                assert getattr(together, quantile)[which][i] == getattr(alone, quantile)[which][0]
        np.testing.assert_allclose(together.p_value[i], alone.p_value[0])
        for which in (0, 1):
            if pair[which]:
                tenths = np.percentile(pair[which], [10, 50, 90])
                found = [q[which][i] for q in (together.low_ns, together.median_ns, together.high_ns)]
                assert found == pytest.approx(tenths, abs=0.51)
