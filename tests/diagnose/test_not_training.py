"""Programs that train nothing, hosts that pause now and then, and other frameworks' words: what is said of
captures whose truth is what the lines plant."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.analyzers.request import AnalysisRequest
from perfdoc.diagnose.measuring import analysed
from perfdoc.reports.screen import render_screen
from perfdoc.results import Diagnosis
from tests.analyzers.tiny import ALL_REDUCE, GEMM
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import TimelineBuilder, one_gpu

US = 1_000
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ATTENTION = "void flash::flash_fwd_kernel<x>(y)"
SCATTER = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
TRAINING = ("micro-batch", "losses", ".item()", "gradients", "DDP", "offloaded state", "torch.cuda")


def said_of(builder: TimelineBuilder, folder: Path) -> Diagnosis:
    path = write_nsys_sqlite(builder.build(), folder / "report.sqlite")
    return analysed(AnalysisRequest(captures=(path,), jobs=1)).diagnosis


def words_of(said: Diagnosis) -> str:
    """All that is advised, and the first screen."""
    fired = [rule for rule in said.rules if rule.state == "fires"]
    return " ".join([render_screen(said, report="x"), *(rule.remedy for rule in fired)])


def waiting(kernel: str, folder: Path, other: str = "x", *, whole: bool = False) -> Diagnosis:
    """Forty times a kernel of 300 us and a copy of 40 us that the host waits for; then it works 700 us.
    whole: the kernel is in a graph that is traced whole."""
    builder, thread, device = one_gpu()
    at = 1_000 * US
    for _ in range(40):
        launch = (thread, at, at + 4 * US)
        if whole:
            device.graph_launch(7, at + 10 * US, at + 310 * US, launch=launch)
        else:
            device.kernel(kernel, at + 10 * US, at + 310 * US, launch=launch)
        device.kernel(other, at + 310 * US, at + 311 * US, launch=(thread, at + 5 * US, at + 6 * US))
        copied = (thread, at + 7 * US, at + 9 * US)
        device.copy("device_to_host", 1 << 20, at + 311 * US, at + 351 * US, launch=copied, pinned=True)
        thread.api("cudaStreamSynchronize", at + 20 * US, at + 352 * US)
        at += 1_052 * US
    return said_of(builder, folder)


@pytest.mark.parametrize(
    "kernel",
    [
        "void nbnxn_kernel_ElecEw_VdwLJ_F_cuda(NBAtomDataGpu, bool)",
        "sm80_xmma_fprop_implicit_gemm_interleaved_i8i8_i8i32_f32_tilesize128x128x64_stage3_kernel_trt",
        "void mul_mat_vec_q<(ggml_type)12, 1, false>(void const*, void const*, float*)",  # llama.cpp
    ],
)
def test_what_trains_nothing_gets_no_advice_of_training(kernel: str, tmp_path: Path) -> None:
    said = waiting(kernel, tmp_path)
    assert {"PD201", "PD208"} <= {rule.code for rule in said.rules if rule.state == "fires"}
    text = words_of(said)
    assert [word for word in TRAINING if word in text] == []
    assert "Launch the next work before waiting for this" in text


@pytest.mark.parametrize(
    ("other", "trains"),
    [
        *(("nll_loss_backward_reduce", True), ("cuComputeGradInput", True), ("softmax_warp_forward", False)),
        ("vectorized_elementwise_kernel", True),  # SGD by hand: a backward pass of GEMMs alone has no name
    ],
)
def test_a_backward_pass_is_training(other: str, trains: bool, tmp_path: Path) -> None:
    said = waiting(GEMM, tmp_path, f"void at::native::{other}<float>(x)")
    assert ("losses" in words_of(said)) is trains
    (fp8,) = (rule for rule in said.rules if rule.code == "PD401")
    assert ("training" in fp8.reason) is not trains


@pytest.mark.parametrize("other", ["copy_kernel", "void at::native::softmax_warp_forward<float>(x)"])
def test_of_graphs_traced_whole_no_name_tells_that_nothing_trains(other: str, tmp_path: Path) -> None:
    assert "losses" in words_of(waiting("", tmp_path, other, whole=True))


def test_a_program_of_no_framework_is_told_of_no_tensors(tmp_path: Path) -> None:
    assert ".item" not in render_screen(waiting("jacobi_kernel(float*, int)", tmp_path), report="x")


def test_a_benchmark_of_communication_has_nothing_to_overlap(tmp_path: Path) -> None:
    builder = TimelineBuilder()
    for number in range(2):
        process = builder.process(pid=1000 + number)
        thread, device = process.thread(), process.device(number)
        for at in range(1_000 * US, 21_000 * US, 500 * US):
            device.kernel(ALL_REDUCE, at, at + 499 * US, stream=20, launch=(thread, at - 9 * US, at - 5 * US))
    said = said_of(builder, tmp_path)
    assert "hardly anything computes" in said.verdict
    assert next(rule for rule in said.rules if rule.code == "PD100").state == "passes"


@pytest.mark.parametrize(
    ("steps", "most_us", "beside_us"),
    [(1, 3_000, 0), (0, 3_000, 0), (1, 30_000, 15_000), (1, 30_000, 29_000)],
)
def test_a_host_that_pauses_in_few_steps_is_named(
    steps: int, most_us: int, beside_us: int, tmp_path: Path
) -> None:
    """Nine steps of 1,600 us; in three the first of four ranks comes 3,000 us late: 9,000 of 23,400 us.
    Where the second pauses half as long, nothing gains more than what the first pauses longer; where nearly
    as long, both are named, and without both nobody waits."""
    builder = TimelineBuilder()
    processes = [builder.process(pid=1000 + number) for number in range(4)]
    threads = [process.thread() for process in processes]
    devices = [process.device(number) for number, process in enumerate(processes)]
    at = 1_000 * US
    for step in range(9):
        late = most_us * US if step % 3 == 2 else 0
        length = 1_600 * US + late
        for number, (thread, device) in enumerate(zip(threads, devices, strict=True)):
            call = at - 20 * US
            device.kernel(GEMM, at, at + 900 * US, launch=(thread, call, call + 4 * US))
            pause = late if not number else min(late, beside_us * US) if number == 1 else 0
            behind = at + 900 * US + pause
            if pause:
                call = behind - 10 * US
            for begin, end in ((behind, at + length - 500 * US), (at + length - 480 * US, at + length)):
                launch = (thread, call + 5 * US, call + 9 * US)
                device.kernel(ALL_REDUCE, begin, end, stream=20, launch=launch)
                call += 5 * US
            if steps:
                thread.range(f"step {step}", at - 25 * US, at + length - 26 * US)
        at += length
    said = said_of(builder, tmp_path)
    rule = next(rule for rule in said.rules if rule.code == "PD303")
    both = beside_us > 20_000
    whom = (
        "GPU 0, pid 1000 and GPU 1, pid 1001, whose hosts pause"
        if both
        else "GPU 0, pid 1000, which is launched late by its host"
    )
    assert said.verdict.startswith(f"The others wait for {whom}")
    assert "at 3 of 18 collectives" in said.verdict
    assert rule.gain is not None
    left_ms = (most_us - (0 if both else beside_us)) / 1_000 * 3
    assert rule.gain.high_ms == pytest.approx(left_ms / 9 if steps else left_ms, rel=0.01)


def test_weights_gathered_on_a_stream_of_their_own_are_data_parallel(tmp_path: Path) -> None:
    """Each of two ranks gathers a layer before its forward and its backward, and reduces its gradients on
    another stream, as FSDP2 does: all of it is DP."""
    builder = TimelineBuilder()
    for number in range(2):
        process = builder.process(pid=1000 + number)
        thread, device = process.thread(), process.device(number)
        at = 1_000 * US
        for _ in range(3):
            for layer in range(12):
                attention = (
                    "void flash::flash_fwd_kernel<x>(y)" if layer < 6 else "void flash_bwd_kernel<x>(y)"
                )
                work = [(GATHER, 100, 20), (GEMM, 300, 7), (attention, 200, 7), (GEMM, 300, 7)]
                for name, us, stream in work + ([(SCATTER, 80, 21)] if layer >= 6 else []):
                    launch = (thread, at - 9 * US, at - 5 * US)
                    device.kernel(name, at, at + us * US, stream=stream, launch=launch)
                    at += us * US
    said = said_of(builder, tmp_path)
    assert {row.dimension for rank in said.ranks for row in rank.communication} == {"dp"}


def test_tensorflow_has_its_own_words(tmp_path: Path) -> None:
    """Convolutions in TF32 are nearly all of it."""
    convolution = "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16"
    text = words_of(waiting(convolution, tmp_path, "void tensorflow::functor::ApplyMomentumKernel<float>(x)"))
    assert "mixed_precision" in text
    assert "torch.autocast" not in text
    assert "channels_last" not in text


@pytest.mark.parametrize(("steps", "pauses", "words"), [(8, 8, "each step"), (10, 4, "some steps")])
def test_hosts_that_pause_in_turn_lead_and_no_overlap_is_promised(
    steps: int, pauses: int, words: str, tmp_path: Path
) -> None:
    """In each of eight steps, or four of ten, another rank's host pauses for 5,000 us, and three wait in two
    buckets, of 400 us beside compute and of 500 behind it: without, a step takes 2,000 us."""
    builder = TimelineBuilder()
    processes = [builder.process(pid=1000 + number) for number in range(4)]
    rows = [(process.thread(), process.device(number)) for number, process in enumerate(processes)]
    at = 1_000 * US
    for step in range(steps):
        late = 5_000 if step < pauses else 0
        end_at = at + (2_000 + late) * US
        for number, (thread, device) in enumerate(rows):
            thread.range(f"step {step}", at - 30 * US, end_at - 40 * US)
            device.kernel(GEMM, at, at + 20 * US, launch=(thread, at - 20 * US, at - 16 * US))
            begin = at + (20 + (late if step % 4 == number else 0)) * US
            joined = end_at - 1_100 * US
            work = (
                *((ATTENTION, 7, begin, begin + 100 * US), (GEMM, 7, begin + 100 * US, begin + 380 * US)),
                *(
                    (ATTENTION, 7, begin + 380 * US, begin + 480 * US),
                    (ALL_REDUCE, 20, begin + 480 * US, joined),
                ),
                (GEMM, 7, begin + 480 * US, begin + 1_480 * US),
                (ALL_REDUCE, 20, max(joined, begin + 1_480 * US), end_at),
            )
            call = begin - 40 * US if late and step % 4 == number else at - 15 * US
            for name, stream, start, end in work:
                device.kernel(name, start, end, stream=stream, launch=(thread, call, call + 2 * US))
                call += 3 * US
            thread.api("cudaStreamSynchronize", call, end_at - 50 * US)
        at = end_at
    said = said_of(builder, tmp_path)
    assert said.verdict.startswith(f"The host of another rank pauses in {words}")
    rule = next(rule for rule in said.rules if rule.code == "PD206")
    assert rule.gain is not None
    assert rule.gain.high_ms is not None
    assert 5.0 <= rule.gain.high_ms * steps / pauses <= 5.5
    labels = [evidence.label for evidence in rule.evidence]
    assert any(("by chance" if pauses == steps else "the longest") in label for label in labels)
    (overlap,) = [p for p in said.analyses.gains.predictions if p.key == "overlapped_dp"]
    assert "late ranks" in overlap.left_out or (pauses < steps and not overlap.gain.is_predicted)


def test_halos_of_a_simulation_are_no_pipeline(tmp_path: Path) -> None:
    """Each of two ranks computes for 500 us, then exchanges for 200."""
    exchange = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    builder = TimelineBuilder()
    for number in range(2):
        process = builder.process(pid=1000 + number)
        thread, device = process.thread(), process.device(number)
        for at in range(1_000 * US, 29_000 * US, 700 * US):
            for name, begin, us in (("jacobi_kernel(float*, int)", at, 500), (exchange, at + 500 * US, 200)):
                device.kernel(name, begin, begin + us * US, launch=(thread, begin - 9 * US, begin - 5 * US))
    said = said_of(builder, tmp_path)
    rule = next(rule for rule in said.rules if rule.code == "PD100")
    assert rule.state == "fires"
    assert "let compute run beside" in rule.remedy
    assert "micro-batch" not in rule.remedy
