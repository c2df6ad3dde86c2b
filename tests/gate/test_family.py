"""All tests of a check share the 1 % of false alarms; the figures that they compare, by hand."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from perfdoc.compare.cost import cost_of
from perfdoc.compare.figures import RunFigures
from perfdoc.compare.gate.judge import against_baseline, in_pairs
from perfdoc.compare.gate.measures import DRIFT, PARTS, Family, compare_runs
from perfdoc.compare.significance import by_order_alone
from perfdoc.compare.student import student_t
from tests.amount import tries
from tests.gate.scatter import EXCHANGEABLE
from tests.gate.test_changed_baselines import run


def whole(number: int, figures: list[float], **more: object) -> RunFigures:
    """A run that says every figure: median, mean, both percentiles, late ratio, mean with stalls."""
    names = (
        "median_step_ns",
        "mean_step_ns",
        "p95_step_ns",
        "p99_step_ns",
        "late_ratio",
        "whole_mean_step_ns",
    )
    values = {n: v if n == "late_ratio" else round(v * 1e9) for n, v in zip(names, figures, strict=True)}
    return msgspec.structs.replace(run(number), **values, left_out_steps=1, **more)


def equal(count: int, first: int = 0, **more: object) -> list[RunFigures]:
    return [whole(first + i, [1.0] * 6, **more) for i in range(count)]


def test_the_chances_of_all_tests_sum_to_1_per_cent() -> None:
    logged = {"logged_ns": {"data": 1}}
    for old, new, drift, names in (
        (equal(5), equal(3, 10), True, 6),
        (equal(8), equal(3, 10), True, 7),
        (equal(8), equal(3, 10), False, 6),
        (equal(8, **logged), equal(3, 10, **logged), True, 8),
        (equal(2), equal(3, 10), True, 2),  # low history: step and mean
        ([run(i) for i in range(5)], [run(10)], True, 1),  # of before the mean was kept
    ):
        chance = Family.of(old, new, "median", with_drift=drift).chance
        assert len(chance) == names
        assert sum(chance.values()) == pytest.approx(0.01)
    full = Family.of(equal(8, **logged), equal(3, 10, **logged), "median", with_drift=True).chance
    # 3 + 3 + 1 + 1 + 1 + 1 + 1 + 2 shares.
    assert (full["step_time"], full["late_part"]) == (pytest.approx(0.03 / 13), pytest.approx(0.01 / 13))
    assert (full[PARTS], full[DRIFT]) == (pytest.approx(0.01 / 13), pytest.approx(0.02 / 13))


def test_the_limit_is_that_of_the_share() -> None:
    # s = 1 % of 5 runs against 3 without scatter; ten shares: the step has 3, the 95th percentile 1.
    steps = [1 + 0.01 * x for x in (-1.2649, -0.6325, 0, 0.6325, 1.2649)]
    old = [whole(i, [s] * 6) for i, s in enumerate(steps)]
    found = {
        t.measure.name: t
        for t in compare_runs(Family.of(old, equal(3, 9), "median", with_drift=True), old, equal(3, 9), 0.02)
    }
    for name, share in (("step_time", 3), ("mean_step", 3), ("p95_step", 1)):
        assert found[name].decision.noise_frac == pytest.approx(
            student_t(4, 1 - 0.001 * share) * 0.01 * math.sqrt(8 / 15), rel=1e-3
        )


def test_orders_of_all_tests_are_added_up() -> None:
    # Of 56 orders each test allows its clearest one; of 3,003 0.3 % are nine, and 0.1 % three.
    chances = [0.003, 0.003, 0.001, 0.001, 0.001, 0.001]
    assert by_order_alone(56, chances) == 6 / 56
    assert by_order_alone(3003, chances) == (9 + 9 + 3 * 4) / 3003


@pytest.mark.parametrize("design", ["5 and 3", "10 and 5", "5 pairs"])
@pytest.mark.parametrize("shape", ["skewed (log-normal)", "outliers (half Cauchy)", "normal, 2 %"])
def test_false_alarms_of_all_tests_together(shape: str, design: str) -> None:
    """Six figures that have nothing to do with one another: so the tests have the most chances."""
    trials = tries(30, 300)
    random = np.random.default_rng(41)
    old, new = {"5 and 3": (5, 3), "10 and 5": (10, 5), "5 pairs": (5, 5)}[design]
    if shape in EXCHANGEABLE:
        draws = np.stack([EXCHANGEABLE[shape](random, trials, old + new) for _ in range(6)], axis=-1)
    else:
        draws = 1 + 0.02 * random.standard_normal((trials, old + new, 6))
    fails = 0
    for rows in draws.tolist():
        runs = [whole(i, figures) for i, figures in enumerate(rows)]
        if design == "5 pairs":
            judged = in_pairs(list(zip(runs[:old], runs[old:], strict=True)))
        else:
            judged = against_baseline(runs[:old], runs[old:])
        fails += any(c.state == "fail" for c in judged.checks)
    assert fails / trials <= 0.01 + 3 * math.sqrt(0.01 * 0.99 / trials)


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
