"""Jobs of frameworks of which no capture is at hand, planted by their names: what is said of each, by figures
that are sums of the lines that plant them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.diagnose.diagnosis import diagnose
from perfdoc.reports.screen import render_screen
from perfdoc.results import Diagnosis
from tests.captures.kineto import write_kineto
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import one_gpu

US = 1_000
LATE_US = 10
"""From a launch to its kernel; the next launch comes as the kernel ends."""
AFTER_US = 20
"""From the last kernel of a step to the next step."""
STEPS = 4

REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SCATTER = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
RCCL = "void rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "nvjet_tst_256x128_64x4_2x1_v_bz_coopA_TNT"
FORWARD = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128>>(x)"
BACKWARD = "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128>>(x)"
ADAM = "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float>>(x)"
FUSED = "void tensorrt_llm::kernels::ar_fusion::allreduce_fusion_kernel_oneshot_lamport<x>(y)"
PAGED = "fmha_v2_flash_attention_bf16_64_64_S_q_paged_kv_128_sm90_kernel"
SDPA = "cudnn_generated_fort_native_sdpa_sm90_flash_{}_wgmma_f16_knob_7_128x128x128"
CONVOLUTION = "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_cudnn"
ZERO = "DeepSpeedZeroOptimizer_Stage3."
FETCH = "PartitionedParameterCoordinator.fetch_sub_module"
LIGHTNING = "[pl][profile][Strategy]DDPStrategy."

Work = tuple[str, int] | tuple[str, int, int]
"""A kernel, how many us it takes, and its stream where that is not 7."""
Part = tuple[tuple[str, ...], tuple[Work, ...]]
"""Ranges, the outer one first, and the kernels that are launched in them."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One step after the other, each kernel after the one before: all communication is exposed."""

    step: str
    """Name of its range, with {} for its number; empty without one."""
    parts: tuple[Part, ...]
    exposed_us: dict[str, int] = field(default_factory=dict)
    """Communication of a step by dimension."""
    framework: str = "pytorch"
    says: tuple[str, ...] = ()
    """On the first screen."""
    never: tuple[str, ...] = ()
    is_kineto: bool = False
    classes_us: dict[str, int] = field(default_factory=dict)
    """Of a step, what some classes of kernels take."""

    def written(self, folder: Path) -> Path:
        builder, thread, device = one_gpu()
        at = 1_000 * US
        for number in range(STEPS):
            begin = at
            for ranges, works in self.parts:
                opened = at
                for name, length, *stream in works:
                    begins = at + LATE_US * US
                    device.kernel(
                        *(name, begins, begins + length * US),
                        stream=stream[0] if stream else 7,
                        launch=(thread, at + 100, at + 4 * US),
                    )
                    at = begins + length * US
                for depth, text in enumerate(ranges):
                    thread.range(text, opened + 2 + depth, at - 2 - depth)
            at += AFTER_US * US
            if self.step:
                thread.range(self.step.format(number), begin, at - 1)
        if self.is_kineto:
            return write_kineto(builder.build(), folder / "job.json", pid=1000)
        return write_nsys_sqlite(builder.build(), folder / "job.sqlite")


def zero(part: str, call: str, *works: Work) -> Part:
    return (f"DeepSpeedEngine.{part}", call), works


SERVED: tuple[Work, ...] = (
    (GEMM, 60),
    (PAGED, 50),
    (GEMM, 40),
    (FUSED, 20),
    (GEMM, 90),
    (GEMM, 90),
    (FUSED, 20),
)
CROSS = "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(x)"
MULTIMEM = "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(x)"
EXPERTS: tuple[Work, ...] = (
    *((GEMM, 60), (PAGED, 50), (GATHER, 30, 20), ("void deep_ep::internode_ll::dispatch<true>(x)", 40)),
    *(
        ("void deep_gemm::sm90_fp8_gemm_1d2d_impl<x>(y)", 90),
        ("void deep_ep::internode_ll::combine<true>(x)", 40),
    ),
    ("void sglang::act_and_mul_kernel<x>(y)", 10),
)
LAYER: tuple[Work, ...] = ((GEMM, 400), (FORWARD, 100), (GEMM, 300))
LAYER_BACK: tuple[Work, ...] = ((GEMM, 500), (BACKWARD, 200), (GEMM, 100))
CUDA_ONLY = ("DistributedDataParallel", "torch.", "Megatron")

JOBS = {
    "JAX under nsys": Job(
        step="TSL:XlaModule:#prefix=jit(train_step)/jit(main),hlo_module=jit_train_step,program_id=14#",
        parts=(
            (
                ("TSL:Thunk:#hlo_op=gemm_fusion_dot.5,hlo_module=jit_train_step#",),
                (
                    *((SDPA.format("fprop"), 200), ("gemm_fusion_dot_5", 400), ("loop_fusion_12", 60)),
                    *(("input_reduce_fusion", 50), (SDPA.format("bprop"), 300), ("loop_add_fusion_3", 30)),
                    *(("wrapped_transpose", 15), ("gemm_fusion_dot_general_7_0", 300)),
                ),
            ),
            (("TSL:Thunk:#hlo_op=all-reduce-start.1,hlo_module=jit_train_step#",), ((REDUCE, 150, 20),)),
        ),
        exposed_us={"dp": 150},
        framework="jax",
        says=("set (JAX): XLA_FLAGS=",),
        never=CUDA_ONLY,
        classes_us={"gemm": 700, "attention": 500, "elementwise": 90, "reduction": 50, "copy": 15},
    ),
    "torchrec": Job(
        step="ProfilerStep#{}",
        parts=(
            (("## sparse_data_dist ##",), ((SEND, 120, 24),)),
            (
                ("## forward ##",),
                (
                    ("void split_embedding_codegen_forward_weighted_kernel<float>(x)", 200),
                    *((SEND, 180, 24), (GEMM, 150)),
                ),
            ),
            (
                ("## backward ##",),
                (
                    *((GEMM, 300), (SEND, 160, 24)),
                    ("void split_embedding_backward_codegen_rowwise_adagrad_kernel<float>(x)", 220),
                ),
            ),
            (("## optimizer ##",), ((ADAM, 60),)),
        ),
        exposed_us={"unknown": 460},
        is_kineto=True,
        classes_us={"embedding": 420, "gemm": 450, "optimizer": 60},
    ),
    "TensorRT-LLM": Job(
        step="[Executor] _forward_step {}: 0 ctx reqs, 0 ctx tokens, 3 gen reqs",
        parts=(((), SERVED * 6),),
        exposed_us={"tp": 240},
        says=("put more sequences in a batch",),
        never=("micro-batch", "Megatron", "DistributedDataParallel"),
        classes_us={"gemm": 1_680, "attention": 300},
    ),
    "vLLM": Job(
        step="execute_context_0(0)_generation_{}(4)",
        parts=(
            (
                (),
                tuple((CROSS, *rest) if kernel == FUSED else (kernel, *rest) for kernel, *rest in SERVED) * 6,
            ),
        ),
        exposed_us={"tp": 240},
        framework="vllm",
        never=("micro-batch", "Megatron", "DistributedDataParallel"),
    ),
    "ATOM": Job(
        step="decode[bs=4/8 tok=4 d={}]",
        parts=(((), SERVED * 6),),
        exposed_us={"tp": 240},
        says=("put more sequences in a batch",),
        never=("micro-batch", "Megatron", "DistributedDataParallel"),
    ),
    "SGLang with experts": Job(
        step="step[DECODE bs={} toks=4]",
        parts=(((), EXPERTS * 6),),
        # An all-gather beside an exchange of experts proves nothing of its group.
        exposed_us={"ep": 480, "unknown": 180},
        never=("micro-batch", "Megatron", "DistributedDataParallel"),
    ),
    "symmetric memory": Job(
        step="ProfilerStep#{}",
        parts=(
            ((), (*((GEMM, 80), (FORWARD, 50), (GEMM, 40), (MULTIMEM, 20), (GEMM, 90), (MULTIMEM, 20)),) * 6),
        ),
        exposed_us={"tp": 240},
        is_kineto=True,
    ),
    "DeepSpeed": Job(
        step="",
        parts=(
            zero("forward", FETCH, (GATHER, 100, 20), (GEMM, 300), (FORWARD, 100)),
            zero("backward", FETCH, (GATHER, 100, 20), (GEMM, 300), (BACKWARD, 200)),
            zero("backward", f"{ZERO}reduce_ready_partitions_and_remove_grads", (SCATTER, 150, 21)),
            ((f"{ZERO}step", "Optimizer.step#FusedAdam.step"), ((ADAM, 80),)),
        ),
        exposed_us={"dp": 350},
        says=('set (DeepSpeed): "zero_optimization": {"overlap_comm": true}',),
        never=("DistributedDataParallel", "Megatron", "fully_shard"),
    ),
    "FSDP without names": Job(
        step="ProfilerStep#{}",
        parts=(
            (("FSDP::all_gather",), ((GATHER, 100, 20),)),
            ((), LAYER),
            (("FSDP::all_gather",), ((GATHER, 100, 20),)),
            ((), LAYER_BACK),
            (("FSDP::post_backward_reduce",), ((SCATTER, 150, 21),)),
            (("Optimizer.step#AdamW.step",), ((ADAM, 80),)),
        ),
        exposed_us={"dp": 350},
        is_kineto=True,
        never=("DistributedDataParallel", "Megatron"),
    ),
    "Colossal-AI": Job(
        step="ProfilerStep#{}",
        parts=(
            ((), LAYER),
            (("GeminiDDP.backward",), (*LAYER_BACK, (SCATTER, 150, 21))),
            (("Optimizer.step#HybridAdam.step",), ((ADAM, 80),)),
        ),
        exposed_us={"dp": 150},
        is_kineto=True,
        never=("Megatron",),
    ),
    "diffusers": Job(
        step="ProfilerStep#{}",
        parts=(
            (
                (),
                (
                    *((CONVOLUTION, 300), ("void at::native::vectorized_elementwise_kernel<4, silu>(x)", 30)),
                    (
                        "void at::native::(anonymous namespace)::RowwiseMomentsCUDAKernel<c10::BFloat16>(x)",
                        40,
                    ),
                    *((GEMM, 100), (FORWARD, 150), ("void cudnn::ops::nchwToNhwcKernel<__half>(x)", 25)),
                    ("void at::native::(anonymous namespace)::upsample_nearest2d_nhwc_out_frame<x>(y)", 10),
                ),
            ),
        ),
        is_kineto=True,
        never=("Megatron",),
        classes_us={
            **{"convolution": 300, "norm": 40, "gemm": 100, "attention": 150},
            **{"copy": 25, "elementwise": 40},
        },
    ),
    "Lightning": Job(
        step="[pl][profile]run_training_batch",
        parts=(
            ((f"{LIGHTNING}training_step", "[pl][profile][LightningModule]GPT.forward"), LAYER),
            ((f"{LIGHTNING}backward",), (*LAYER_BACK, (REDUCE, 150, 20))),
            (("[pl][profile]optimizer_step_with_closure_0",), ((ADAM, 60),)),
        ),
        exposed_us={"dp": 150},
        is_kineto=True,
        says=("set (PyTorch): torch.nn.parallel.DistributedDataParallel",),
        never=("Megatron", "fully_shard"),
    ),
    "ROCm 7's collectives": Job(
        step="ProfilerStep#{}",
        parts=(
            ((), LAYER),
            ((), (*LAYER_BACK, (RCCL, 150, 20))),
            (("Optimizer.step#AdamW.step",), ((ADAM, 60),)),
        ),
        exposed_us={"unknown": 150},
        is_kineto=True,
        says=("Mostly unnamed communication: 1 a step",),
        never=("Mostly :",),
    ),
}


@pytest.fixture(params=JOBS)
def name(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
def said(name: str, tmp_path: Path) -> Diagnosis:
    return diagnose([measure_capture(JOBS[name].written(tmp_path), WindowRequest())])


def test_steps_and_exposed_communication_are_those_planted(name: str, said: Diagnosis) -> None:
    job = JOBS[name]
    (rank,) = said.ranks
    assert rank.window.steps == (STEPS if job.step or "Optimizer" in str(job.parts) else 0)
    exposed = {dimension: ns for dimension, ns in rank.ledger_ns.exposed_comm.by_name.items() if ns}
    assert exposed == {dimension: STEPS * length * US for dimension, length in job.exposed_us.items()}


def test_no_kernel_is_of_unknown_class_and_some_are_of_the_right_one(name: str, said: Diagnosis) -> None:
    found = {row.name: row.total_ns for row in said.analyses.kernels.classes}
    assert found.get("other", 0) == 0
    for kernel_class, length_us in JOBS[name].classes_us.items():
        assert found[kernel_class] == STEPS * length_us * US, kernel_class


def test_the_words_are_those_of_the_framework(name: str, said: Diagnosis) -> None:
    job = JOBS[name]
    assert said.job is not None
    assert said.job.framework == job.framework
    screen = " ".join(render_screen(said, report="r").split())
    for text in job.says:
        assert text in screen
    for text in job.never:
        assert text not in screen
