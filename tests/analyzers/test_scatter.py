"""Who takes longer than its peers by more than what each takes scatters from step to step."""

from __future__ import annotations

from math import exp, pi, sqrt, tan

import numpy as np
import pytest

from perfdoc.analyzers.steps.scatter import is_beyond_chance


@pytest.mark.parametrize(("over", "is_beyond"), [(0.99, False), (1.01, True)])
def test_of_two_ranks_and_steps(over: float, is_beyond: bool) -> None:
    """One difference is free: of one degree Student's t is a tangent, and one in a hundred for either rank
    lies beyond that of 99 % of a right angle. The second rank takes 1.01 times as long as without scatter in
    one step, and 1 / 1.01 times in the other."""
    scatter = np.log(1.01) / sqrt(2) * sqrt(1 + pi / 2)
    longer = exp(over * scatter * tan(0.99 * pi / 2))
    takes = np.array([[1e6, 1e6], [1.01e6 * longer, 1e6 / 1.01 * longer]])
    assert is_beyond_chance(takes, 1) is is_beyond
    assert not is_beyond_chance(takes, 0)


def test_steps_long_on_all_ranks_and_who_is_long_in_all_are_no_scatter() -> None:
    takes = np.outer([1.0, 1.0, 1.04, 1.0], [1e6, 3e6, 2e6])
    assert [is_beyond_chance(takes, m) for m in range(4)] == [False, False, True, False]


def test_one_step_and_one_rank_scatter_in_nothing() -> None:
    assert not is_beyond_chance(np.array([[1e6], [9e6]]), 1)
    assert not is_beyond_chance(np.array([[1e6, 9e6]]), 0)
