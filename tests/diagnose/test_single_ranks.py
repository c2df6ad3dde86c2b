"""Captures of one rank whose truth is planted: weights in 4 bits, an optimizer on the CPU, MIG, XLA."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfdoc.analyzers.request import AnalysisRequest
from perfdoc.diagnose.measuring import analysed
from perfdoc.reports.html import render_html
from perfdoc.reports.outlook import next_capture
from perfdoc.reports.screen import render_screen
from perfdoc.results import Diagnosis
from perfdoc.traces.job_facts import JobFacts
from tests.analyzers.shape_plan import BF16, ShapePlan
from tests.analyzers.tiny import GEMM
from tests.captures.kineto import write_kineto
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import TimelineBuilder

US = 1_000
SDPA = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0"
ADAM = "void multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>(x)"
H100 = "NVIDIA H100 80GB HBM3"


class Host:
    """Launches what it lays, in steps, and waits for it at the end of each."""

    def __init__(self, *, step: str = "step {}", sms: int = 132) -> None:
        self.builder = TimelineBuilder()
        self.process = self.builder.process()
        self.thread, self.device = self.process.thread(), self.process.device(gpu_name=H100, sm_count=sms)
        self.step, self.steps = step, 0
        self.cpu = self.gpu = self.begun = US

    def _next(self, us: int) -> tuple[int, int, tuple[object, int, int]]:
        """Times of what the GPU does next, 1 us behind the last, and of its launch, which takes 2 us."""
        launched, self.cpu = self.cpu, self.cpu + 2 * US
        begin = max(self.gpu + US, self.cpu + US)
        self.gpu = begin + us * US
        return begin, self.gpu, (self.thread, launched, self.cpu)

    def run(self, *kernels: tuple[str, int]) -> None:
        for name, us in kernels:
            begin, end, launch = self._next(us)
            self.device.kernel(name, begin, end, launch=launch)  # type: ignore[arg-type]

    def copy(self, kind: str, mib: int, us: int) -> None:
        begin, end, launch = self._next(us)
        self.device.copy(kind, mib << 20, begin, end, launch=launch, pinned=True)  # type: ignore[arg-type]

    def wait(self, then_us: int = 0) -> None:
        """For the device; then work on the host."""
        self.thread.api("cudaDeviceSynchronize", self.cpu, max(self.cpu, self.gpu) + US)
        self.cpu = max(self.cpu, self.gpu) + (1 + then_us) * US

    def end(self, then_us: int = 0) -> None:
        self.wait(then_us)
        self.thread.range(self.step.format(self.steps), self.begun, self.cpu)
        self.steps, self.begun = self.steps + 1, self.cpu + US
        self.cpu = self.begun

    def said(self, folder: Path, *, kineto: bool = False, facts: JobFacts | None = None) -> Diagnosis:
        built = self.builder.build()
        path = (
            write_kineto(built, folder / "trace.json", self.process.pid)
            if kineto
            else write_nsys_sqlite(built, folder / "report.sqlite")
        )
        return analysed(AnalysisRequest(captures=(path,), jobs=1, given=facts or JobFacts())).diagnosis


def state_of(said: Diagnosis, code: str) -> str:
    return next(rule.state for rule in said.rules if rule.code == code)


def screen(said: Diagnosis) -> str:
    return " ".join(render_screen(said, report="x").split())


@pytest.mark.parametrize(
    ("unpacks", "state"),
    [
        ("void kDequantizeBlockwise<__nv_bfloat16, 512, 64, 8, 2>(float*, unsigned char*)", "not_applicable"),
        ("void vllm::gptq::reconstruct_exllama_4bit_kernel(unsigned int const*)", "not_applicable"),
        ("void quantize_mxfp8_kernel<x>(y)", "fires"),
    ],
)
def test_weights_in_4_bits_are_not_multiplied_in_fp8(tmp_path: Path, unpacks: str, state: str) -> None:
    """GEMMs take 300 of 361 us: FP8 would gain, were the weights not frozen in 4 bits."""
    host = Host()
    for _ in range(4):
        host.run(*[(unpacks, 30), (GEMM, 300), (SDPA, 30)] * 20, (ADAM, 100))
        host.end()
    said = host.said(tmp_path, kineto=True)
    assert state_of(said, "PD401") == state
    assert ("FP8" in screen(said)) == (state == "fires")


@pytest.mark.parametrize(
    ("name", "times"),
    [
        ("void kDequantizeBlockwise<float, 4096, 64, 4, 0>(float*, unsigned char*)", 20),
        ("_fp8_dequantize_blockwise_kernel", 20),
        ("void dequantize_weights_fp8(x)", 20),
        ("void kDequantizeBlockwise<__nv_bfloat16, 512, 64, 8, 2>(float*, unsigned char*)", 1),
    ],
)
def test_states_in_8_bits_and_a_single_unpacking_are_no_weights_in_4(
    name: str, times: int, tmp_path: Path
) -> None:
    host = Host()
    for _ in range(4):
        host.run(*[(GEMM, 300), (SDPA, 30)] * 20, *[(name, 1)] * times, (ADAM, 100))
        host.end()
    assert state_of(host.said(tmp_path, kineto=True), "PD401") == "fires"


def test_an_optimizer_on_the_cpu_is_not_saved_by_waiting_less(tmp_path: Path) -> None:
    """A step computes 6 ms, sends 256 MiB of gradients, works 12 ms on the host and takes weights back."""
    host = Host()
    for _ in range(5):
        host.run(*[(GEMM, 200)] * 30)
        for _ in range(8):
            host.copy("device_to_host", 32, 100)
        host.wait(then_us=12_000)
        for _ in range(8):
            host.copy("host_to_device", 32, 100)
        host.end()
    said = host.said(tmp_path)
    assert state_of(said, "PD208") == "passes"
    assert "Next: PD201" in screen(said)
    assert "(offload)" in screen(said)


@pytest.mark.parametrize("kineto", [False, True])
@pytest.mark.parametrize(("sms", "share"), [(132, 0.4), (60, None)])
def test_a_part_of_a_chip_has_no_peak_of_the_whole(
    tmp_path: Path, sms: int, share: float | None, kineto: bool
) -> None:
    """10 ms of GEMMs at 40 % of 989 TFLOP/s; a MIG instance has 60 of its 132 SMs, and the chip's name."""
    host = Host(sms=sms)
    for _ in range(4):
        host.run(*[(GEMM, 499)] * 20)
        host.end()
    facts = JobFacts(flops_per_step=round(0.4 * 989e12 * 0.01), dtype="fp16", world_size=1)
    said = host.said(tmp_path, kineto=kineto, facts=facts)
    assert said.mfu.value == (share and pytest.approx(share, rel=0.01))
    assert said.ranks[0].gpu.name == (H100 if share else f"{H100}, 60 of 132 SMs")


def test_xlas_norms_are_no_attention_where_attention_is_fused(tmp_path: Path) -> None:
    """XLA fuses a norm as triton_softmax: beside fused attention it is none of it. Without, it is softmax,
    and what is advised is of JAX."""
    for name, fused in (("fused", SDPA), ("apart", "gemm_fusion_dot_2")):
        host = Host(step="TSL:XlaModule:#hlo_module=jit_step,program_id={}#")
        for _ in range(4):
            host.run(*[(GEMM, 90), (fused, 50), ("gemm_fusion_dot_1", 50), ("triton_softmax_7_0", 60)] * 30)
            host.end()
        (folder := tmp_path / name).mkdir()
        said = host.said(folder)
        assert state_of(said, "PD405") == ("passes" if fused == SDPA else "fires")
        assert ("jax.nn.dot_product_attention" in screen(said)) == (fused != SDPA)
        assert "torch" not in screen(said)


def test_barriers_are_waits_and_no_messages(tmp_path: Path) -> None:
    """PyTorch's symmetric memory: 80 us in each barrier, of which nothing can be made larger."""
    host = Host()
    for _ in range(4):
        barrier = "c10d::symmetric_memory::barrier_kernel(unsigned int**, int, int, int, unsigned long)"
        host.run(*[(barrier, 80), (GEMM, 200)] * 120)
        host.end()
    said = host.said(tmp_path)
    (rule,) = (rule for rule in said.rules if rule.code == "PD100")
    assert (rule.state, "Barriers" in rule.remedy) == ("fires", True)
    assert "bucket" not in rule.remedy


def test_the_step_that_is_drawn_has_what_some_steps_lose(tmp_path: Path) -> None:
    """Of eight steps of 2 ms three take 10 ms more, which the mean has in part and the median has not."""
    for name, more_us in (("uneven", 10_000), ("even", 0)):
        host = Host()
        for i in range(8):
            host.run(*[(GEMM, 199)] * 10)
            host.end(then_us=more_us if i in (2, 4, 6) else 0)
        (folder := tmp_path / name).mkdir()
        said = host.said(folder)
        assert said.timeline is not None
        assert said.timeline.ranks[0].duration_ns == pytest.approx((2_000 + more_us) * US, rel=0.05)
        assert ("than the mean step" in render_html(said)) == bool(more_us)


@pytest.mark.parametrize("pause_us", [900, 6_000])
def test_a_servers_pause_between_short_iterations_is_no_launching(pause_us: int, tmp_path: Path) -> None:
    """vLLM decodes in 3 ms and schedules for 900 us: graphs would launch sooner what is not yet known. For
    6 ms: no loader feeds it either."""
    host = Host(step="execute_context_0(0)_generation_32(32)")
    for _ in range(20):
        host.run(*[("void vllm::rms_norm_kernel<x>(y)", 5), (GEMM, 55), (SDPA, 30)] * 32)
        host.end()
        host.begun = host.cpu = host.cpu + pause_us * US
    said = host.said(tmp_path, kineto=True)
    (rule,) = (rule for rule in said.rules if rule.code == "PD201")
    assert "between iterations" in rule.remedy
    assert "CUDA graphs" not in rule.remedy
    split = said.ranks[0].host.idle_split
    assert split.between_steps_ns == pytest.approx(19 * (pause_us + 2) * US, rel=0.05)
    assert said.ranks[0].ledger_ns.idle.data == 0


def test_a_server_that_reads_its_tokens_is_told_to_schedule_ahead(tmp_path: Path) -> None:
    """SGLang waits for each iteration and works 1.5 ms: its waits are not the user's."""
    host = Host(step="x {}")
    for _ in range(20):
        host.run(*[("void sglang::fused_gate_kernel<x>(y)", 5), (GEMM, 55), (SDPA, 30)] * 32)
        host.end(then_us=1_500)
    (rule,) = (rule for rule in host.said(tmp_path, kineto=True).rules if rule.code == "PD208")
    assert rule.state == "fires"
    assert "overlap scheduler" in rule.remedy
    assert "torch.cuda.synchronize" not in rule.remedy


@pytest.mark.parametrize(("loads", "whom"), [(True, "next batch"), (False, "the host")])
def test_what_passes_beside_the_only_step_leads(loads: bool, whom: str, tmp_path: Path) -> None:
    """A step of 100 GEMMs, 550 us each with 1 us between, waits 40 ms for its batch and works 5 ms at
    its end: 40 and 5 beside 55.1 ms of GEMMs. Of more steps that is the wait between."""

    def captured(folder: Path, steps: int) -> Diagnosis:
        host = Host(step="ProfilerStep#{}")
        for _ in range(steps):
            if loads:
                host.thread.range("next_batch", host.cpu, host.cpu + 40_000 * US)
            host.cpu += 40_000 * US
            host.run(*[(GEMM, 550)] * 100)
            host.end(then_us=5_000)
        folder.mkdir()
        return host.said(folder)

    one = captured(tmp_path / "one", 1)
    (rank,) = one.ranks
    assert rank.window.outside_ns == pytest.approx(45_000 * US, rel=1e-3)
    assert rank.window.outside_data_ns == (pytest.approx(40_000 * US, rel=1e-3) if loads else 0)
    assert rank.window.duration_ns == pytest.approx(55_100 * US, rel=1e-3)
    assert "45 ms" in one.verdict
    assert whom in one.verdict
    assert "Next: Capture several steps" in screen(one)
    three = captured(tmp_path / "three", 3)
    assert three.ranks[0].window.outside_ns == 0
    assert three.ranks[0].ledger_ns.idle.total > 80_000 * US


def test_what_is_lost_inside_the_only_step_is_worth_more_than_less_beside_it(tmp_path: Path) -> None:
    """30 ms beside 90 ms of which an all-reduce takes half: it leads, and so does what is advised of it."""
    host = Host(step="ProfilerStep#{}")
    host.cpu += 30_000 * US
    host.run(*[(GEMM, 450), ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", 450)] * 100)
    host.end()
    said = host.said(tmp_path)
    assert said.ranks[0].window.outside_ns == pytest.approx(30_000 * US, rel=1e-3)
    assert "communication" in said.verdict
    assert next_capture(said) == ""


@pytest.mark.parametrize(("before_ms", "leads"), [(15, False), (49, True)])
def test_what_the_only_step_computes_with_leads_where_it_is_worth_more(
    before_ms: int, leads: bool, tmp_path: Path
) -> None:
    """GEMMs in FP32 take 50 ms; in BF16 they take 45 ms less. What passes beside them is told either way."""
    host = Host(step="ProfilerStep#{}")
    host.cpu += before_ms * 1_000 * US
    host.run(*[("ampere_sgemm_128x64_nn", 1_000)] * 50)
    host.end()
    said = host.said(tmp_path, kineto=True)
    assert said.verdict.startswith("Beside") is leads
    assert f"waits {before_ms} ms" in f"{said.verdict} {said.why}"


@pytest.mark.parametrize("every", [4, 99])
def test_steps_that_an_evaluation_doubles_are_told_beside_the_mean(every: int, tmp_path: Path) -> None:
    """Twelve steps of 11 ms; behind every fourth but the last an evaluation takes as long again."""
    host = Host()
    for i in range(12):
        host.run(*[(GEMM, 550)] * (40 if i % every == every - 1 and i < 11 else 20))
        host.end()
    assert ("takes up to 2 times as long as the remaining 10" in host.said(tmp_path).why) is (every == 4)


def test_work_that_was_queued_hides_what_was_before_it(tmp_path: Path) -> None:
    """The first GEMM starts 50 ms behind its launch: the device did what the capture does not show."""
    host = Host(step="ProfilerStep#{}")
    host.cpu += 40_000 * US
    host.gpu = host.cpu + 50_000 * US
    host.run(*[(GEMM, 550)] * 10)
    host.end()
    assert host.said(tmp_path).ranks[0].window.outside_ns < 100 * US


@pytest.mark.parametrize("named", [True, False])
def test_an_engine_without_requests_is_at_no_fault(named: bool, tmp_path: Path) -> None:
    """vLLM gives four answers in five iterations of 3 ms, the first of which reads the question, and then is
    asked for nothing for 400 ms: three times between its steps, 63 ms in the mean, or with no step's name."""
    host = Host()
    for i in range(20):
        host.step = f"execute_context_{'0(0)' if i % 5 else '1(99)'}_generation_32(32)" if named else ""
        host.run(*[("void vllm::rms_norm_kernel<x>(y)", 5), (GEMM, 55), (SDPA, 30)] * 32)
        (host.end if named else host.wait)()
        host.begun = host.cpu = host.cpu + (400_000 if i % 5 == 4 else 40) * US
    said = host.said(tmp_path)
    assert "want of requests" in said.verdict
    assert "Next: PD201 Capture the engine under load" in screen(said)
    (rule,) = (rule for rule in said.rules if rule.code == "PD201")
    assert (rule.level, rule.gain) == ("information", None)
    assert "without_waits" not in {row.key for row in said.opportunities}


@pytest.mark.parametrize("asked", [True, False])
def test_a_tensorrt_server_that_nothing_asks_loses_nothing(asked: bool, tmp_path: Path) -> None:
    """50 answers of 30 kernels of 30 us, and for 1 to 4 ms nothing behind each; or launched 100 us apart."""
    host = Host()
    for i in range(50):
        host.copy("host_to_device", 1, 50)
        for _ in range(30):
            host.run(("sm80_xmma_fprop_implicit_gemm_f16f16_kernel_trt", 30))
            host.cpu += 98 * US if asked else 0
        host.wait(then_us=5 if asked else 1_000 + 61 * i)
    said = host.said(tmp_path)
    assert ("requests" in said.verdict) is not asked
    assert ("Capture the engine under load" in screen(said)) is not asked
    assert ("CUDA graph" in screen(said)) is asked
    assert asked or "without_waits" not in {row.key for row in said.opportunities}


@pytest.mark.parametrize("waits", [True, False])
def test_an_engine_that_is_late_in_every_step_does_not_want_for_requests(waits: bool, tmp_path: Path) -> None:
    """Six iterations of 32 requests each lose 70 ms: to 280 values that the host reads and works 250 us on,
    or to one pause of 70 ms behind each. No request is over after one iteration."""
    host = Host(step="execute_context_0(0)_generation_32(32)")
    for _ in range(6):
        for _ in range(280):
            host.run(("void vllm::rms_norm_kernel<x>(y)", 5), (GEMM, 55), (SDPA, 30))
            host.wait(then_us=250 if waits else 0)
        host.end()
        host.begun = host.cpu = host.cpu + (40 if waits else 70_000) * US
    said = host.said(tmp_path, kineto=True)
    assert "requests" not in said.verdict
    assert said.opportunities[0].codes == (["PD208"] if waits else ["PD201"])
    assert said.opportunities[0].gain is not None


@pytest.mark.parametrize(
    ("step", "wants"),
    [
        ("execute_context_0(0)_generation_32(32)", False),
        ("step[DECODE bs=32 toks=32]", False),
        ("decode[bs=32 tok=32]", False),
        ("execute_context_1(512)_generation_0(0)", True),
    ],
)
def test_an_engine_that_goes_on_with_the_same_answers_had_requests(
    step: str, wants: bool, tmp_path: Path
) -> None:
    """It pauses 70 ms behind every third of twelve iterations. One that begins an answer each time may have
    waited for it."""
    host = Host(step=step)
    for i in range(12):
        host.run(*[("void vllm::rms_norm_kernel<x>(y)", 5), (GEMM, 55), (SDPA, 30)] * 20)
        host.end()
        host.begun = host.cpu = host.cpu + (70_000 if i % 3 == 2 else 40) * US
    assert ("requests" in host.said(tmp_path, kineto=True).verdict) == wants


CONVOLUTION = "sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x32_cudnn"
TO_NHWC = "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true>(x)"
TO_NCHW = "void cudnn::ops::nhwcToNchwKernel<__half, __half, float, true, false>(x)"


@pytest.mark.parametrize("convert_us", [10, 2])
def test_layouts_converted_around_convolutions_lead(convert_us: int, tmp_path: Path) -> None:
    """Of 40 convolutions of 100 us each has two conversions of 10 us: 0.8 of 4.8 ms, and more than the 6 % in
    which the device waits; of 2 us they are 4 %. What it waits may go with their launches: 119 gaps of 1 us
    in a step, and before four of five steps 305 us, of the host's pause, two ends and a launch."""
    host = Host()
    for _ in range(5):
        host.run(*[(TO_NHWC, convert_us), (CONVOLUTION, 100), (TO_NCHW, convert_us)] * 40)
        host.end(then_us=300)
    said = host.said(tmp_path, kineto=True)
    (rule,) = (rule for rule in said.rules if rule.code == "PD413")
    assert ("channels_last" in rule.remedy) == ("NCHW" in said.verdict) == (convert_us == 10)
    if convert_us == 10:
        assert said.opportunities[0].codes == ["PD413"]
        assert rule.gain is not None
        assert rule.gain.high_ms == pytest.approx(0.8 + 0.119 + 0.305 * 4 / 5, rel=0.01)


def test_layouts_beside_more_that_can_be_fused_are_a_part_of_that(tmp_path: Path) -> None:
    """Behind each of 40 convolutions of 100 us two conversions of 6 us and four kernels of 15: of 172 us
    fusing saves 57, all but the longest of each run, and the conversions are 12."""
    host = Host()
    names = [
        f"void at::native::vectorized_elementwise_kernel<4, at::native::F{i}<float>>(x)" for i in range(4)
    ]
    for _ in range(5):
        host.run(*[(TO_NHWC, 6), (CONVOLUTION, 100), (TO_NCHW, 6), *((name, 15) for name in names)] * 40)
        host.end()
    said = host.said(tmp_path, kineto=True)
    (rule,) = (rule for rule in said.rules if rule.code == "PD413")
    assert "channels_last" in rule.remedy
    assert rule.gain is not None
    assert rule.gain.high_ms == pytest.approx(40 * 0.057, rel=0.02)


def test_messages_of_an_optimizer_are_no_update(tmp_path: Path) -> None:
    """A sharded Adam of 100 us gathers weights for 4 ms beside 5 ms of GEMMs: it is no long update."""
    gather = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    host = Host()
    for _ in range(4):
        host.run(*[(GEMM, 100)] * 50)
        begun = host.cpu
        host.run((ADAM, 100), *[(gather, 1_000)] * 4)
        host.thread.range("Optimizer.step#AdamW.step", begun - 100, host.cpu)
        host.end()
    assert state_of(host.said(tmp_path, kineto=True), "PD408") == "passes"


def test_an_update_of_products_is_named_and_is_no_linear_layer(tmp_path: Path) -> None:
    """Muon multiplies for 60 of 100 GEMMs of 100 us: 6 of 10 ms, and FP8 halves the other 4 at most. The
    device waits 1 us in each of 99 gaps, and 5 us before three of four steps: it may go with the update."""
    host = Host()
    for _ in range(4):
        host.run(*[(GEMM, 100)] * 40)
        begun = host.cpu
        host.run(*[(GEMM, 100)] * 60)
        host.thread.range("Optimizer.step#Muon.step", begun - 100, host.cpu)
        host.end()
    said = host.said(tmp_path, kineto=True)
    assert "the update of Muon takes 59" in said.verdict
    assert said.opportunities[0].codes == ["PD408"]
    assert said.opportunities[0].gain is not None
    assert said.opportunities[0].gain.high_ms == pytest.approx(6.0 + 0.099 + 0.005 * 3 / 4, rel=0.001)
    (fp8,) = (row for row in said.opportunities if row.codes == ["PD401"])
    assert fp8.gain is not None
    assert (fp8.gain.high_ms or 0) <= 2.05


@pytest.mark.parametrize(("operator", "said_"), [("aten::nonzero", "grouped GEMM"), ("aten::item", "losses")])
def test_a_wait_for_a_size_is_no_loss_that_is_read(operator: str, said_: str, tmp_path: Path) -> None:
    """Eight times a step the host waits for 50 us of work, and then takes 40 us to launch the next."""
    host = Host()
    for _ in range(5):
        for _ in range(8):
            host.run((GEMM, 50))
            begun = host.cpu
            host.wait()
            host.process.operator(host.thread, operator, begun, host.cpu)
            host.cpu += 40 * US
        host.run(("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(x)", 5))
        host.end()
    (rule,) = (r for r in host.said(tmp_path, kineto=True).rules if r.code == "PD208")
    assert rule.state == "fires"
    assert said_ in rule.remedy
    assert ("losses" in rule.remedy) == (operator == "aten::item")


def test_a_gpu_without_a_name_is_asked_for_its_peak(tmp_path: Path) -> None:
    """Ten GEMMs of 2 x 1,024^3 FLOPs in 100 us are 21 TFLOP/s each: of 40, half."""
    gemm = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_nn"
    plan = ShapePlan()
    for i in range(10):
        plan.operator("aten::mm", 5 * i, 5 * i + 4, dims=[[1_024, 1_024]] * 2, dtypes=[BF16, BF16])
        plan.kernel(gemm, 100, 5 * i + 1)
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": plan.events}))

    def said(facts: JobFacts) -> str:
        return screen(analysed(AnalysisRequest(captures=(path,), jobs=1, given=facts)).diagnosis)

    assert "peak_tflops=N" in said(JobFacts())
    assert "peak_tflops=N" not in said(JobFacts(dtype="bf16", peak_flops_per_second=40e12))
