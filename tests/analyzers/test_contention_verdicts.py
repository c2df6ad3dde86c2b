"""When a kernel is called slower, and when a margin is suggested: every figure worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

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
        assert norm.verdict_reason == "the runs are too few, or spread too far, to tell"


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
    assert found.reason == found.margin_reason == "no norm ran beside communication"


@pytest.mark.parametrize(
    ("name", "beside", "why"),
    [
        (
            "void at::native::vectorized_layer_norm_kernel<float>(x)",
            15_000,
            "only Transformer Engine's norms",
        ),
        (NORM, 10_100, "no norm is proven to be slower"),  # as slow as alone
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
    assert product.caveat.startswith("an association: a product's inner size is not in its launch shape")
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
    assert reasons == {
        "",
        "with so few runs nothing can be proven of one of 60 kernels tested together",
    }
    assert found.norm_cost is not None
    assert found.norm_cost.mid_ns == 53 * 8 * 10_000
    job = job_contention([found])
    assert sum(k.undecided_devices for k in job.signatures) == 7
    assert {k.undecided_reason for k in job.signatures} == reasons
