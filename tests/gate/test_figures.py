"""Figures of a run that the gate compares: cost, floors and utilisation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perfdoc.compare.figures import RunFigures, cost_of
from perfdoc.compare.floors import check_floors, parse_floor
from perfdoc.compare.runs import mfu
from tests.gate.test_changed_baselines import run as make_run
from tests.gate.test_changed_baselines import steady_of


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


def run(**known: float) -> RunFigures:
    return make_run(0, **steady_of(2_000_000), **known)


def test_edges_and_the_worst_run_counts() -> None:
    runs = [run(mfu_frac=0.42), run(mfu_frac=0.5)]
    assert check_floors([parse_floor("mfu_min=0.42")], runs)[0].state == "pass"
    found = check_floors([parse_floor("mfu_min=0.43:warn")], runs)[0]
    assert (found.state, found.value, found.floor.level) == ("broken", 0.42, "warn")
    assert check_floors([parse_floor("step_time_max_ms=2")], runs)[0].state == "pass"
    assert check_floors([parse_floor("step_time_max_ms=1.99")], runs)[0].state == "broken"
    assert check_floors([parse_floor("mfu_min=0.9:off")], runs) == []


def test_unknown_is_not_a_pass() -> None:
    found = check_floors([parse_floor("mfu_min=0.4")], [run(mfu_frac=0.5), run()])[0]
    assert (found.state, found.value) == ("unknown", None)


@pytest.mark.parametrize(
    "text",
    [
        *("", "mfu=1", "mfu_min", "mfu_min=x", "mfu_min=1:loud", "mfu_min=-1", "mfu_min=40"),
        "exposed_comm_frac_max=1.01",
    ],
)
def test_mistakes_are_one_line(text: str) -> None:
    with pytest.raises(ValueError, match="--floor") as caught:
        parse_floor(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("flops", "peak", "found", "noted"),
    [
        (4e14, 1e15, 0.4, False),
        (1e15, 1e15, 1.0, False),
        (None, 1e15, None, False),
        (4e14, None, None, False),
        (1.01e15, 1e15, None, True),
        (4e14, math.inf, None, True),
        (4e14, math.nan, None, True),
        (math.inf, 1e15, None, True),
        (-1.0, 1e15, None, True),
        (4e14, -1e15, None, True),
    ],
)
def test_only_what_is_possible(
    flops: float | None, peak: float | None, found: float | None, noted: bool
) -> None:
    value, notes = mfu(flops, peak)
    assert (value, bool(notes)) == (found, noted)
