"""How often the gate is wrong where scatter is not normal, held against what docs/gate.md claims."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest

from perfdoc.compare.decision import Verdict, decide
from perfdoc.compare.gate.drift import drift
from perfdoc.compare.significance import few_orders, slower_by_order
from tests.amount import tries
from tests.gate.scatter import EXCHANGEABLE, F64

TRIALS = tries(500, 4000)
CLAIMED = 0.01


def bound(share: float) -> float:
    """What so many trials may show of a rate of `share`."""
    return share + 3 * math.sqrt(share * (1 - share) / TRIALS)


def nanoseconds(times: F64) -> list[list[int]]:
    found: list[list[int]] = (1e9 * times).astype(np.int64).tolist()
    return found


@pytest.mark.parametrize("sizes", [(5, 3), (10, 3), (8, 5)])
@pytest.mark.parametrize("shape", EXCHANGEABLE)
def test_false_alarms_whatever_the_shape(shape: str, sizes: tuple[int, int]) -> None:
    n, k = sizes
    rows = nanoseconds(EXCHANGEABLE[shape](np.random.default_rng(17), TRIALS, n + k))
    fails = sum(decide(r[:n], r[n:]).verdict is Verdict.FAIL for r in rows)
    assert fails / TRIALS <= bound(CLAIMED)


@pytest.mark.parametrize("shape", EXCHANGEABLE)
def test_drift_adds_little(shape: str) -> None:
    rows = nanoseconds(EXCHANGEABLE[shape](np.random.default_rng(19), TRIALS, 13))
    found = [(decide(r[:10], r[10:]).verdict is Verdict.FAIL, drift(r[:10], r[10:])) for r in rows]
    assert sum(failed or (d is not None and d.beyond) for failed, d in found) / TRIALS <= bound(1.5 * CLAIMED)


@pytest.mark.parametrize(("n", "k"), [(1, 1), (3, 1), (3, 3), (5, 3), (8, 3), (6, 4)])
def test_orders_are_counted_exactly(n: int, k: int) -> None:
    """Every order of n + k different figures: those that are said to be clear are 1 % at most, or one."""
    places = set(range(n + k))
    clear = [
        new for new in combinations(places, k) if slower_by_order(sorted(places - set(new)), sorted(new))
    ]
    ways = math.comb(n + k, k)
    assert 1 <= len(clear) <= max(0.01 * ways, 1)
    # As many as may be: the next clearest order would be too many. Orders of equally many pairs go together.
    pairs = sorted(sum(x > y for x in new for y in places - set(new)) for new in combinations(places, k))
    least = pairs[-len(clear)]
    assert len(clear) == sum(p >= least for p in pairs)
    if len(clear) < ways:
        more = sum(p >= least - 1 for p in pairs)
        assert more > max(0.01 * ways, 1)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ((5, 3), "up to 1.8 % of cases"),
        ((3, 1), "up to 25.0 % of cases"),
        ((5, 3), "with 4 new runs"),
        ((1, 1), "with 99 new runs"),
    ],
)
def test_few_orders_are_said(sizes: tuple[int, int], said: str) -> None:
    (note,) = few_orders(*sizes)
    assert said in note


@pytest.mark.parametrize("sizes", [(5, 4), (7, 3), (20, 2), (99, 1)])
def test_many_orders_are_not(sizes: tuple[int, int]) -> None:
    assert few_orders(*sizes) == []


def test_no_shape_makes_more_false_alarms_than_orders_allow() -> None:
    """Every split of runs that are close together at the quick end and far apart at the slow one."""
    runs = [1000 + 2**i for i in range(10)]
    for n, k in ((6, 4), (7, 3)):
        fails = splits = 0
        for new in combinations(runs, k):
            old = [r for r in runs if r not in new]
            fails += decide(old, list(new)).verdict is Verdict.FAIL
            splits += 1
        assert 0 < fails <= 0.01 * splits, (n, k)


def test_equal_figures_are_no_loss() -> None:
    assert not slower_by_order([5, 5, 5, 5, 5], [5, 6, 7])
    assert slower_by_order([5, 5, 5, 5, 5], [6, 6, 6])


def test_one_quick_new_run_keeps_a_slow_stretch_from_failing() -> None:
    # 9.3 % slower in the mean; alone the quiet baseline would have made a limit of 2 %.
    found = decide([1000, 1001, 999, 1000, 1000], [1000, 1140, 1140])
    assert found.verdict is Verdict.INCONCLUSIVE
    # s = sqrt((4 * 0.5 + 2 * 6533.3) / 6) of 1000 = 4.67 %; t(0.99, 6) = 3.1427: 3.1427 * 4.67 % * 0.7303.
    assert found.noise_frac == pytest.approx(
        3.142668 * math.sqrt((2 + 2 * 19600 / 3) / 6) / 1000 * math.sqrt(8 / 15)
    )


def test_a_slow_run_in_the_baseline_leaves_a_clear_loss_to_be_told_by_order() -> None:
    # Mean 104, s = 12.65 %: nothing is told at 5v3. A loss of a half is, but not while a run is as slow.
    old = [100, 100, 100, 100, 100, 100, 100, 100, 100, 140]
    assert decide(old, [160, 161, 162]).verdict is Verdict.FAIL
    found = decide(old, [135, 136, 137])
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "runs of both sides overlap" in found.reason
