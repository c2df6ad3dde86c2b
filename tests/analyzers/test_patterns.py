"""The dimension of groups without any name: programs of a few layers, in the order in which they launch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from perfdoc.analyzers.device.activity import DIMENSIONS, EVIDENCE
from tests.analyzers.tiny import ALL_GATHER, ALL_REDUCE, GEMM, activity_of, trace_of
from tests.captures.events import NcclPayload
from tests.captures.timeline import TimelineBuilder

ATTENTION = "flash_fwd_kernel"
REDUCE_SCATTER = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
ADAM = "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>"
CCL_REDUCE = "void ccl::allreduce_large_kernel<sycl::bfloat16>(x)"
CALLS = {
    CCL_REDUCE: "ncclAllReduce",
    ALL_REDUCE: "ncclAllReduce",
    ALL_GATHER: "ncclAllGather",
    REDUCE_SCATTER: "ncclReduceScatter",
}
TP, DP, CP, EP, PP, OTHER = 0xA, 0xB, 0xC, 0xD, 0xE, 0xF
MIB = 1 << 20


@dataclass
class Program:
    """One rank's kernels, 100 ns each, one after the other in the order of launches."""

    builder: TimelineBuilder = field(default_factory=TimelineBuilder)
    at: int = 1_000

    def __post_init__(self) -> None:
        self.process = self.builder.process()
        self.thread, self.device = self.process.thread(), self.process.device()

    def compute(self, *names: str) -> None:
        for name in names:
            self.device.kernel(name, self.at + 50, self.at + 100, launch=(self.thread, self.at, self.at + 5))
            self.at += 100

    def collective(self, kernel: str, communicator: int, size: int = 8 * MIB) -> None:
        payload = NcclPayload(communicator=communicator, bytes=size)
        self.thread.range(CALLS[kernel], self.at, self.at + 20, domain="NCCL", payload=payload)
        launch = self.thread, self.at + 5, self.at + 10
        self.device.kernel(kernel, self.at + 50, self.at + 100, stream=20 + communicator, launch=launch)
        self.at += 100

    def exchange(
        self, communicator: int, *, sends: tuple[int, ...] = (), receives: tuple[int, ...] = ()
    ) -> None:
        """A group of NCCL's sends and receives, to and from these ranks of the communicator."""
        begin = self.at
        self.thread.range("ncclGroupStart", begin, begin + 2, domain="NCCL")
        calls = [("ncclSend", peer) for peer in sends] + [("ncclRecv", peer) for peer in receives]
        for i, (name, peer) in enumerate(calls):
            payload = NcclPayload(communicator=communicator, bytes=MIB, peer=peer)
            self.thread.range(name, begin + 3 + 4 * i, begin + 5 + 4 * i, domain="NCCL", payload=payload)
        end = begin + 4 + 4 * len(calls)
        self.thread.range("ncclGroupEnd", end, end + 10, domain="NCCL")
        launch = self.thread, end + 2, end + 4
        self.device.kernel(SEND_RECV, end + 50, end + 100, stream=20 + communicator, launch=launch)
        self.at = end + 100


def layers(count: int, *, forward_only: bool = False) -> list[tuple[int, bool]]:
    """(layer, whether forward) of a step."""
    backward = [] if forward_only else [(i, False) for i in reversed(range(count))]
    return [(i, True) for i in range(count)] + backward


def tensor_parallel(p: Program) -> None:
    """Megatron without sequence parallelism: behind attention and behind the feed-forward block."""
    for _ in layers(3):
        p.compute(GEMM, ATTENTION, GEMM)
        p.collective(ALL_REDUCE, TP)
        p.compute(GEMM, GEMM)
        p.collective(ALL_REDUCE, TP)
    p.compute(ADAM)


def served(p: Program) -> None:
    """vLLM: forward passes alone."""
    for _ in layers(6, forward_only=True):
        p.compute(GEMM, ATTENTION, GEMM)
        p.collective(ALL_REDUCE, TP, 64 * 1024)
        p.compute(GEMM, GEMM)
        p.collective(ALL_REDUCE, TP, 64 * 1024)


CROSS_DEVICE = "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(x)"
MULTIMEM = "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(x)"
MSCCLPP = "void mscclpp::allreduce8<__half>(x)"
DISPATCH, COMBINE = "void deep_ep::intranode::dispatch<8>(int4*)", "void deep_ep::intranode::combine<8>(x)"


def served_by(kernel: str) -> Callable[[Program], None]:
    """An engine's own all-reduce among the kernels that compute: of no stream and without a communicator."""

    def program(p: Program) -> None:
        for _ in layers(6, forward_only=True):
            p.compute(GEMM, ATTENTION, GEMM, kernel, GEMM, GEMM, kernel)

    return program


def reduced_at_the_end(p: Program) -> None:
    """One such all-reduce a pass says nothing of its group."""
    for _ in layers(6, forward_only=True):
        p.compute(GEMM, ATTENTION, GEMM, GEMM)
    p.compute(CROSS_DEVICE)


def scattered_everywhere(p: Program) -> None:
    """Scatters behind each layer whose gathers are another group's."""
    for _ in layers(3):
        p.compute(GEMM, ATTENTION, GEMM)
        p.collective(REDUCE_SCATTER, DP)


def gathered_keys(p: Program) -> None:
    """Context parallelism by all-gather."""
    for _ in layers(6, forward_only=True):
        p.compute(GEMM)
        p.collective(ALL_GATHER, CP)
        p.compute(ATTENTION, GEMM, GEMM, GEMM)


def gathered_before_experts(p: Program) -> None:
    """Right behind attention tokens are gathered, then go to experts through DeepEP."""
    for _ in layers(6, forward_only=True):
        p.compute(GEMM, ATTENTION)
        p.collective(ALL_GATHER, EP)
        p.compute(DISPATCH, GEMM, GEMM, COMBINE)


def gathered_behind_experts(p: Program) -> None:
    """What combine gave is gathered, and the next product is attention."""
    for _ in layers(6, forward_only=True):
        p.compute(ATTENTION, GEMM, DISPATCH, GEMM, COMBINE)
        p.collective(ALL_GATHER, EP)


def sequence_parallel(p: Program) -> None:
    """Megatron's: gathers before and scatters behind both blocks; backward gathers the input again."""
    for _, forward in layers(3):
        for block in ((GEMM, ATTENTION, GEMM), (GEMM, GEMM)):
            p.collective(ALL_GATHER, TP)
            p.compute(*block[:-1])
            if not forward:
                p.collective(ALL_GATHER, TP)
            p.compute(block[-1])
            p.collective(REDUCE_SCATTER, TP)


def fully_sharded(p: Program) -> None:
    """FSDP2, DeepSpeed's ZeRO-3: weights of the next layer gathered ahead in both passes, gradients scattered
    behind each layer's backward, in FP32."""
    p.collective(ALL_GATHER, DP, 4 * MIB)
    for i, forward in layers(6):
        if i + 1 < 6 if forward else i > 0:
            p.collective(ALL_GATHER, DP, 4 * MIB)
        p.compute(GEMM, ATTENTION, GEMM, GEMM, GEMM)
        if not forward:
            p.collective(REDUCE_SCATTER, DP, 8 * MIB)
    p.compute(ADAM)


def sharded_and_tensor_parallel(p: Program) -> None:
    """torchtitan's FSDP2 with TP inside of it."""
    for i, forward in layers(6):
        p.collective(ALL_GATHER, DP, (4 + (i == 0)) * MIB)
        for block in ((GEMM, ATTENTION, GEMM), (GEMM, GEMM)):
            p.collective(ALL_GATHER, TP)
            p.compute(*block)
            p.collective(REDUCE_SCATTER, TP)
        if not forward:
            p.collective(REDUCE_SCATTER, DP, 8 * MIB)


def distributed_data_parallel(p: Program, reduce: str = ALL_REDUCE) -> None:
    """A bucket behind every second layer's backward."""
    for i, forward in layers(6):
        p.compute(GEMM, ATTENTION, GEMM, GEMM, GEMM)
        if not forward and i % 2 == 0:
            p.collective(reduce, DP, 25 * MIB)
    p.compute(ADAM)


def reduced_by_another_library(p: Program) -> None:
    """The same by kernels named as an engine's own, of a group that the capture names."""
    distributed_data_parallel(p, CCL_REDUCE)


def ring_attention(p: Program) -> None:
    """Keys and values go round four ranks beside parts of attention."""
    for _ in layers(3):
        p.compute(GEMM)
        for _ in range(3):
            p.exchange(CP, sends=(1,), receives=(3,))
            p.compute(ATTENTION)
        p.compute(ATTENTION, GEMM, GEMM, GEMM)


def untold(layers_a_message: int) -> Callable[[Program], None]:
    """Messages of no known way right behind attention: of a ring in each layer, of a stage behind several."""

    def program(p: Program) -> None:
        for layer in range(8):
            p.compute(GEMM, ATTENTION)
            if layer % layers_a_message == 0:
                p.device.kernel(SEND_RECV, p.at + 50, p.at + 90, stream=20, launch=(p.thread, p.at, p.at + 5))
                p.at += 100

    return program


def ulysses(p: Program) -> None:
    """DeepSpeed-Ulysses: heads for tokens before attention and back behind it."""
    others = (1, 2, 3)
    for _ in layers(3):
        p.compute(GEMM)
        for _ in range(3):
            p.exchange(CP, sends=others, receives=others)
        p.compute(ATTENTION)
        p.exchange(CP, sends=others, receives=others)
        p.compute(GEMM, GEMM, GEMM)


def experts(p: Program, others: tuple[int, ...] = (1, 2, 3)) -> None:
    """Megatron's all-to-all dispatcher: tokens to experts and back."""
    for _, forward in layers(3):
        if forward:
            p.compute(GEMM, ATTENTION, GEMM)
        p.exchange(EP, sends=others, receives=others)
        p.compute(GEMM, GEMM)
        p.exchange(EP, sends=others, receives=others)
        if not forward:
            p.compute(GEMM, ATTENTION, GEMM)


def two_expert_ranks(p: Program) -> None:
    experts(p, (1,))


def gathered_experts(p: Program) -> None:
    """Megatron's all-gather dispatcher: it gathers and scatters at every layer as sequence parallelism does,
    but never around attention."""
    for _ in layers(3):
        p.compute(GEMM, ATTENTION, GEMM)
        p.collective(ALL_GATHER, EP)
        p.compute(GEMM, GEMM)
        p.collective(REDUCE_SCATTER, EP)


def middle_stage(p: Program) -> None:
    """The second of four stages, four micro-batches of two layers, one forward and one backward in turn."""

    def run() -> None:
        for _ in range(2):
            p.compute(GEMM, ATTENTION, GEMM, GEMM, GEMM)

    p.exchange(PP, receives=(0,))
    run()
    for i in range(4):
        p.exchange(PP, sends=(2,), receives=(2,))
        run()
        p.exchange(PP, sends=(0,), receives=(0,) if i < 3 else ())
        if i < 3:
            run()
    p.compute(ADAM)


def tied_embeddings(p: Program) -> None:
    """The same, and once a step the gradients of the embedding between the first and the last stage."""
    middle_stage(p)
    p.collective(ALL_REDUCE, DP, 64 * MIB)


def norms(p: Program) -> None:
    """Gradient norms: four bytes a step."""
    p.compute(GEMM, ATTENTION, GEMM, GEMM, GEMM)
    p.collective(ALL_REDUCE, OTHER, 4)


def shallow_data_parallel(p: Program) -> None:
    """One layer, and a bucket of the rest before its attention's backward: as often behind attention as TP's,
    but of different sizes."""
    p.compute(GEMM, ATTENTION, GEMM, GEMM, GEMM)
    p.collective(ALL_REDUCE, DP, MIB)
    p.compute(GEMM, ATTENTION, GEMM)
    p.collective(ALL_REDUCE, DP, 25 * MIB)


def found(
    folder: Path, program: Callable[[Program], None], repeats: int = 6
) -> dict[int, set[tuple[str, str]]]:
    """(dimension, evidence) by communicator."""
    p = Program()
    for _ in range(repeats):
        program(p)
    comm = activity_of(trace_of(p.builder, folder)).communication
    seen: dict[int, set[tuple[str, str]]] = {}
    columns = (comm.communicator.tolist(), comm.dimension.tolist(), comm.evidence.tolist())
    for communicator, dimension, evidence in zip(*columns, strict=True):
        seen.setdefault(communicator, set()).add((DIMENSIONS[dimension], EVIDENCE[evidence]))
    return seen


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (tensor_parallel, {TP: "tp"}),
        (served, {TP: "tp"}),
        (sequence_parallel, {TP: "tp"}),
        (fully_sharded, {DP: "dp"}),
        (sharded_and_tensor_parallel, {DP: "dp", TP: "tp"}),
        (distributed_data_parallel, {DP: "dp"}),
        (reduced_by_another_library, {DP: "dp"}),
        (ring_attention, {CP: "cp"}),
        (untold(1), {0: "cp"}),
        (untold(2), {0: "cp"}),
        (untold(4), {0: "pp"}),
        (ulysses, {CP: "cp"}),
        (experts, {EP: "ep"}),
        (two_expert_ranks, {EP: "ep"}),
        (middle_stage, {PP: "pp"}),
        (norms, {OTHER: "other"}),
        (gathered_keys, {CP: "cp"}),
        (served_by(CROSS_DEVICE), {0: "tp"}),
        (served_by(MULTIMEM), {0: "tp"}),
        (served_by(MSCCLPP), {0: "tp"}),
    ],
)
def test_one_reading_remains(
    tmp_path: Path, program: Callable[[Program], None], expected: dict[int, str]
) -> None:
    assert found(tmp_path, program) == {c: {(d, "pattern")} for c, d in expected.items()}


@pytest.mark.parametrize(
    ("program", "communicator"),
    [
        (gathered_experts, EP),
        (tied_embeddings, DP),
        (shallow_data_parallel, DP),
        (gathered_before_experts, EP),
        (gathered_behind_experts, EP),
        (reduced_at_the_end, 0),
        (scattered_everywhere, DP),
    ],
)
def test_several_readings_stay_unknown(
    tmp_path: Path, program: Callable[[Program], None], communicator: int
) -> None:
    assert found(tmp_path, program)[communicator] == {("unknown", "none")}


def test_a_few_calls_are_no_pattern(tmp_path: Path) -> None:
    def once(p: Program) -> None:
        p.compute(GEMM, ATTENTION, GEMM)
        p.collective(ALL_REDUCE, TP)

    assert found(tmp_path, once, 3) == {TP: {("unknown", "none")}}
