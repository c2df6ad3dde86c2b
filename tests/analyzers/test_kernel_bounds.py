"""What stays of kernels at the bounds that advice names."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from perfdoc.analyzers.contention.cost import NO_EXCESS
from perfdoc.analyzers.efficiency.bounds import BOUNDS, bounds_of
from perfdoc.analyzers.efficiency.device import device_efficiency
from perfdoc.analyzers.efficiency.gemms import odd_sizes, padded
from perfdoc.analyzers.kernels.attributed import attributed_kernels
from perfdoc.results.efficiency import OperatorEfficiency
from perfdoc.simulator.replay.edits.kernels import padded_gemms
from tests.analyzers.device_views import views_of
from tests.analyzers.tiny import one_device

MUL = "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float>>(int)"


def gemm(m: int, k: int, n: int, frac: float | None, **other: Any) -> OperatorEfficiency:
    """In BF16, of 100 us."""
    fields: dict[str, Any] = {
        "name": "aten::mm",
        "kernel_class": "gemm",
        "shapes": f"[[{m}, {k}], [{k}, {n}]]",
        "dtype": "bf16",
        "source": "shapes",
        "calls": 1,
        "time_ns": 100_000,
        "flops": 2.0 * m * k * n,
        "bytes": None,
        "achieved_tflops": None,
        "achieved_tbps": None,
        "roofline_frac": frac,
        "bound": "compute",
        "lost_ns": 0,
    }
    return OperatorEfficiency(**{**fields, **other})


def test_an_odd_gemm_reaches_what_even_ones_reach() -> None:
    """Even ones reach 0.9 in 100 us and 0.6 in 200: 0.7. Of 0.35 half stays, times 1,008 / 1,001."""
    even = [gemm(1024, 1024, 1024, 0.9), gemm(1024, 1024, 2048, 0.6, time_ns=200_000)]
    found = padded([*even, gemm(1024, 1001, 2048, 0.35)])
    assert found.by_peers
    assert found.stays_frac == pytest.approx([1, 1, 0.5 * 1008 / 1001])


@pytest.mark.parametrize(
    "peer",
    [
        gemm(1024, 1024, 1024, 0.9, dtype="fp16"),
        gemm(1024, 1024, 1024, 0.9, bound="memory"),
        gemm(1024, 1024, 1024, 0.9, kernel_class="grouped_gemm"),
        gemm(1024, 1024, 1024, 0.9, shapes="[[]]"),
        gemm(1024, 1024, 1024, None),
        gemm(1024, 1024, 1023, 0.9),
        gemm(8192, 8192, 8192, 0.9),
        gemm(1024, 1024, 1024, 0.9, time_ns=1_000),
    ],
)
def test_without_an_equal_kind_of_even_sizes_the_roofline_is_the_bound(peer: OperatorEfficiency) -> None:
    """Another dtype, bound by memory, grouped, of unknown sizes, of an unknown rate, odd itself, much larger,
    too short to tell."""
    found = padded([peer, gemm(1024, 1024, 1001, 0.35)])
    assert not found.by_peers
    assert found.stays_frac[1] == 0.35


def test_tokens_are_no_size_that_alignment_asks_for() -> None:
    """A layer of 512 to 2,048 on 141 tokens: forward, the input's gradient and the weight's. All matrices lie
    along 512 or 2,048. Scores of 141 tokens lie along them, and so does what is multiplied with scores."""
    layer = [gemm(141, 512, 2048, 0.5), gemm(141, 2048, 512, 0.5), gemm(2048, 141, 512, 0.5)]
    assert odd_sizes(layer) == [[], [], []]
    scores = gemm(0, 0, 0, 0.5, name="aten::bmm", shapes="[[8, 141, 64], [8, 64, 141]]")
    context = gemm(0, 0, 0, 0.5, name="aten::bmm", shapes="[[8, 141, 141], [8, 141, 64]]")
    assert odd_sizes([*layer, scores, context]) == [[], [], [], [141], [141]]
    assert odd_sizes([*layer, gemm(1024, 512, 141, 0.5, kernel_class="norm")])[2] == []
    # Scores of one head; a layer's input of three axes.
    assert odd_sizes([*layer, gemm(141, 64, 141, 0.5)]) == [[], [], [], [141]]
    whole = gemm(0, 0, 0, 0.5, name="aten::matmul", shapes="[[1, 141, 512], [512, 2048]]")
    assert odd_sizes([whole, layer[2]]) == [[], []]


def test_an_odd_width_counts_where_matrices_lie_along_it() -> None:
    """9,375 features to 512 on 1,024 rows: inner in the forward pass, a column of the weight's gradient. A
    result of 30 columns lies along them, by 4 in TF32; in FP8 tokens count as inner size."""
    forward, of_weight = gemm(1024, 9375, 512, 0.3), gemm(512, 1024, 9375, 0.3)
    assert odd_sizes([forward]) == [[9375]]
    assert odd_sizes([forward, of_weight]) == [[9375], [9375]]
    assert odd_sizes([gemm(648, 96, 30, 0.3, dtype="tf32")]) == [[30]]
    linear = gemm(141, 512, 50257, 0.3, name="aten::linear", shapes="[[3, 47, 512], [50257, 512]]")
    assert odd_sizes([linear]) == [[50257]]
    tokens = [gemm(140, 512, 2048, 0.3, dtype="fp8"), gemm(2048, 140, 512, 0.3, dtype="fp8")]
    assert odd_sizes(tokens) == [[], [140]]


def test_bounds_are_of_kernels_that_start_in_time(tmp_path: Path) -> None:
    """A run of 10, 30 and 20 us, the longest of which stays. What starts later is of no run."""
    times = ((0, 10_000), (20_000, 50_000), (60_000, 80_000))
    (view,) = views_of(one_device(tmp_path, [(MUL, begin, end, 7) for begin, end in times]))
    kernels = attributed_kernels(view)

    _, bounds = device_efficiency(view, kernels, NO_EXCESS, 60_000)

    def stays(until_ns: int) -> dict[int, float] | None:
        if (found := bounds(until_ns)) is None:
            return None
        fused_runs = found.stays_frac[:, BOUNDS.index("fused_runs")]
        return dict(zip(found.row.tolist(), fused_runs.tolist(), strict=True))

    assert stays(80_000) == stays(60_001) == {0: 0, 1: 1, 2: 0}
    assert stays(60_000) == {0: 0, 1: 1}
    assert stays(20_000) is None


def test_ranks_with_and_without_peers_have_no_bound_together() -> None:
    """A rate that others reach predicts, a roofline bounds: of both at once neither is true."""

    def bounds(*operators: OperatorEfficiency) -> Any:
        rows, none = np.arange(len(operators)), np.zeros(len(operators))
        return bounds_of(rows, operators, rows, none, np.ones(len(operators)), none.astype(bool))

    odd = gemm(1_024, 1_024, 50_257, 0.3)
    alone, beside, even = bounds(odd), bounds(odd, gemm(1_024, 1_024, 51_200, 0.8)), None
    for found, bound in (((alone, even), True), ((beside, beside), False), ((even,), True)):
        rebuilt: Any = SimpleNamespace(ranks=[SimpleNamespace(bounds=one) for one in found])
        assert padded_gemms(rebuilt).bound is bound
    with pytest.raises(ValueError, match="on some ranks only"):
        padded_gemms(SimpleNamespace(ranks=[SimpleNamespace(bounds=b) for b in (alone, beside)]))  # type: ignore[arg-type]


def test_bounds_are_of_rows_of_the_activity() -> None:
    """Two kernels of one operator at a third of the roofline beside one at 2 / 3: half of each stays. Rows
    of which nothing is said stay whole."""
    operators = [gemm(1024, 1024, 1024, 2 / 3), gemm(1024, 1024, 2048, 1 / 3)]
    none, no = np.zeros(4), np.zeros(4, bool)
    found = bounds_of(np.array([9, 4, 6, 5]), operators, np.array([1, 0, 1, -1]), none, np.ones(4), no)
    assert found is not None
    assert found.row.tolist() == [6, 9]
    assert found.stays(np.array([3, 4, 6, 9, 10]), "gemms_at_best").tolist() == [1, 1, 0.5, 0.5, 1]
    assert [b for b in BOUNDS if found.has(b)] == ["gemms_at_best"]
    assert not found.of_runs(np.array([6])).any()
    assert bounds_of(np.array([1]), [], np.array([-1]), none[:1], np.ones(1), no[:1]) is None
