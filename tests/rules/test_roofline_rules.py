"""PD410 to PD413: GEMM sizes, SMs without blocks, operators below the roofline, memory-bound kernels.

A GEMM of [m, k] x [k, n] is 2 m k n FLOPs; an H100 does 989 TFLOP/s in BF16.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.results.efficiency import OperatorEfficiency
from perfdoc.rules.engine.case import Case
from perfdoc.rules.facts.precision import in_fp8_saved_frac
from perfdoc.rules.facts.roofline import of_roofline
from tests.analyzers.shape_plan import BF16, GEMM, ShapePlan
from tests.rules.cases import case_of, evidence_of, gain_of, predicting, result
from tests.rules.examples import example
from tests.rules.laid import H100, MUL, SILU, given, laid

STEP_US = 1_000


def multiplying(
    folder: Path, *gemms: tuple[int, int, int, int], blocks: int = 264, steps: int = 2, gpu: str = H100
) -> Case:
    """Steps of 1 ms on a GPU of GEMMs (m, k, n, duration in us) and a copy that fills the rest."""
    plan = ShapePlan()
    for step in range(steps):
        host, end = step * STEP_US, (step + 1) * STEP_US
        plan._row("user_annotation", f"ProfilerStep#{step}", 1, host, end, {})
        plan.device_us = host + 10
        for m, k, n, duration in gemms:
            plan.operator("aten::mm", host, host + 4, dims=[[m, k], [k, n]], dtypes=[BF16, BF16])
            plan.kernel(GEMM, duration, host + 1)
            plan.events[-1]["args"] |= {"grid": [blocks, 1, 1], "block": [128, 1, 1]}
            host += 5
        plan.kernel("void at::native::unrolled_elementwise_kernel<direct_copy_kernel_cuda>(x)", 50, host + 1)
    device: dict[str, Any] = {"id": 0, "name": gpu, "totalGlobalMem": 85 << 30, "numSms": 132}
    path = folder / "planted.json"
    whole = {"traceEvents": plan.events, "baseTimeNanoseconds": 1, "deviceProperties": [device]}
    path.write_text(json.dumps(whole))
    return Case.of([measure_capture(path, WindowRequest())])


@example("PD410")
def an_odd_vocabulary(folder: Path) -> Case:
    """steps of 1 ms on H100; the output layer's GEMM of 1,024 x 1,024 x 50,257 in BF16 takes 400 µs, 106.6 µs
    of it at the peak."""
    return multiplying(folder, (1_024, 1_024, 50_257, 400))


def test_an_odd_vocabulary_loses_what_is_beyond_the_roofline(tmp_path: Path) -> None:
    """2 x 1,024 x 1,024 x 50,257 FLOPs are 106.57 us, the bytes' 62 us are less; 293.43 us are lost."""
    found = result("PD410", an_odd_vocabulary(tmp_path))
    assert found.state == "fires"
    assert "50,257" in found.reason
    assert evidence_of(found)[-1] == "26.6 %, 263 TFLOP/s"
    assert (gain_of(found).method, gain_of(found).high_ms) == ("ceiling", pytest.approx(0.2934, abs=1e-3))


def test_a_padded_vocabulary_passes(tmp_path: Path) -> None:
    assert result("PD410", multiplying(tmp_path, (1_024, 1_024, 50_304, 400))).state == "passes"


@example("PD411")
def a_nearly_empty_wave(folder: Path) -> Case:
    """steps of 1 ms on H100; a GEMM of 140 thread blocks on 132 SMs takes 200 µs, 76 µs of it at the peak."""
    return multiplying(folder, (1_024, 4_096, 8_960, 200), blocks=140)


def test_the_last_wave_costs_what_its_idle_sms_could_do(tmp_path: Path) -> None:
    """2 x 1,024 x 4,096 x 8,960 FLOPs are 76.0 us at the peak; 140 blocks fill 140 / 264 of the SMs' time, so
    that 76.0 x (264 / 140 - 1) = 67.3 us are lost: 6.7 % of the step."""
    found = result("PD411", a_nearly_empty_wave(tmp_path))
    assert found.state == "fires"
    assert gain_of(found).high_ms == pytest.approx(0.0673, abs=1e-3)
    full = multiplying(tmp_path, (1_024, 4_096, 8_960, 200), blocks=264)
    assert result("PD411", full).state == "passes"


@example("PD412")
def one_slow_gemm(folder: Path) -> Case:
    """steps of 1 ms on H100; of two GEMMs with 217 µs of FLOPs at the peak one takes 271, one 600."""
    return multiplying(folder, (4_096, 4_096, 6_400, 271), (4_096, 6_400, 4_096, 600))


def test_a_gemm_is_held_to_the_best_one_of_the_job(tmp_path: Path) -> None:
    """2 x 4,096 x 4,096 x 6,400 FLOPs are 217.1 us: 80.1 % and 36.2 % of the roofline. At 80.1 % the second
    one would take 271 us as well, 329 less."""
    found = result("PD412", one_slow_gemm(tmp_path))
    assert found.state == "fires"
    assert gain_of(found).high_ms == pytest.approx(0.329, abs=2e-3)
    even = multiplying(tmp_path, (4_096, 4_096, 6_400, 271), (4_096, 6_400, 4_096, 290))
    assert result("PD412", even).state == "passes"


def test_gemms_that_are_all_slow_are_held_to_the_roofline(tmp_path: Path) -> None:
    """2 x 4,096 x 4,096 x 6,400 FLOPs are 217.1 us at the peak: of 900, 24.1 % and 239 TFLOP/s, 682.9 more
    than at the roofline. Of 860 us they are 25.2 %. Odd sizes are PD410's."""
    found = result("PD412", multiplying(tmp_path, (4_096, 4_096, 6_400, 900)))
    assert (found.state, evidence_of(found)[0]) == ("fires", "24.1 %, 239 TFLOP/s")
    assert (gain_of(found).method, gain_of(found).high_ms) == ("ceiling", pytest.approx(0.6829, abs=1e-3))
    assert result("PD412", multiplying(tmp_path, (4_096, 4_096, 6_400, 860))).state == "passes"
    assert result("PD412", multiplying(tmp_path, (4_096, 4_096, 6_401, 900))).state == "passes"


def test_what_memory_bounds_is_told_without_the_format_of_its_arithmetic() -> None:
    """An addition of tensors in BF16 adds in FP32, which is not what it reads."""
    one = OperatorEfficiency(
        name="aten::add",
        kernel_class="elementwise",
        shapes="[[8],[8]]",
        dtype="fp32",
        source="shapes",
        calls=1,
        time_ns=1_000,
        flops=1e6,
        bytes=1e6,
        achieved_tflops=1e-3,
        achieved_tbps=1e-3,
        roofline_frac=0.5,
        bound="memory",
        lost_ns=0,
    )
    assert of_roofline(one)[0] == "aten::add [[8],[8]]: of its roofline"
    assert of_roofline(replace(one, bound="compute"))[0] == "aten::add [[8],[8]], fp32: of its roofline"


def test_short_calls_are_not_held_to_the_roofline(tmp_path: Path) -> None:
    """The bytes of a GEMM of 1,024 x 1,024 x 512 take 1.25 us, its FLOPs 1.09. Forty calls of 11 us spend the
    other 9.75 on starting; twenty of 22 do not: 440 - 20 x 1.25 us are beyond the roofline."""
    gemm = (1_024, 1_024, 512)
    assert result("PD412", multiplying(tmp_path, *[(*gemm, 11)] * 40)).state == "passes"
    found = result("PD412", multiplying(tmp_path, *[(*gemm, 22)] * 20))
    assert found.state == "fires"
    assert gain_of(found).high_ms == pytest.approx(0.415, abs=1e-3)


def test_sizes_that_are_tokens_of_other_gemms_are_not_odd(tmp_path: Path) -> None:
    """Of 2,001 tokens the gradient of a weight reaches 22.6 % of its roofline, 67.9 of 300 us; their forward
    GEMM, 80 %, tells that they lie along no row in memory."""
    found = result("PD412", multiplying(tmp_path, (2_001, 4_096, 4_096, 85), (4_096, 2_001, 4_096, 300)))
    assert found.state == "fires"
    assert gain_of(found).high_ms == pytest.approx(0.2321, abs=1e-3)


@pytest.mark.parametrize(("elements", "kernel_us", "state"), [(1_000, 6, "passes"), (100_000, 24, "fires")])
def test_lists_of_small_tensors_start_kernels_and_no_slow_one(
    elements: int, kernel_us: int, state: str, tmp_path: Path
) -> None:
    """A call on 320 tensors in 40 kernels: of 2.56 MB they take 240 us to begin and to end, and 0.8 to move
    them; of 256 MB 76 of 960 us."""
    plan = ShapePlan()
    dims, name = [[[elements]] * 320, []], "multi_tensor_apply_kernel<BinaryOpScalarFunctor<float, 1, 1, 0>>"
    for step in range(2):
        plan._row("user_annotation", f"ProfilerStep#{step}", 1, step * STEP_US, (step + 1) * STEP_US - 1, {})
        types, at = ["TensorList", "Scalar"], step * STEP_US
        plan.operator("aten::_foreach_mul_", at, at + 50, dims=dims, dtypes=types, values=["", ""])
        plan.device_us = max(plan.device_us, at + 10)
        for i in range(40):
            plan.kernel(f"void at::native::(anonymous namespace)::{name}(int)", kernel_us, at + 1 + i)
    device = {"id": 0, "name": H100, "totalGlobalMem": 85 << 30, "numSms": 132}
    path = tmp_path / "planted.json"
    path.write_text(json.dumps({"traceEvents": plan.events, "deviceProperties": [device]}))
    assert result("PD412", Case.of([measure_capture(path, WindowRequest())])).state == state


@example("PD413")
def three_kernels_between_gemms(folder: Path) -> Case:
    """steps of 1 ms with 400 µs of GEMMs, and between two of them three element-wise kernels of 100 µs."""
    return case_of(folder, laid((GEMM, 200), (MUL, 100), (SILU, 100), (MUL, 100), (GEMM, 200)))


def test_a_run_of_small_kernels_could_take_the_time_of_one(tmp_path: Path) -> None:
    found = result("PD413", three_kernels_between_gemms(tmp_path))
    assert (found.state, found.level) == ("fires", "information")
    assert gain_of(found).high_ms == pytest.approx(0.2)
    apart = laid((GEMM, 200), (MUL, 100), (GEMM, 200), (SILU, 100), (GEMM, 200), (MUL, 100))
    assert result("PD413", case_of(tmp_path, apart)).state == "passes"


@pytest.mark.parametrize(("copy_us", "state"), [(60, "fires"), (40, "passes")])
def test_copies_alone_between_products_are_told(copy_us: int, state: str, tmp_path: Path) -> None:
    """Two of 60 us in a step of 1 ms, each of it cast for the GEMM behind it: 120 us at most, and nothing
    beside them to be fused with."""
    copy = ("void at::native::unrolled_elementwise_kernel<direct_copy_kernel_cuda>(x)", copy_us)
    found = result("PD413", case_of(tmp_path, laid(copy, (GEMM, 300), copy, (GEMM, 300))))
    assert found.state == state
    assert state == "passes" or gain_of(found).high_ms == pytest.approx(0.12)


def test_fp8_halves_only_what_flops_bound(tmp_path: Path) -> None:
    """GEMMs of 460 us each in a step of 1 ms. 4,096 x 4,096 x 4,096 is bound by FLOPs, 138.96 us against the
    bytes' 30.0: half goes. 64 x 4,096 x 4,096 is bound by bytes, 10.3 us against 2.2: nothing goes. 1,024 x
    1,024 x 1,024: 2.171 us against 1.878, so that 0.135 of it goes."""
    large, thin, middle = (4096, 4096, 4096, 460), (64, 4096, 4096, 460), (1024, 1024, 1024, 460)

    def gain(*gemms: tuple[int, int, int, int]) -> float | None:
        found = result("PD401", given(multiplying(tmp_path, *gemms), bf16=True))
        assert found.state in ("fires", "passes")
        return None if found.gain is None else found.gain.high_ms

    assert gain(large, large) == pytest.approx(0.46, abs=1e-3)
    assert gain(large, thin) == pytest.approx(0.23, abs=1e-3)
    assert gain(large, middle) == pytest.approx(0.23 + 0.46 * 0.135, abs=1e-3)
    assert gain(thin, thin) is None
    few = predicting(given(multiplying(tmp_path, large, thin), bf16=True), fp8_gemm=(0.2, 0.28, 0.36))
    bounded = result("PD401", few).gain
    assert bounded is not None
    assert (bounded.method, bounded.key) == ("ceiling", "fp8_gemm")
    assert bounded.high_ms == pytest.approx(0.23, abs=1e-3)


def test_fp8_takes_nothing_of_gemms_in_fp32(tmp_path: Path) -> None:
    """Two GEMMs of 460 us a step, the second of which is in FP32: 230 us go at most."""
    large, other = (4096, 4096, 4096, 460), (4096, 4096, 4032, 460)
    case = given(multiplying(tmp_path, large, other), bf16=True)
    (capture,) = case.captures
    (rank,) = capture.ranks
    operators = [replace(o, dtype="fp32") if "4032" in o.shapes else o for o in rank.efficiency.operators]
    assert sum(o.dtype == "fp32" for o in operators) == 1
    rank = replace(rank, efficiency=replace(rank.efficiency, operators=operators))
    found = result("PD401", replace(case, captures=[replace(capture, ranks=[rank])]))
    shown = {e.label: e.value for e in found.evidence}
    assert shown["share of it that FP8 could halve, by shapes and formats"] == "50.0 %"
    assert (found.state, in_fp8_saved_frac(case, rank)) == ("fires", pytest.approx(0.25, abs=1e-3))
    assert gain_of(found).high_ms == pytest.approx(0.23, abs=1e-3)


@pytest.mark.parametrize("code", ["PD410", "PD411", "PD412"])
def test_without_shapes_it_says_how_to_record_them(code: str, tmp_path: Path) -> None:
    found = result(code, case_of(tmp_path, laid((GEMM, 400))))
    assert found.state == "skipped"
    assert "record_shapes" in found.reason
