"""What the steady steps of a run cost: the figures that the gate compares, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from perfdoc.compare.figures import cost_of


def test_the_tail_and_the_last_part_by_hand() -> None:
    # 1 … 100: the 95th percentile lies at 95.05. The last 33 steps' mean is 84, that of the first 33 is 17.
    found = cost_of(np.arange(1, 101)[None])
    assert (found["p95_step_ns"], found["p99_step_ns"], found["mean_step_ns"]) == (95, 99, 50)
    assert found["late_ratio"] == pytest.approx(84 / 17)
    short = cost_of(np.full((1, 11), 10))
    assert (short["p95_step_ns"], short["p99_step_ns"], short["late_ratio"]) == (None, None, None)


def test_each_figure_is_of_the_rank_where_it_is_largest() -> None:
    steps = np.full((3, 30), 10)
    steps[1, 20:] = 20  # the last third of one rank
    steps[2] = 14
    found = cost_of(steps)
    assert (found["mean_step_ns"], found["p95_step_ns"], found["late_ratio"]) == (14, 20, 2.0)


@pytest.mark.parametrize(("stalls", "left"), [(1, 1), (2, 2), (3, 0)])
def test_one_step_of_a_hundred_may_be_a_stall(stalls: int, left: int) -> None:
    steps = np.full((1, 200), 10)
    steps[0, 50 : 50 + stalls] = 101
    found = cost_of(steps)
    mean = 10 if left else (197 * 10 + 303) / 200
    assert (found["left_out_steps"], found["left_out_ns"]) == (left, 101 * left)
    assert found["mean_step_ns"] == round(mean)
    assert found["whole_mean_step_ns"] == round((2000 + 91 * stalls) / 200)
    assert cost_of(np.where(steps == 101, 100, steps))["left_out_steps"] == 0  # ten medians are no stall
