"""PD401 to PD403, PD406 and PD407: 16-bit products, FP8 that gains little, casts, clock, FP32 products."""

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.analyzers.kernel_class.number_format import format_of, is_wide
from perfdoc.analyzers.measure import measure_capture
from perfdoc.knobs.knob import Value
from perfdoc.rules.checks import pd401_bf16_gemms as pd401_bf16_products
from perfdoc.rules.checks import pd402_fp8_gains_little, pd403_fp8_casts, pd406_core_clock, pd407_fp32_gemms
from perfdoc.rules.engine.case import Case
from perfdoc.rules.facts.precision import fp8_on, saved_by_16_bits_ns
from tests.analyzers.tiny import GEMM
from tests.captures.timeline import one_gpu
from tests.rules.cases import case_of, evidence_of, gain_of, predicting, result, settings_of
from tests.rules.laid import CAST, FLASH, H100, dense, given, knowing, laid, starting_up
from tests.rules.test_slow_step import laid_out

BF16: dict[str, Value] = {"bf16": True, "fp8": None}
FP8: dict[str, Value] = {"fp8": "hybrid"}
NAMELESS = "gemmSN_TN_kernel"
"""A GEMM whose name tells no number format."""
SGEMM = "ampere_sgemm_128x64_tn"
Measured = Callable[..., Case]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """Steps of one kernel of so many of 1,000 us, and a gap; each measured once."""
    known: dict[tuple[str, int, int, str], Case] = {}

    def of(name: str, us: int, gap_us: int = 0, gpu: str = H100) -> Case:
        key = (name, us, gap_us, gpu)
        if key not in known:
            known[key] = case_of(tmp_path_factory.mktemp("x"), laid((name, us), gap_us=gap_us, gpu=gpu))
        return known[key]

    return of


def test_fp8_pays_where_linear_layers_take_a_third(measured: Measured) -> None:
    # Twice as fast, a third of a step makes it 1.2 times as fast.
    assert pytest.approx(1 / 3) == pd401_bf16_products.MIN_LINEAR_FRAC
    found = result("PD401", given(measured(GEMM, 334), **BF16))
    assert (found.state, found.level) == ("fires", "information")
    assert evidence_of(found) == ["33.4 %", "1.20 times as fast at most"]
    assert settings_of(found) == {"fp8": "hybrid", "fp8_recipe": "tensorwise"}
    assert (gain_of(found).method, gain_of(found).high_ms) == ("ceiling", pytest.approx(0.167))
    assert result("PD401", given(measured(GEMM, 333), **BF16)).state == "passes"


def test_the_cap_of_the_bound_is_said(tmp_path: Path) -> None:
    """Each of two stages computes 800 us of 1,100 and waits 200: with half of the one, and none of the other,
    600 us less, which is more than half of the step."""
    case = case_of(tmp_path, *laid_out([(1000, 0), (600, 0)] * 3, [(600, 0), (1000, 0)] * 3))
    case = given(replace(case, job=replace(case.job, facts=replace(case.job.facts, pp=2))), **BF16)
    gain = gain_of(result("PD401", case))
    assert gain.high_ms == pytest.approx(0.55)
    assert gain.assumptions[-1] == "at most half of the step"
    assert len(gain.assumptions) == 2


@pytest.mark.parametrize("other", ["void phi::funcs::Fill<float>(float)", "void at::native::fill<float>(x)"])
def test_16_bits_in_words_of_the_framework(other: str, tmp_path: Path) -> None:
    found = result("PD407", given(case_of(tmp_path, laid((SGEMM, 900), (other, 50)))))
    assert ("paddle.amp" in found.remedy, "torch." in found.remedy) == ("phi::" in other, "at::" in other)


def test_of_a_job_that_mixes_fp8_and_bf16_nobody_knows_which_layers_run_in_it(tmp_path: Path) -> None:
    """60 of 500 us of GEMMs are a tenth and more, and do less than half of the work."""
    fp8 = "sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n"
    mixed = case_of(tmp_path, laid((GEMM, 440), (fp8, 60)))
    (tmp_path / "few").mkdir()
    few = case_of(tmp_path / "few", laid((GEMM, 480), (fp8, 20)))
    assert [fp8_on(given(case)) for case in (mixed, few)] == [None, False]


@pytest.mark.parametrize(
    ("gpu", "recipe"),
    [("NVIDIA B200", "mxfp8"), ("NVIDIA GeForce RTX 5090", "tensorwise"), ("NVIDIA L40S", "tensorwise")],
)
def test_fp8_recipe_follows_the_gpu(measured: Measured, gpu: str, recipe: str) -> None:
    found = result("PD401", given(measured(GEMM, 800, gpu=gpu), **BF16))
    assert settings_of(found) == {"fp8": "hybrid", "fp8_recipe": recipe}


@pytest.mark.parametrize(
    ("gpu", "settings", "state"),
    [
        ("NVIDIA A100-SXM4-80GB", BF16, "not_applicable"),
        ("Some GPU", BF16, "skipped"),
        (H100, {}, "fires"),  # the names of the GEMMs tell fp16
        (H100, {"bf16": True}, "fires"),
        (H100, FP8, "not_applicable"),
    ],
)
def test_fp8_is_not_advised_where_nothing_is_known(
    measured: Measured, gpu: str, settings: dict[str, Value], state: str
) -> None:
    assert result("PD401", given(measured(GEMM, 800, gpu=gpu), **settings)).state == state


def test_fp8_needs_sizes_that_it_takes(measured: Measured) -> None:
    case = given(measured(GEMM, 800), **BF16)
    for shape, tp, state in (
        (dense(), 1, "fires"),
        (dense(hidden_size=1000), 1, "not_applicable"),
        (dense(ffn_hidden_size=96), 4, "not_applicable"),  # 24 on each rank
    ):
        assert result("PD401", knowing(case, model=shape, tp=tp)).state == state
    # MXFP8 scales blocks of 32: 1040 is 65 times 16, and no multiple of 32.
    odd = knowing(case, model=dense(hidden_size=1040), tp=1)
    assert result("PD401", odd).state == "fires"
    blackwell = given(measured(GEMM, 800, gpu="NVIDIA B200"), **BF16)
    assert result("PD401", knowing(blackwell, model=dense(hidden_size=1040), tp=1)).state == "not_applicable"
    # One sequence of 1,004 tokens, 125.5 times 8; two of them are 251 times 8.
    for batch, state in ((1, "not_applicable"), (2, "fires")):
        facts = {"model": dense(sequence_length=1004), "tp": 1, "cp": 1, "micro_batch_sequences": batch}
        assert result("PD401", knowing(case, **facts)).state == state


def test_the_host_comes_before_fp8(measured: Measured) -> None:
    edge = round(pd401_bf16_products.MAX_HOST_FRAC * 1000)
    waiting = result("PD401", given(measured(GEMM, 800, edge), **BF16))
    assert (waiting.state, "PD201" in waiting.reason) == ("passes", True)
    assert result("PD401", given(measured(GEMM, 800, edge - 1), **BF16)).state == "fires"


def test_fp8_that_can_gain_little(measured: Measured) -> None:
    # Products of 200 of 1,000 us took 400 us in 16 bits at most: 1.2 times as fast.
    assert pd402_fp8_gains_little.MIN_SPEED_UP_RATIO == 1.2
    assert result("PD402", given(measured(GEMM, 200), **FP8)).state == "passes"
    small = result("PD402", given(measured(GEMM, 199), **FP8))
    assert (small.state, small.level, "small part" in small.reason) == ("fires", "information", True)
    edge = round(pd402_fp8_gains_little.MIN_HOST_FRAC * 1000)
    host = result("PD402", given(measured(GEMM, 800, edge), **FP8))
    assert (host.state, "launch-bound" in host.reason, "PD201" in host.remedy) == ("fires", True, True)
    assert result("PD402", given(measured(GEMM, 800, edge - 1), **FP8)).state == "passes"
    assert result("PD402", given(measured(GEMM, 199), **BF16)).state == "not_applicable"
    assert result("PD402", given(measured(GEMM, 199))).state == "not_applicable"
    assert result("PD402", given(measured(NAMELESS, 199))).state == "skipped"
    assert result("PD401", given(measured(NAMELESS, 800))).state == "skipped"


def test_gemms_in_fp32(measured: Measured) -> None:
    """50 of 1,000 us at the edge. On an H100 16-bit tensor cores are 14.8 times as fast: at most 13.8 / 14.8
    of their time; of TF32, which tensor cores take, half; on a GPU that nobody knows no figure."""
    edge = round(pd407_fp32_gemms.MIN_FRAC * 1000)
    assert edge == 50
    found = result("PD407", given(measured(SGEMM, edge)))
    assert (found.state, found.level, evidence_of(found)) == ("fires", "problem", ["5.0 %", "50 µs"])
    assert (gain_of(found).method, gain_of(found).high_ms) == (
        "ceiling",
        pytest.approx(0.05 * 13.8 / 14.8, rel=1e-4),
    )
    assert "bfloat16" in found.remedy
    (rank,) = measured(SGEMM, edge).ranks
    (product,) = [k for k in rank.kernel_times if k.name == SGEMM]
    tf32 = replace(rank, kernel_times=[replace(product, name=SGEMM.replace("sgemm", "tf32_s1688gemm"))])
    assert saved_by_16_bits_ns(tf32) == product.total_ns / 2
    unknown = replace(rank, device=replace(rank.device, gpu_name="GPU of tomorrow"))
    assert saved_by_16_bits_ns(unknown) is None
    assert result("PD407", given(measured(SGEMM, edge - 1))).state == "passes"
    assert result("PD407", given(measured(GEMM, 800))).state == "not_applicable"
    assert result("PD407", given(measured(NAMELESS, 800))).state == "skipped"
    assert "PD201" not in found.remedy
    replayed = result("PD407", predicting(measured(SGEMM, 800), bf16_gemm=(0.5, 0.6, 0.7)))
    assert (gain_of(replayed).method, gain_of(replayed).mid_ms) == ("replay", 0.6)
    # Where the capture slows the host, the replay of faster GEMMs says too little.
    known = predicting(measured(SGEMM, 800), bf16_gemm=(0.0, 0.0, 0.1))
    slowed = replace(known, captures=[replace(known.captures[0], slowed_by=("NVTX of every operator",))])
    late_host = result("PD407", slowed).gain
    assert late_host is not None
    assert (late_host.method, late_host.high_ms, late_host.key) == (
        "ceiling",
        pytest.approx(0.8 * 13.8 / 14.8, rel=1e-4),
        "bf16_gemm",
    )
    late = result("PD407", given(measured(SGEMM, 100, 100)))
    assert "PD201" in late.remedy


CONVOLUTIONS = [
    ("cudnn_infer_volta_scudnn_128x64_relu_medium_nn_v1", True),
    ("void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int, int, int, float const*)", True),
    ("void wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>(int, int, int, float const*)", True),
    ("void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(cudnn::winograd)", True),
    ("sm80_xmma_dgrad_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16", True),
    ("igemm_fwd_gtcx2_nchw_fp32_bx0_ex1_bt128x128x16", True),
    ("igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32", False),
    ("miopenSp3AsmConv_v30_3_1_gfx9_fp16_dot2_edc_f2x3_stride1", False),
    ("void at::native::max_pool_forward_nchw<float, float>(int, float const*)", False),
    ("sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x32", False),
]


@pytest.mark.parametrize(("name", "fp32"), CONVOLUTIONS)
def test_convolutions_tell_their_format(name: str, fp32: bool) -> None:
    assert is_wide(name, KernelClass.CONVOLUTION) == fp32


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("Cijk_Ailk_Bljk_BBS_BH_MT64x64x64_MI16x16x16x1", "bf16"),
        ("Cijk_Alik_Bljk_HHS_BH_Bias_AS_SAV_UserArgs_MT16x32x128", "fp16"),
        ("Cijk_Ailk_Bljk_SB_MT64x64x64_MI16x16x16x1", "fp32"),
        ("Cijk_Ailk_Bljk_S_B_Bias_HAS_SAV_UserArgs_MT16x16x256", "fp32"),
        ("Cijk_Ailk_Bljk_DB_MT64x32x16_MI16x16x4x1", "fp64"),
        ("cutlass_80_tensorop_d884gemm_32x32_16x5_nn_align1", "fp64"),
        ("sm80_xmma_gemm_f64f64_f64f64_f64_nn_n_tilesize64x64x16_cta4_cublas", "fp64"),
        ("void gemmSN_NN_kernel<double, 128, 2, 4, 8, 5, 4, false>(cublasGemmSmallNParams<double>)", "fp64"),
        ("void gemmSN_NN_kernel<float, 128, 2, 4, 8, 5, 4, false>(cublasGemmSmallNParams<float>)", "fp32"),
        ("void GroupedGemmKernel<128, 256>(Params)", None),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize32x32x8_cublas", "fp32"),
    ],
)
def test_names_of_gemms_tell_their_format(name: str, shown: str | None) -> None:
    assert format_of(name) == shown


@pytest.mark.parametrize(
    ("gpu", "times"),
    [("NVIDIA GeForce RTX 4090", 2 * 64), (H100, 14.8), ("Tesla T4", 8 * 32), ("NVIDIA B200", None)],
)
def test_gemms_in_fp64(measured: Measured, gpu: str, times: float | None) -> None:
    """800 of 1,000 us. 16 bits on tensor cores are twice as fast as FP32 on a 4090, and that 64 times as fast
    as FP64; an H100 multiplies FP64 as fast as FP32; of a B200 the rate in FP64 is not listed here. TF32
    takes none of it."""
    found = result("PD407", measured("ampere_dgemm_64x64_nn", 800, gpu=gpu))
    assert (found.state, "run in FP64" in found.reason, ".double()" in found.remedy) == ("fires", True, True)
    assert "allow TF32" not in found.remedy
    assert (found.gain is None) == (times is None)
    if times is not None:
        assert gain_of(found).high_ms == pytest.approx(0.8 * (1 - 1 / times), rel=1e-3)


def test_gemms_in_fp64_beside_fp32(tmp_path: Path) -> None:
    """Beside 500 us in FP32, 300 in FP64 are not what most of it runs in."""
    mixed = result("PD407", case_of(tmp_path, laid((SGEMM, 500), ("ampere_dgemm_64x64_nn", 300))))
    assert ("run in FP32" in mixed.reason, ".double()" in mixed.remedy) == (True, True)
    assert evidence_of(mixed) == ["80.0 %", "800 µs", "300 µs"]


def test_fp32_convolutions_of_a_real_capture_count(shared_traces: Path) -> None:
    """Counted apart, from the file: kernels of cuBLAS and cuDNN that multiply, in five steps of 478 ms. 188
    ms are of convolutions, less 11 that pool or sum. A V100 has fp16 and no bf16."""
    path = shared_traces / "strangers" / "resnet50_fp32_v100.json.gz"
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    kernels = [e for e in events if e.get("cat") in ("Kernel", "kernel") and "dur" in e]
    parts = ("sgemm", "scudnn", "dgrad_engine", "wgrad_alg0_engine", "winograd", "implicit_convolve")
    times = {p: sum(e["dur"] for e in kernels if p in e["name"]) / 1e3 for p in parts}
    found = result("PD407", Case.of([measure_capture(path, WindowRequest())]))
    assert found.evidence[0].label.startswith("convolutions and GEMMs in FP32")
    share = float(found.evidence[0].value.removesuffix(" %"))
    assert sum(times.values()) - times["sgemm"] == pytest.approx(177, abs=12)
    assert share == pytest.approx(100 * sum(times.values()) / 478.3, abs=2.5)
    assert ("float16" in found.remedy, "bfloat16" in found.remedy) == (True, False)
    assert "channels_last" in found.remedy


def test_start_up_does_not_excuse_fp32(measured: Measured) -> None:
    """40 us of 60 in which something runs, and 940 of idle time."""
    case = given(measured(SGEMM, 40, 940))
    assert result("PD407", case).state == "passes"
    found = result("PD407", starting_up(case))
    assert (found.state, evidence_of(found)[0], found.gain) == ("fires", "66.7 %", None)
    assert "something ran" in found.evidence[0].label


def test_fp8_of_a_late_host_is_told_by_what_relieves_it(measured: Measured) -> None:
    """A gap of 60 of 1,000 us. What the host waits for is no matter of launching."""
    late = measured(GEMM, 800, 60)
    graphs: dict[str, Value] = {"cuda_graph_impl": "none", "recompute_granularity": None}
    dense_model: dict[str, Value] = {"num_moe_experts": None, "use_te_rng_tracker": True}
    found = result("PD402", given(late, **FP8, **graphs, **dense_model))
    assert settings_of(found) == {"cuda_graph_impl": "local"}
    assert [e.label for e in found.evidence][-2:] == ["median kernel", "median launch interval"]
    for waiting_us, state in ((10, "fires"), (11, "passes")):
        ranks = [
            replace(
                r, host=replace(r.host, idle_split=replace(r.host.idle_split, waiting_ns=2_000 * waiting_us))
            )
            for r in late.ranks
        ]
        case = replace(late, captures=[replace(late.captures[0], ranks=ranks)])
        assert result("PD402", given(case, **FP8)).state == state


def test_casts(measured: Measured) -> None:
    edge = round(pd403_fp8_casts.MIN_FRAC * 1000)
    settings: dict[str, Value] = {**FP8, "fp8_recipe": "mxfp8"}
    found = result("PD403", given(measured(CAST, edge), **settings))
    assert (found.state, found.level) == ("fires", "problem")
    assert evidence_of(found) == ["5.0 %", "50 µs", "mxfp8"]
    assert settings_of(found) == {"fp8_recipe": "tensorwise"}
    assert "accuracy" in found.advice[0].costs
    assert (gain_of(found).method, gain_of(found).high_ms) == ("ceiling", pytest.approx(0.05))
    assert result("PD403", given(measured(CAST, edge - 1), **settings)).state == "passes"
    assert result("PD403", given(measured(GEMM, 800), **settings)).state == "not_applicable"
    assert result("PD403", given(measured(CAST, edge), **BF16)).state == "skipped"


def test_casts_of_the_coarsest_recipe_get_no_other(measured: Measured) -> None:
    case = measured(CAST, 100)
    coarse = result("PD403", given(case, **FP8, fp8_recipe="tensorwise", fp8_param_gather=False))
    assert (coarse.state, coarse.advice, "PD507" in coarse.remedy) == ("fires", [], True)
    unknown = result("PD403", given(case))
    assert (unknown.state, unknown.level, unknown.advice) == ("fires", "information", [])
    shared: dict[str, Value] = {"fp8_param_gather": True, "reuse_grad_buf_for_mxfp8_param_ag": True}
    found = result("PD403", given(case, **FP8, **shared, fp8_recipe="mxfp8"))
    assert settings_of(found) == {"fp8_recipe": "tensorwise", "reuse_grad_buf_for_mxfp8_param_ag": False}


DEQUANT = "void kDequantizeBlockwise<__half, 512, 64, 8, (DataType_t)2>(float*, unsigned char*, float*)"
INT8 = "void kdequant_mm_int32_fp16<4, 512>(int*, float*, float*, __half*, __half*, int, int, int)"


@pytest.mark.parametrize("kernel", [DEQUANT, INT8])
def test_casts_of_weights_in_few_bits_are_none_to_fp8(kernel: str, measured: Measured) -> None:
    """bitsandbytes unpacks 4-bit weights, or casts products of 8-bit integers: no recipe of FP8 helps."""
    for settings in ({}, BF16):
        found = result("PD403", given(measured(kernel, 100), **settings))
        assert (found.state, found.level, gain_of(found).high_ms) == ("fires", "problem", pytest.approx(0.1))
        assert ("FP8" in found.action + found.reason + found.remedy, "recipe" in found.remedy) == (
            False,
            False,
        )
        assert "16 bits" in found.action
    assert result("PD403", given(measured(kernel, 49))).state == "passes"
    sage = result("PD403", given(measured("void QuantInt8Kernel<64u, 32u, false, __nv_bfloat16>", 100)))
    assert (sage.state, "weights" in sage.reason) == ("fires", False)  # of attention's queries and keys


def test_core_clock(measured: Measured) -> None:
    edge = round(pd406_core_clock.MIN_LINEAR_FRAC * 1000)
    found = result("PD406", measured(GEMM, edge))
    assert (found.state, found.level, "--vboost 1" in found.remedy) == ("fires", "information", True)
    assert result("PD406", measured(GEMM, edge - 1)).state == "passes"
    assert result("PD406", measured(FLASH, 900)).state == "passes"
    for gpu, state in (
        ("NVIDIA A100-SXM4-80GB", "not_applicable"),
        ("NVIDIA GeForce RTX 5090", "not_applicable"),
        ("Some GPU", "skipped"),
    ):
        assert result("PD406", measured(GEMM, 800, gpu=gpu)).state == state


def test_a_clock_that_is_limited(measured: Measured) -> None:
    case = measured(GEMM, 900)
    (capture,) = case.captures
    for lost_us, limited in ((20, False), (21, True)):
        ranks = []
        for rank in capture.ranks:
            by_class = [replace(rank.efficiency.by_class[0], losses_ns={"clock": lost_us * 1_000})]
            part = replace(rank.efficiency, compute_ns=1_000_000, by_class=by_class)
            ranks.append(replace(rank, efficiency=part))
        found = result("PD406", replace(case, captures=[replace(capture, ranks=ranks)]))
        assert (found.state, found.level) == ("fires", "information")
        assert ("vboost" in found.remedy) != limited
        assert ("power" in found.reason) == limited
        assert ("2.1 %" in evidence_of(found)) == limited


def test_kernels_inside_whole_graphs_are_not_guessed(tmp_path: Path) -> None:
    builder, thread, device = one_gpu()
    thread.range("perfdoc.step 0", 0, 1_000_000)
    device.kernel(GEMM, 0, 600_000, launch=(thread, 1, 2))
    device.graph_launch(1, 600_000, 1_000_000, launch=(thread, 3, 4))
    case = given(case_of(tmp_path, builder), **BF16, recompute_granularity="full")
    for code in ("PD401", "PD403", "PD404", "PD405", "PD406", "PD504"):
        found = result(code, case)
        assert (found.state, "as a whole" in found.reason) == ("skipped", True), code
    four = result("PD401", given(case_of(tmp_path, laid((GEMM, 900))), **BF16, fp4="e2m1"))
    assert (four.state, four.reason) == ("not_applicable", "GEMMs of linear layers run in fp4")


def test_start_up_makes_every_share_smaller(tmp_path: Path) -> None:
    """Products of 300 of 1,000 us and an idle host, as with FP8 that gains little; but what of it is start-up
    nobody knows."""
    whole = case_of(tmp_path, laid((GEMM, 300), gap_us=100, step="not a st"))
    known = case_of(tmp_path, laid((GEMM, 300), gap_us=100))
    for code, settings, state in (("PD401", BF16, "passes"), ("PD402", FP8, "fires")):
        assert result(code, given(known, **settings)).state == state
        unknown = result(code, given(whole, **settings))
        assert (unknown.state, "start-up" in unknown.reason) == ("skipped", True)
    # Products that fill most of it do so all the more without.
    most = case_of(tmp_path, laid((GEMM, 800), step="not a st"))
    assert result("PD401", given(most, **BF16)).state == "fires"
