"""Planted contention: every figure worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoc.analyzers.contention.cost import norm_contention
from perfdoc.analyzers.contention.job import job_contention
from perfdoc.analyzers.contention.samples import crowded_intervals
from perfdoc.analyzers.kernel_class.names import element_type_of, family_of
from perfdoc.results.contention import ContentionCost, DeviceContendedKernel
from tests.analyzers.contention_plan import NORM, SLOT_NS, Plan, planted
from tests.analyzers.device_views import view_of
from tests.analyzers.tiny import ALL_GATHER, GEMM


def test_the_planted_slow_down(tmp_path: Path) -> None:
    found = planted().measure(tmp_path)
    (norm,) = found.signatures
    # 8,000 of 15,000 ns are over half: beside communication, but not all of the time.
    # 5,000 of 11,000 ns is under half, and in neither set; so are two runs beside other compute.
    assert (norm.samples_alone, norm.samples_contended) == (10, 12)
    assert (norm.alone_ns, norm.contended_ns) == (10_000, 15_000)
    assert norm.verdict == "slower"
    assert norm.cost == ContentionCost(low_ns=60_000, mid_ns=60_000, high_ns=60_000)  # 12 x 5,000
    assert found.norm_cost == norm.cost
    assert (norm.kernel, norm.kernel_class, norm.family) == (NORM, "norm", "transformer_engine")
    assert (norm.element_type, norm.grid_blocks, norm.block_threads) == ("bf16", 132, 128)
    assert (found.norms, found.other_signatures, found.other_cost) == (25, [], None)
    assert (found.occupied_blocks, found.typical_occupied_blocks, found.suggested_sm_margin) == (24, 24, 24)
    assert (found.state, found.reason, found.margin_reason) == ("measured", "", "")


def test_the_band_comes_from_the_spread_alone(tmp_path: Path) -> None:
    plan = Plan()
    # 10.0, 10.5, ..., 15 us: tenths 10.5 and 14.5, median 12.5.
    for i in range(11):
        plan.slot(10_000 + 500 * i)
    for _ in range(8):
        plan.slot(30_000, comm=30_000)
    (norm,) = plan.measure(tmp_path).signatures
    assert norm.cost == ContentionCost(low_ns=8 * 15_500, mid_ns=8 * 17_500, high_ns=8 * 19_500)


def test_shapes_are_apart_and_only_those_beside_communication_are_listed(tmp_path: Path) -> None:
    plan = Plan()
    for _ in range(9):
        plan.slot(10_000)
        plan.slot(30_000, grid=264)
        plan.slot(15_000, comm=15_000)
        plan.slot(20_000, name=GEMM)
        plan.slot(26_000, name=GEMM, comm=26_000)
    found = plan.measure(tmp_path)
    assert [(n.grid_blocks, n.samples_alone) for n in found.signatures] == [(132, 9)]
    (gemm,) = found.other_signatures
    assert (gemm.kernel_class, gemm.alone_ns, gemm.contended_ns) == ("gemm", 20_000, 26_000)
    assert found.other_cost == ContentionCost(low_ns=54_000, mid_ns=54_000, high_ns=54_000)
    assert found.norms == 27


def test_blocks_of_concurrent_communication_add_up(tmp_path: Path) -> None:
    plan = planted()
    before = plan.now
    plan.slot(50_000, comm=50_000)
    # 20 us of 24 + 8 blocks while the norm runs; what lies after it does not count.
    plan.device.kernel(ALL_GATHER, before + 30_000, before + 95_000, stream=24, grid=(8, 1, 1))
    plan.device.kernel(ALL_GATHER, before + 96_000, before + 99_000, stream=24, grid=(100, 1, 1))
    found = plan.measure(tmp_path)
    assert (found.occupied_blocks, found.typical_occupied_blocks, found.suggested_sm_margin) == (32, 24, 32)


def test_without_communication_or_on_a_cpu_it_abstains(tmp_path: Path) -> None:
    plan = Plan()
    plan.slot(10_000)
    found = plan.measure(tmp_path)
    assert (found.state, found.stalled_starts, found.norm_cost) == ("not_measured", None, None)
    assert found.norms is None  # One ran: a zero would be wrong.
    assert "no communication" in found.reason
    assert found.remedy
    view = view_of(planted().builder, tmp_path)
    found = norm_contention(replace(view, activity=replace(view.activity, on_host=True)))[0]
    assert found.state == "not_measured"
    assert "CPU" in found.reason


def test_kernels_cut_by_the_window_are_left_out(tmp_path: Path) -> None:
    view = view_of(planted().builder, tmp_path)
    # From within the first norm alone to within the second-last one beside.
    window = replace(view.window, start_ns=5_000, end_ns=21 * SLOT_NS + 1_000)
    (norm,) = norm_contention(replace(view, window=window))[0].signatures
    assert (norm.samples_alone, norm.samples_contended) == (9, 11)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=8))
def test_crowded_is_where_two_run(spans: list[tuple[int, int]]) -> None:
    intervals = sorted((a, a + length) for a, length in spans)

    class Stub:
        start_ns = np.array([a for a, _ in intervals], np.int64)
        end_ns = np.array([b for _, b in intervals], np.int64)
        is_compute = np.ones(len(intervals), bool)

    found: Any = crowded_intervals(Stub())  # type: ignore[arg-type]
    inside = {
        t for a, b in zip(found.start_ns.tolist(), found.end_ns.tolist(), strict=True) for t in range(a, b)
    }
    assert inside == {t for t in range(100) if sum(a <= t < b for a, b in intervals) >= 2}


def test_a_job_is_its_devices_together(tmp_path: Path) -> None:
    one = planted().measure(tmp_path)
    other = Plan()
    for _ in range(20):
        other.slot(12_000)
    for _ in range(4):
        other.slot(16_000, comm=16_000, comm_blocks=16)
    silent = Plan()
    silent.slot(10_000)
    job = job_contention([silent.measure(tmp_path), one, other.measure(tmp_path)])
    (norm,) = job.signatures
    assert (job.state, job.devices, norm.devices) == ("measured", 2, 2)
    # Medians alone 10 us of 10 samples and 12 us of 20; beside 15 us of 12 and 16 us of 4.
    assert (norm.alone_ns, norm.samples_alone) == (12_000, 30)
    assert (norm.contended_ns, norm.samples_contended) == (15_000, 16)
    assert (norm.slower_devices, norm.undecided_devices) == (1, 1)
    assert norm.cost == job.norm_cost == ContentionCost(low_ns=60_000, mid_ns=60_000, high_ns=60_000)
    assert (job.suggested_sm_margin, job.occupied_blocks) == (24, 24)
    nothing = job_contention([silent.measure(tmp_path)])
    assert (nothing.state, nothing.stalled_starts, nothing.suggested_sm_margin) == (
        "not_measured",
        None,
        None,
    )
    assert nothing.reason == nothing.margin_reason == "no communication kernel ran on this device"
    assert job_contention([]).reason == "there is no device"


@pytest.mark.parametrize(
    ("name", "family", "element_type"),
    [
        (NORM, "transformer_engine", "bf16"),
        ("rmsnorm_bwd_tuned_kernel", "transformer_engine", ""),
        ("void cuApplyLayerNorm<float, float, c10::Half>(x)", "apex", "f16"),
        ("void layer_norm::ln_fwd_kernel<layer_norm::Kernel_traits<float>>(x)", "apex", "f32"),
        ("void cudnn::bn_bw_1C11_singleread<float, 512, true>(x)", "cudnn", "f32"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<double>(x)", "torch", "f64"),
        ("triton_red_fused_native_layer_norm_3", "inductor", ""),
        ("_rms_norm_fwd_kernel", "triton", ""),
        ("void vllm::rms_norm_static_fp8_quant_kernel<c10::BFloat16>(x)", "inference", "f8"),
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn", "cublas", "bf16"),
        ("nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NNT", "cublas", ""),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu>(x)", "cutlass", "bf16"),
        ("my_norm", "other", ""),
    ],
)
def test_what_a_name_says(name: str, family: str, element_type: str) -> None:
    assert (family_of(name), element_type_of(name)) == (family, element_type)


def test_the_list_is_bounded_and_the_cost_is_not(tmp_path: Path) -> None:
    plan = Plan()
    for grid in range(1, 71):
        for _ in range(8):
            plan.slot(10_000, grid=grid)
            plan.slot(10_000 + 100 * grid, grid=grid, comm=90_000)
    found = plan.measure(tmp_path)
    assert len(found.signatures) == 64
    costly: list[DeviceContendedKernel] = list(found.signatures)
    assert [k.grid_blocks for k in costly[:3]] == [70, 69, 68]
    # Those of 5 % and more: grids 5 to 70, 8 x 100 ns x grid each.
    assert found.norm_cost is not None
    assert found.norm_cost.mid_ns == 800 * sum(range(5, 71))
