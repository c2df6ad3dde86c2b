"""Examples of PD4xx and PD5xx: kernels, precision, memory."""

from dataclasses import replace
from pathlib import Path

from perfdoc.knobs.knob import Value
from perfdoc.rules.engine.case import Case
from tests.analyzers.tiny import GEMM
from tests.rules.cases import case_of
from tests.rules.examples import example
from tests.rules.laid import (
    CAST,
    GIB,
    MUL,
    SILU,
    SOFTMAX,
    dense,
    device_memory,
    failure,
    given,
    knowing,
    laid,
    remembering,
)
from tests.rules.test_launch_rules import DENSE
from tests.rules.test_looped_optimizer import ADAM, stepping
from tests.rules.test_memory_rules import NOTHING_SAVED
from tests.rules.test_memory_settings_rules import AWARE, EIGHT_SEQUENCES, FULL, REPEATED, recomputing


def gemms(folder: Path, us: int = 900) -> Case:
    return case_of(folder, laid((GEMM, us)))


@example("PD401")
def gemms_in_16_bits(folder: Path) -> Case:
    """steps of 1 ms on H100 with 800 µs of bf16 GEMMs; FP8 is off."""
    return given(gemms(folder, 800), bf16=True, fp8=None)


@example("PD407")
def gemms_in_fp32(folder: Path) -> Case:
    """steps of 1 ms with 400 µs of cuBLAS's SGEMM."""
    return case_of(folder, laid(("ampere_sgemm_128x64_tn", 400)))


@example("PD408")
def parameters_one_by_one(folder: Path) -> Case:
    """steps of 1 ms of plain PyTorch; Adam runs 8 kernels of 2 µs for each of 10 parameters, 5 µs apart."""
    return given(case_of(folder, stepping(*ADAM, range_name="Optimizer.step#AdamW.step")), None)


@example("PD402", presupposes=("fp8=hybrid", "use_te_rng_tracker=true"))
def fp8_in_a_host_bound_step(folder: Path) -> Case:
    """steps of 1 ms on H100 with 100 µs of GEMMs in FP8 and 200 µs launch-bound; CUDA graphs are off."""
    return given(case_of(folder, laid((GEMM, 100), gap_us=200)), fp8="hybrid", **DENSE)


@example("PD403")
def casts(folder: Path) -> Case:
    """steps of 1 ms on H100 with 100 µs of casts to mxfp8."""
    case = case_of(folder, laid((GEMM, 500), (CAST, 100)))
    return given(case, fp8="hybrid", fp8_recipe="mxfp8", reuse_grad_buf_for_mxfp8_param_ag=True)


@example("PD404")
def gated_activation_in_pieces(folder: Path) -> Case:
    """steps of 1 ms with 50 µs of SiLU followed by a multiplication, which one kernel would replace."""
    case = case_of(folder, laid((GEMM, 500), (SILU, 30), (MUL, 20)))
    return given(case, bias_activation_fusion=False)


@example("PD405")
def softmax_of_its_own(folder: Path) -> Case:
    """steps of 1 ms with 100 µs of softmax outside any fused attention."""
    case = case_of(folder, laid((GEMM, 500), (SOFTMAX, 100), (GEMM, 100)))
    return given(case, attention_backend="unfused", masked_softmax_fusion=False)


@example("PD406")
def gemm_bound(folder: Path) -> Case:
    """steps of 1 ms on H100 with 900 µs of GEMMs."""
    return gemms(folder)


def short(folder: Path, **other: object) -> Case:
    """79 of 80 GiB reserved, and a request of 2 GiB that failed with half a GiB free."""
    gone = failure(requested_gib=2, free_gib=0.5)
    memory = device_memory(folder, reserved_gib=79, oom_events=1, out_of_memory=[gone])
    assert memory.layout is not None
    return remembering(
        gemms(folder),
        replace(memory, layout=replace(memory.layout, reserved_bytes=79 * GIB, **other)),  # type: ignore[arg-type]
    )


@example("PD501")
def pieces(folder: Path) -> Case:
    """a memory snapshot of an H100: 79 GiB reserved, 16 GiB of them unused pieces of split segments; a
    request of 2 GiB failed."""
    return given(short(folder, inactive_split_bytes=16 * GIB), pytorch_cuda_alloc_conf=None)


@example("PD502")
def a_request_that_failed(folder: Path) -> Case:
    """a memory snapshot of an H100: 79 of 80 GiB reserved, a request of 2 GiB failed; 4 data-parallel
    ranks of TP=2, without distributed optimizer, sequence parallelism and recomputation."""
    return given(short(folder), **NOTHING_SAVED)


@example("PD503")
def fp32_masters(folder: Path) -> Case:
    """steps of a bf16 model of 1.07 billion parameters with a distributed optimizer over 4 ranks."""
    return knowing(given(gemms(folder), **AWARE), model=dense(), tp=1, pp=1, cp=1)


@example("PD504")
def recomputed_though_there_is_room(folder: Path) -> Case:
    """steps of 1 ms that recompute 200 µs of forward (all 4 layers); a memory snapshot shows 17 of 80 GiB
    never reserved."""
    case = knowing(given(case_of(folder, recomputing(200)), **FULL), model=dense())
    return remembering(case, device_memory(folder, reserved_gib=63))


@example("PD505")
def a_third_is_free(folder: Path) -> Case:
    """a memory snapshot of an H100: 24 of 80 GiB never reserved; a step takes 5 GiB; micro-batches of
    2."""
    settings: dict[str, Value] = {
        "micro_batch_size": 2,
        "global_batch_size": 16,
        "data_parallel_size": 2,
        "pipeline_model_parallel_size": 1,
    }
    memory = device_memory(folder, reserved_gib=56, peak_above_start_bytes=5 * GIB)
    return remembering(given(gemms(folder), **settings), memory)


@example("PD506")
def outputs_are_kept(folder: Path) -> Case:
    """steps of a megatron-core job of 2 stages with `deallocate_pipeline_outputs` off."""
    settings: dict[str, Value] = {"pipeline_model_parallel_size": 2, "deallocate_pipeline_outputs": False}
    return given(gemms(folder), "megatron_core", **settings)


@example("PD507", presupposes=("fp8=hybrid",))
def weights_in_two_formats(folder: Path) -> Case:
    """steps of a model of 1.07 billion parameters (TP=2) in FP8 with delayed scaling and bf16 weights."""
    settings: dict[str, Value] = {
        "fp8": "hybrid",
        "fp8_recipe": "delayed",
        "fp8_param_gather": False,
        "use_distributed_optimizer": True,
    }
    return knowing(given(gemms(folder), **settings), model=dense(), tp=2, pp=1)


@example("PD508")
def freed_and_waiting(folder: Path) -> Case:
    """a memory snapshot of an H100: 79 GiB reserved, 6 GiB of them freed while another stream may still
    use them; a request of 2 GiB failed; PyTorch 2.7."""
    case = given(short(folder, pending_free_bytes=6 * GIB))
    return knowing(case, torch_version="2.7.1+cu128")


@example("PD509")
def memory_of_others(folder: Path) -> Case:
    """a memory snapshot of an H100 of 80 GiB: PyTorch had 72 GiB and 1 GiB was free as a request
    failed."""
    gone = failure(requested_gib=2, free_gib=1, reserved_gib=72)
    memory = device_memory(folder, oom_events=1, out_of_memory=[gone])
    return remembering(given(gemms(folder)), memory)


@example("PD510")
def norms_on_every_rank(folder: Path) -> Case:
    """steps of a model of 4 layers on 2 tensor-parallel ranks without sequence parallelism; micro-batches
    of 8 sequences of 8,192 tokens."""
    return knowing(given(gemms(folder), **REPEATED, **EIGHT_SEQUENCES), model=dense())
