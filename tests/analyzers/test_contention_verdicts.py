"""When a kernel is called slower: verdicts by hand, and the statistics of many kernels at once."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoc.analyzers.contention import comparison
from perfdoc.analyzers.contention.comparison import Compared, compare
from perfdoc.analyzers.contention.cost import norm_contention
from perfdoc.analyzers.contention.job import job_contention
from perfdoc.results.contention import ContentionCost
from perfdoc.traces.model import Kernels
from tests.analyzers.contention_plan import NORM, Plan, planted
from tests.analyzers.device_views import view_of
from tests.analyzers.tiny import GEMM


@pytest.mark.parametrize(
    ("alone", "beside", "verdict"),
    [
        ([10_000] * 7, [15_000] * 20, "too_few_samples"),
        ([10_000] * 20, [15_000] * 7, "too_few_samples"),
        ([], [15_000] * 20, "too_few_samples"),
        ([10_000] * 8, [15_000] * 8, "slower"),
        ([10_000] * 8, [10_400] * 8, "no_difference"),  # certain, but 4 %
        ([10_000, 11_000] * 5, [10_000, 11_000] * 5, "no_difference"),
        ([10_000, 20_000] * 5, [18_000] * 10, "mixed_work"),
        ([10_000] * 10, [5_000] * 10, "mixed_work"),  # nothing is faster beside communication
        # However slow they are beside: what spreads so alone is different work.
        ([10_000, 20_000] * 5, [90_000] * 10, "mixed_work"),
        ([10_000] * 8 + [13_000] * 8, [18_000] * 10, "mixed_work"),  # two groups, 1.3 times apart
        ([10_000 + 500 * i for i in range(18)], [25_000] * 10, "mixed_work"),  # 10.85 to 17.65: 1.6 times
        ([10_000 + 300 * i for i in range(18)], [25_000] * 10, "slower"),  # 10.51 to 14.59: 1.4 times
        ([10_000] * 19 + [13_000], [18_000] * 10, "slower"),  # one odd run is no group
        ([10_000, 11_500] * 4, [10_500, 11_300] * 4, "undecided"),  # neither 5 % nor none is proven
    ],
)
def test_verdicts(tmp_path: Path, alone: list[int], beside: list[int], verdict: str) -> None:
    plan = Plan()
    for duration in alone:
        plan.slot(duration)
    for duration in beside:
        plan.slot(duration, comm=duration)
    found = plan.measure(tmp_path)
    (norm,) = found.signatures
    assert norm.verdict == verdict
    assert (norm.samples_alone, norm.samples_contended) == (len(alone), len(beside))
    assert (norm.cost is not None) == (verdict == "slower")
    assert (norm.alone_ns is None) == (not alone)
    zero = ContentionCost(low_ns=0, mid_ns=0, high_ns=0)
    expected = {"no_difference": zero, "slower": norm.cost}
    assert found.norm_cost == expected.get(verdict)
    assert (norm.verdict_reason == "") == (verdict in expected)
    if verdict == "undecided":
        assert norm.verdict_reason == "inconclusive: too few runs, or too scattered"


def test_no_margin_where_communication_fills_the_device(tmp_path: Path) -> None:
    plan = planted()
    plan.slot(50_000, comm=50_000, comm_blocks=132)  # the planted GPU has 132 SMs
    found = plan.measure(tmp_path)
    assert (found.occupied_blocks, found.suggested_sm_margin) == (132, None)
    assert "132 blocks" in found.margin_reason


def test_no_margin_without_grids_or_without_a_norm_beside(tmp_path: Path) -> None:
    view = view_of(planted().builder, tmp_path)
    columns = {n: getattr(view.trace.kernels, n) for n in Kernels.column_names()}
    blind = Kernels(**{**columns, "grid_blocks": np.full(len(view.trace.kernels), -1)})
    found = norm_contention(replace(view, trace=replace(view.trace, kernels=blind)))[0]
    assert (found.occupied_blocks, found.suggested_sm_margin) == (None, None)
    assert "grid" in found.margin_reason
    plan = Plan()
    plan.slot(10_000)
    plan.slot(20_000, name=GEMM, comm=20_000)
    found = plan.measure(tmp_path)
    assert (found.signatures, found.suggested_sm_margin) == ([], None)
    assert found.reason == found.margin_reason == "no norm overlapped communication"


@pytest.mark.parametrize(
    ("name", "beside", "why"),
    [
        (
            "void at::native::vectorized_layer_norm_kernel<float>(x)",
            15_000,
            "only Transformer Engine's norms",
        ),
        (NORM, 10_100, "no norm is proven to be slowed"),  # as slow as alone
    ],
)
def test_no_margin_that_is_not_shown_to_help(tmp_path: Path, name: str, beside: int, why: str) -> None:
    plan = Plan()
    for _ in range(10):
        plan.slot(10_000, name=name)
        plan.slot(beside, name=name, comm=beside)
        plan.slot(20_000, name=GEMM)
        plan.slot(40_000, name=GEMM, comm=40_000)
    found = plan.measure(tmp_path)
    assert found.other_cost is not None
    assert found.other_cost.mid_ns == 200_000  # that products are slower is no reason for one
    assert (found.occupied_blocks, found.suggested_sm_margin) == (24, None)
    assert why in found.margin_reason
    job = job_contention([found])
    assert (job.suggested_sm_margin, job.margin_reason) == (None, found.margin_reason)


def test_products_of_one_shape_are_an_association(tmp_path: Path) -> None:
    # Inner sizes 1,024 alone and 4,096 beside: one name, one launch shape, and no way to tell.
    plan = Plan()
    for _ in range(10):
        plan.slot(10_000, name=GEMM)
        plan.slot(40_000, name=GEMM, comm=40_000)
    (product,) = plan.measure(tmp_path).other_signatures
    assert product.verdict == "slower"
    assert product.caveat.startswith("an association: a GEMM's inner size is not in its launch shape")
    # Where some of the longer ones run alone too, the groups show.
    for _ in range(2):
        plan.slot(40_000, name=GEMM)
    (product,) = plan.measure(tmp_path).other_signatures
    assert (product.verdict, product.cost) == ("mixed_work", None)
    assert "groups of different length" in product.verdict_reason


def test_too_many_kernels_for_their_samples_are_undecided(tmp_path: Path) -> None:
    # Runs of 8 different lengths alone and 8 beside, all apart: p = 0.00094 at best, 0.05 / 0.00094 = 53.2.
    plan = Plan()
    for grid in range(1, 61):
        for i in range(8):
            plan.slot(10_000 + 10 * i, grid=grid)
            plan.slot(20_000 + 10 * i, grid=grid, comm=90_000)
    found = plan.measure(tmp_path)
    verdicts = [k.verdict for k in found.signatures]
    assert (verdicts.count("slower"), verdicts.count("undecided"), len(verdicts)) == (53, 7, 60)
    reasons = {k.verdict_reason for k in found.signatures}
    assert reasons == {"", "too few runs to prove anything of one of 60 kernels tested together"}
    assert found.norm_cost is not None
    assert found.norm_cost.mid_ns == 53 * 8 * 10_000
    job = job_contention([found])
    assert sum(k.undecided_devices for k in job.signatures) == 7
    assert {k.undecided_reason for k in job.signatures} == reasons


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


def test_more_kernels_than_one_number_holds_are_sorted_as_few_are(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    kernel, second = rng.integers(0, 5, 400), rng.integers(0, 2, 400) > 0
    duration = rng.integers(0, comparison.LONGEST_NS + 9, 400)
    few = compare(kernel, duration, second, 6)
    monkeypatch.setattr(comparison, "_PACKED", 0)
    np.testing.assert_equal(vars(compare(kernel, duration, second, 6)), vars(few))


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
