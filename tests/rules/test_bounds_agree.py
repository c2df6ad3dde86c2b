"""One upper bound of a change: the smallest that is known, the same in the rule and in the predictions."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from perfdoc.knobs.knob import Value
from perfdoc.results.replay import Gain
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.gain import KEEPS_UP, bounded
from perfdoc.rules.engine.registry import judge
from perfdoc.simulator.replay.proposals import CHANGES
from tests.analyzers.tiny import ALL_REDUCE, GEMM
from tests.captures.timeline import TimelineBuilder
from tests.rules.cases import STEP_US, US, case_of, evidence_of, gain_of, predicting, result, with_predictions
from tests.rules.laid import H100, given, laid

A100, RTX_3090 = "NVIDIA A100-SXM4-40GB", "NVIDIA GeForce RTX 3090"
SGEMM = "ampere_sgemm_128x64_tn"
TF32 = "cutlass_80_tensorop_s1688gemm_128x128_16x5_tn_align4"
BF16: dict[str, Value] = {"bf16": True, "fp8": None}
Measured = Callable[..., Case]


@pytest.fixture
def measured(tmp_path: Path) -> Measured:
    return lambda *kernels, gpu=H100: case_of(tmp_path, laid(*kernels, gpu=gpu))


def withheld(case: Case, key: str, most_ms: float) -> Case:
    """With a prediction that is withheld: this upper bound is left of it."""
    known = predicting(case, **{key: (0.0, 0.0, most_ms)}).gains.predictions[0]
    gain = Gain(
        low_ms=0.0, mid_ms=None, high_ms=most_ms, method="ceiling", assumptions=["it is off"], key=key
    )
    return with_predictions(case, [replace(known, gain=gain, mid_ns=None, reason="it is off")])


def most_of(case: Case, code: str, key: str) -> tuple[float | None, float | None]:
    """(bound of the rule, bound of the prediction), in ms."""
    judged = judge(case)
    (rule,) = [r for r in judged.results if r.code == code]
    (prediction,) = [p for p in judged.predictions if p.key == key]
    assert (gain_of(rule).method, prediction.gain.method) == ("ceiling", "ceiling")
    assert prediction.high_ns == round((prediction.gain.high_ms or 0.0) * 1e6)
    return gain_of(rule).high_ms, prediction.gain.high_ms


def test_a_withheld_prediction_never_widens_a_bound(measured: Measured) -> None:
    """400 of 1,000 us in FP32 on an H100, whose 16-bit tensor cores are 14.8 times as fast: at most 400 x
    13.8 / 14.8 = 373 us, whether 0.94 or 0.38 ms are left of the prediction; and 0.3 ms where it says so."""
    own = 0.4 * 13.8 / 14.8
    case = measured((SGEMM, 400))
    for left, most in ((0.94, own), (0.38, own), (0.3, 0.3)):
        assert most_of(withheld(case, "bf16_gemm", left), "PD407", "bf16_gemm") == (
            pytest.approx(most, rel=1e-4),
            pytest.approx(most, rel=1e-4),
        )


def test_nor_one_of_advice(measured: Measured) -> None:
    """FP8 halves the 334 us of GEMMs: 167, not the 0.9 ms that are left of the prediction."""
    case = given(withheld(measured((GEMM, 334)), "fp8_gemm", 0.9), **BF16)
    assert most_of(case, "PD401", "fp8_gemm") == (pytest.approx(0.167), pytest.approx(0.167))


def test_the_smaller_bound_or_the_prediction() -> None:
    small, large = (
        Gain(low_ms=0.0, mid_ms=None, high_ms=ms, method="ceiling", assumptions=[], key=key)
        for ms, key in ((1.0, ""), (2.0, "some"))
    )
    predicted = Gain(low_ms=2.0, mid_ms=3.0, high_ms=4.0, method="replay", assumptions=[], key="some")
    assert bounded(large, small) == replace(small, key="some")
    assert bounded(replace(small, key="some"), large) == replace(small, key="some")
    assert bounded(predicted, small) == predicted
    assert (bounded(None, small), bounded(large, None), bounded(None, None)) == (small, large, None)


def test_a_bound_that_the_replay_of_a_slowed_host_contradicts_says_its_condition(measured: Measured) -> None:
    """The replay gains 1 us at most, since GEMMs wait for launches that the capture itself makes late: the
    bound of 373 us takes a host that keeps up without the profiler, and says so in rule, ranking and
    predictions. It counts for half of it."""
    case = predicting(measured((SGEMM, 400)), bf16_gemm=(0.0, 0.0, 0.001))
    slowed = replace(case, captures=[replace(case.captures[0], slowed_by=("an NVTX range an operator",))])
    assert most_of(slowed, "PD407", "bf16_gemm")[0] == pytest.approx(0.4 * 13.8 / 14.8, rel=1e-4)
    judged = judge(slowed)
    (row,) = [o for o in judged.opportunities if "PD407" in o.codes]
    assert row.conditions == [KEEPS_UP]
    assert KEEPS_UP in gain_of(row).assumptions
    assert row.worth_frac == pytest.approx(0.4 * 13.8 / 14.8 / 2, rel=1e-3)
    # Where nothing slows the host, the replay holds.
    (prediction,) = judge(case).predictions
    assert prediction.gain.is_predicted


def test_tf32_is_told_from_fp32(measured: Measured) -> None:
    """An A100 multiplies 16 bits twice as fast as TF32, and 16 times as fast as FP32: of 400 us in TF32 200
    go, of 160 in FP32 150. Only the latter would be faster in TF32."""
    both = result("PD407", measured((TF32, 400), (SGEMM, 160), gpu=A100))
    assert gain_of(both).high_ms == pytest.approx(0.350)
    assert evidence_of(both) == ["56.0 %", "560 µs", "400 µs", "160 µs"]
    assert "FP32 or TF32" in both.reason
    assert "allow TF32 for the GEMMs that run without it (160 µs)" in both.remedy
    narrow = result("PD407", measured((TF32, 400), gpu=A100))
    assert "run in TF32" in narrow.reason
    assert evidence_of(narrow) == ["40.0 %", "400 µs"]
    assert "allow TF32" not in narrow.remedy


@pytest.mark.parametrize(
    ("gpu", "named"),
    [(A100, True), (H100, True), (RTX_3090, False), ("NVIDIA GeForce RTX 3070 Ti", False)]
    + [("Tesla V100-SXM2-16GB", False), ("NVIDIA A10", True), ("NVIDIA L40", False)],
)
def test_tf32_is_named_where_it_is_faster(measured: Measured, gpu: str, named: bool) -> None:
    """GeForce chips and the L40 multiply TF32 as fast as FP32; before Ampere there is none."""
    remedy = result("PD407", measured((SGEMM, 400), gpu=gpu)).remedy
    assert ("allow TF32" in remedy) is named


@pytest.mark.parametrize(
    ("gpu", "types"),
    [
        ("Tesla V100-SXM2-32GB", ["torch.float16"]),
        ("NVIDIA GeForce RTX 2080 Ti", ["torch.float16"]),
        ("Quadro RTX 6000", ["torch.float16"]),
        ("Tesla T4", ["torch.float16"]),
        (A100, ["torch.bfloat16"]),
        (RTX_3090, ["torch.bfloat16"]),
        ("A GPU of next year", ["torch.bfloat16", "torch.float16"]),
    ],
)
def test_bf16_is_advised_where_the_gpu_multiplies_it(measured: Measured, gpu: str, types: list[str]) -> None:
    found = result("PD407", measured((SGEMM, 400), gpu=gpu))
    assert re.findall(r"torch\.b?float16", found.remedy) == types
    assert CHANGES["bf16_gemm"].titled() == "GEMMs, convolutions and attention in 16 bits"


def test_of_a_vendor_that_nobody_knows_both_formats_are_named(measured: Measured) -> None:
    case = measured((SGEMM, 400), gpu="MTT S5000")
    (capture,) = case.captures
    other = replace(case, captures=[replace(capture, program=replace(capture.program, vendor="other"))])
    named = re.findall(r"torch\.b?float16", result("PD407", other).remedy)
    assert named == ["torch.bfloat16", "torch.float16"]


def test_what_launching_delays_is_no_more_than_what_is_not_compute(tmp_path: Path) -> None:
    """Of each 1 ms step 400 us compute. Then one rank launches a reduction 300 us late, the other 450, in
    turn: both are in it until the step ends, 300 and 150. So 600 at most, and not 600 with the wait again."""
    reduction = "void vllm::cross_device_reduce_1stage<__half, 8>(x)"
    ranks = [TimelineBuilder(), TimelineBuilder()]
    for i, builder in enumerate(ranks):
        process = builder.process(pid=1000 + i)
        thread, device = process.thread(), process.device()
        for step in range(4):
            at = step * STEP_US * US
            thread.range("perfdoc.step", at, at + STEP_US * US)
            device.kernel(GEMM, at, at + 400 * US, launch=(thread, at, at + 1))
            late = at + (700 if step % 2 == i else 850) * US
            device.kernel(reduction, late, at + STEP_US * US, launch=(thread, late - 1, late))
    assert gain_of(result("PD201", case_of(tmp_path, *ranks))).high_ms == pytest.approx(0.6, rel=1e-3)


@pytest.mark.parametrize("in_turn", [True, False])
def test_copies_in_turn_cost_what_all_of_them_take(in_turn: bool, tmp_path: Path) -> None:
    """Two ranks copy for 10 ms each in every step, one after the other; the other's host waits meanwhile, and
    makes no call. Without copies a step is 20 ms shorter. Or they copy at once, and then each host works."""
    builders = [TimelineBuilder() for _ in range(2)]
    lanes = []
    for rank, builder in enumerate(builders):
        process = builder.process(pid=1000 + rank, rank=rank)
        lanes.append((builder, process.thread(), process.device()))
    at = 1_000_000
    for step in range(4):
        for rank, (_, thread, device) in enumerate(lanes):
            call = at
            for _ in range(40):  # 4 ms of compute, waited for
                device.kernel(GEMM, call + 5_000, call + 100_000, launch=(thread, call, call + 3_000))
                call += 100_000
            begin = at + 4_100_000 + rank * in_turn * 10_000_000
            copied = (thread, begin - 5_000, begin + 10_000_000, "cudaMemcpyAsync")
            device.copy("device_to_host", 1 << 28, begin, begin + 10_000_000, launch=copied)
        end = at + 24_200_000
        for _, thread, device in lanes:
            device.kernel(
                ALL_REDUCE, end, end + 200_000, stream=20, launch=(thread, end - 9_000, end - 6_000)
            )
            thread.api("cudaStreamSynchronize", end - 4_000, end + 202_000)
            thread.range(f"step {step}", at - 1_000, end + 205_000)
        at = end + 210_000
    case = case_of(tmp_path, *builders)
    found = result("PD204", case)
    assert found.gain is not None
    assert found.gain.high_ms is not None
    assert 19.9 <= found.gain.high_ms <= 21
    assert found.blames.startswith("Ranks copy one after the other") == in_turn
    assert ("in turn" in result("PD208", case).reason) == in_turn
