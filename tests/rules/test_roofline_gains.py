"""Gains of PD410 to PD413 by replay: kernels at their bound, and never more than what they lose."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.diagnose.diagnosis import diagnose
from perfdoc.results import Diagnosis
from perfdoc.results.replay import Gain
from perfdoc.results.rules import RuleResult
from perfdoc.rules.facts.roofline import most_by_replay
from perfdoc.simulator.replay.unedited import replay_and_keep
from tests.analyzers.shape_plan import BF16, FP32, GEMM, ShapePlan
from tests.rules.cases import case_of, predicting, result
from tests.rules.laid import H100, MUL, laid
from tests.rules.test_roofline_rules import multiplying

STEP_US = 1_000
COPY = "void at::native::unrolled_elementwise_kernel<direct_copy_kernel_cuda>(x)"


def diagnosed(
    folder: Path, *kernels: Any, blocks: int = 264, waits: bool = True, slowed: bool = False
) -> Diagnosis:
    """Two steps of 1 ms on an H100: GEMMs (m, k, n, us), other operators (name, us, dims of inputs in FP32,
    kernel) and other kernels (name, us), launched 5 us apart. At a step's end the host waits for the
    device, or does not. With 200 us of idle time behind its work and more, the first one is measured alone,
    which has that wait. slowed: whether recording shapes counts as slowing the host, as it does."""
    plan = ShapePlan()
    for step in range(2):
        host, end = step * STEP_US, (step + 1) * STEP_US
        plan._row("user_annotation", f"ProfilerStep#{step}", 1, host, end, {})
        plan.device_us = host + 10
        for kernel in kernels:
            if len(kernel) == 4 and isinstance(kernel[0], str):
                operator, us, dims, name = kernel
                plan.operator(
                    operator, host, host + 4, dims=dims, dtypes=[FP32 if d else "Scalar" for d in dims]
                )
                plan.kernel(name, us, host + 1)
            elif len(kernel) == 4:
                m, k, n, us = kernel
                plan.operator("aten::mm", host, host + 4, dims=[[m, k], [k, n]], dtypes=[BF16, BF16])
                plan.kernel(GEMM, us, host + 1)
                plan.events[-1]["args"] |= {"grid": [blocks, 1, 1], "block": [128, 1, 1]}
            else:
                plan.kernel(kernel[0], kernel[1], host + 1)
            host += 5
        if waits:
            plan._row("cuda_runtime", "cudaDeviceSynchronize", 1, host, plan.device_us + 2, {})
    device = {"id": 0, "name": H100, "totalGlobalMem": 85 << 30, "numSms": 132}
    path = folder / "planted.json"
    whole = {"traceEvents": plan.events, "baseTimeNanoseconds": 1, "deviceProperties": [device]}
    path.write_text(json.dumps(whole))
    capture = measure_capture(path, WindowRequest(), also=replay_and_keep)
    assert capture.slowed_by
    return diagnose([capture if slowed else replace(capture, slowed_by=())])


def rule(found: Diagnosis, code: str) -> RuleResult:
    return next(r for r in found.rules if r.code == code)


def accepted(found: Diagnosis) -> list[str]:
    assert found.combined is not None
    return found.combined.accepted


def bound(found: Diagnosis, code: str) -> Gain:
    """The upper bound of a rule that fires, by replay."""
    gain = rule(found, code).gain
    assert gain is not None
    assert (gain.method, gain.low_ms, gain.mid_ms) == ("ceiling", 0, None)
    assert "by replay" in gain.assumptions[0]
    return gain


def test_an_odd_gemm_without_peers_is_held_to_its_roofline(tmp_path: Path) -> None:
    """Each step 400 us of 1,024 x 1,024 x 50,257 in BF16, 106.57 at the peak, and 50 of a copy. Where the
    host waits for the device, 293.4 us a step are gained, which is what it loses; where it launches the
    next step at 1,000 us whatever the device does, nothing is."""
    gemm = (1_024, 1_024, 50_257, 400)
    waiting = bound(diagnosed(tmp_path, gemm, (COPY, 50)), "PD410")
    assert waiting.high_ms == pytest.approx(0.2934, abs=1e-3)
    paced = diagnosed(tmp_path, gemm, (COPY, 50), waits=False)
    assert bound(paced, "PD410").high_ms == pytest.approx(0, abs=2e-3)
    # The host may be as early without the recording of shapes: all of it is the bound.
    slowed = rule(diagnosed(tmp_path, gemm, (COPY, 50), waits=False, slowed=True), "PD410").gain
    assert slowed is not None
    assert slowed.high_ms == pytest.approx(0.2934, abs=1e-3)
    (prediction,) = [p for p in paced.analyses.gains.predictions if p.key == "padded_gemms"]
    assert prediction.left_out
    assert "padded_gemms" not in accepted(paced)


def test_an_odd_gemm_beside_even_ones_is_predicted(tmp_path: Path) -> None:
    """A GEMM of 217.08 us at the peak takes 271.35: 80 %. Of 50,257 columns, 106.57 us at the peak, 400: at
    80 %, with seven columns more, it takes 106.59 / 0.8 = 133.2, 266.8 us less, half of that unsure."""
    found = diagnosed(tmp_path, (4_096, 4_096, 6_400, 271), (1_024, 1_024, 50_257, 400), (COPY, 50))
    gain = rule(found, "PD410").gain
    assert gain is not None
    assert (gain.method, gain.key) == ("replay", "padded_gemms")
    assert gain.mid_ms == pytest.approx(0.2670, abs=1e-3)
    assert gain.low_ms == pytest.approx(0.2670 / 2, abs=2e-3)
    assert any(o.codes == ["PD410"] and o.kind == "predicted" for o in found.opportunities)


def test_padding_gains_nothing_where_even_sizes_are_as_slow(tmp_path: Path) -> None:
    """27 % of the roofline both."""
    found = diagnosed(tmp_path, (1_024, 1_024, 50_304, 400), (1_024, 1_024, 50_257, 400), (COPY, 50))
    assert rule(found, "PD410").state == "passes"


def test_idle_sms_by_replay(tmp_path: Path) -> None:
    """140 blocks on 132 SMs: 76.0 us at the peak lose 76.0 x (264 / 140 - 1) = 67.3 a step; nothing is gained
    where the host launches the next step when it does, whatever the device does."""
    gemm = (1_024, 4_096, 8_960, 200)
    whole = bound(diagnosed(tmp_path, gemm, blocks=140), "PD411")
    assert whole.high_ms == pytest.approx(0.0673, abs=1e-3)
    paced = bound(diagnosed(tmp_path, gemm, blocks=140, waits=False), "PD411")
    assert paced.high_ms == pytest.approx(0, abs=2e-3)


def test_gemms_at_the_rate_of_the_best_by_replay(tmp_path: Path) -> None:
    """217.1 us at the peak each, 80.1 % and 36.2 % of it: the second is 329 us faster at 80.1 %."""
    gemms = (4_096, 4_096, 6_400, 271), (4_096, 6_400, 4_096, 600)
    assert bound(diagnosed(tmp_path, *gemms), "PD412").high_ms == pytest.approx(0.329, abs=2e-3)
    paced = bound(diagnosed(tmp_path, *gemms, waits=False), "PD412")
    assert paced.high_ms == pytest.approx(0.329 / 2, abs=2e-3)


def test_fused_runs_by_replay(tmp_path: Path) -> None:
    """Three kernels of 100, 120 and 100 us between GEMMs of 200: the one of 120 stays, 200 us less a step.
    Where the host does not wait, the two launches alone, 5 us each, that it no longer makes."""
    run = ((MUL, 100), (MUL, 120), (MUL, 100))
    gemm = (4_096, 4_096, 4_096, 200)
    found = diagnosed(tmp_path, gemm, *run, gemm)
    assert bound(found, "PD413").high_ms == pytest.approx(0.2, abs=2e-3)
    paced = bound(diagnosed(tmp_path, gemm, *run, gemm, waits=False), "PD413")
    assert paced.high_ms == pytest.approx(0.01, abs=2e-3)
    assert "fused_runs" not in accepted(found)


def test_fused_runs_gain_launches_beyond_kernels(tmp_path: Path) -> None:
    """Three kernels of 50 us lose 100 a step; a replay that takes launches away gains 0.455 ms."""
    case = case_of(tmp_path, laid((GEMM, 100), (MUL, 50), (MUL, 50), (MUL, 50), (GEMM, 700)))
    gain = result("PD413", predicting(case, fused_runs=(0.45, 0.455, 0.46))).gain
    assert gain is not None
    assert (gain.method, gain.high_ms) == ("ceiling", 0.46)
    assert any("launches" in said for said in gain.assumptions)


def test_a_rank_alone_gains_no_more_than_it_loses(tmp_path: Path) -> None:
    """293.4 us a step are lost; a replay of one rank that gains 0.5 ms gains something else too."""
    case = multiplying(tmp_path, (1_024, 1_024, 50_257, 400))
    gain = most_by_replay(
        predicting(case, padded_gemms=(0.4, 0.5, 0.6)),
        "padded_gemms",
        lambda r: r.window.steps * 293_400,
        "x",
    )
    assert gain is not None
    assert gain.high_ms == pytest.approx(0.2934)


def test_an_unfused_norm_loses_the_traffic_of_its_chain(tmp_path: Path) -> None:
    """RMSNorm of 4,096 x 4,096 in FP32 written in PyTorch, 67.11 MB a tensor, 20.03 us at 3.35 TB/s. The
    power and the two products read one and write one, 40.06 us each, the mean reads one, 20.03: 140.2 us a
    step are HBM's. The chain takes 179 us: all but its longest kernel's 50, fusing could save."""
    x, row, weight = [4_096, 4_096], [4_096, 1], [4_096]
    each = "void at::native::vectorized_elementwise_kernel<4, at::native::{}<float>>(int)"
    mean = "void at::native::reduce_kernel<512, 1, at::native::MeanOps<float>>(x)"
    chain = (
        ("aten::pow", 50, [x, []], each.format("pow_tensor_scalar_kernel_impl")),
        ("aten::mean", 25, [x, [], [], []], mean),
        ("aten::add", 2, [row, [], []], each.format("CUDAFunctorOnSelf_add")),
        ("aten::rsqrt", 2, [row], each.format("rsqrt_kernel_cuda")),
        ("aten::mul", 50, [x, row], each.format("MulFunctor")),
        ("aten::mul", 50, [weight, x], each.format("MulFunctor")),
    )
    gemm = (4_096, 4_096, 4_096, 200)
    found = diagnosed(tmp_path, gemm, *chain, gemm)
    lost = {loss.cause: loss.total_ns for loss in found.analyses.kernel_efficiency.losses}
    assert lost["memory_bound"] == pytest.approx(140_200, rel=0.01)
    assert found.analyses.kernel_efficiency.fusible_ns == 129_000
    assert bound(found, "PD413").high_ms == pytest.approx(0.129, abs=2e-3)
