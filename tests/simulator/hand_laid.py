"""A small capture laid by hand, with a known answer: two ranks, four steps, one thing wrong in each step.

For tests that need a capture with much in it: computation, hidden and exposed communication, copies, ranges,
collections. Nothing of it was simulated.

The model is a mixture-of-experts transformer of eight layers on two GPUs: parameters gathered and
gradients reduced over the data-parallel communicator, tokens exchanged over the expert-parallel one.
Planted: the last gradient reduction and every token exchange exposed, gathers hidden, step 1 with a
garbage collection on rank 0 (for which rank 1 waits in its next collective), step 2 with slow data
loading, an optimizer that is launch-starved in every step. The answer comes from adding up the lengths
laid (hand_laid_ranks), not from an analyzer.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from perfdoc.profiling.whole_file import refuse_overwrite, whole_file
from tests.captures.events import NcclPayload
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import Timeline, TimelineBuilder
from tests.simulator.hand_laid_ranks import DOMAIN, Channel, Ledger, RankLane, Work, communicate

STEPS = 4
LAYERS = 8
_MIB = 2**20

_GATHER = Channel(
    stream=20,
    communicator=0x9E3779B97F4A7C15,
    kernel="ncclDevKernel_AllGather_RING_LL",
    call="ncclAllGather",
    torch_name="_allgather_base",
    group_name="1",
    group_description="DATA_PARALLEL_GROUP_WITH_CP",
)
_REDUCE = Channel(
    stream=20,
    communicator=_GATHER.communicator,
    kernel="ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL",
    call="ncclReduceScatter",
    torch_name="_reduce_scatter_base",
    group_name="1",
    group_description="DATA_PARALLEL_GROUP_WITH_CP",
    reduction="Avg",
)
_EXCHANGE = Channel(
    stream=24,
    communicator=0xC2B2AE3D27D4EB4F,
    kernel="ncclDevKernel_SendRecv",
    call="ncclAlltoAll",
    torch_name="all_to_allv",
    group_name="2",
    group_description="EXPERT_MODEL_PARALLEL_GROUP",
    peer_to_peer=True,
)

_GEMM = "nvjet_tst_256x128_64x4_2x1_v_bz_coopA_NNT"
_GEMM_SMALL = "nvjet_tst_128x128_64x6_1x2_h_bz_TNT"
_SDPA = "cudnn_generated_fort_native_sdpa_sm90_flash_{}_wgmma_f16_knob_{}_4x1x1_kernel0_0"
_SDPA_FORWARD = _SDPA.format("fprop", "7_64x128x128")
_SDPA_BACKWARD = _SDPA.format("bprop", "26_128x64x128")
_NORM_FORWARD = "rmsnorm_fwd_tuned_kernel"
_NORM_BACKWARD = "rmsnorm_bwd_tuned_kernel"
_ELEMENTWISE = "vectorized_elementwise_kernel"
_ADAM = "multi_tensor_apply_kernel"
_TE = "void transformer_engine::normalization"
_TRAITS = "<transformer_engine::normalization::Kernel_traits<__nv_bfloat16, 1>>(Params)"
_ADD = "<(int)4, at::native::CUDAFunctor_add<c10::BFloat16>>(int, T2, T3)"
_FULL_NAMES = {
    _NORM_FORWARD: f"{_TE}::{_NORM_FORWARD}{_TRAITS}",
    _NORM_BACKWARD: f"{_TE}::{_NORM_BACKWARD}{_TRAITS}",
    _ELEMENTWISE: f"void at::native::{_ELEMENTWISE}{_ADD}",
    _ADAM: f"void {_ADAM}<TensorListMetadata<(int)4>, AdamFunctorMaster<float, float, int>>(T1, T2)",
}


@dataclass(frozen=True, kw_only=True)
class DeviceAnswer:
    """The truth about one device's window, in ns; the four leaves sum to end - start."""

    rank: int
    pid: int
    device: int
    steps: int
    window_start_ns: int
    window_end_ns: int
    step_start_ns: tuple[int, ...]
    """Start of each step on the device."""
    compute_ns: int
    exposed_comm_ns: int
    exposed_memcpy_ns: int
    idle_ns: int


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The truth about the demonstration capture."""

    devices: tuple[DeviceAnswer, ...]


def _work(name: str, duration_ns: int, grid: tuple[int, int, int] = (132, 1, 1)) -> Work:
    return Work(name=name, full_name=_FULL_NAMES.get(name, name), duration_ns=duration_ns, grid=grid)


def hand_laid_timeline() -> tuple[Timeline, Answer]:
    """The capture and its answer; the same on every call."""
    builder = TimelineBuilder()
    lanes = []
    for rank in (0, 1):
        process = builder.process(pid=41000 + rank, rank=rank)
        for channel in (_GATHER, _EXCHANGE):
            process.group(channel.group_name, channel.group_description, (0, 1))
        device = process.device(rank)
        lanes.append(
            RankLane(rank=rank, thread=process.thread(), device=device, host_ns=1_000_000, now_ns=1_000_000)
        )
    builder.diagnostic("Profiling has started.")
    for lane in lanes:
        for number, channel in enumerate((_GATHER, _EXCHANGE)):
            begin = 100_000 + number * 400_000
            made = NcclPayload(communicator=channel.communicator, ranks=2, rank=lane.rank, device=lane.rank)
            lane.thread.range("ncclCommInitRankConfig", begin, begin + 390_000, domain=DOMAIN, payload=made)
    # Work before the first step lies outside the window and must not count.
    for lane in lanes:
        lane.compute(_work(_ELEMENTWISE, 250_000))
        lane.wait_for_device()
    step_starts: list[list[int]] = [[], []]
    for step in range(STEPS):
        opened = [lane.host_ns for lane in lanes]
        _lay_step(step, lanes, step_starts)
        for lane, begin in zip(lanes, opened, strict=True):
            lane.wait_for_device()
            lane.thread.range(f"perfdoc.step {step}", begin, lane.host_ns)
            lane.host_ns += 20_000
    answers = [_answer(lane, starts) for lane, starts in zip(lanes, step_starts, strict=True)]
    return builder.build(), Answer(devices=tuple(answers))


def _answer(lane: RankLane, starts: Sequence[int]) -> DeviceAnswer:
    ledger = lane.ledger
    assert ledger.total == lane.now_ns - starts[0], "the ledger lost track of the device"
    return DeviceAnswer(
        rank=lane.rank,
        pid=lane.device.process.pid,
        device=lane.device.info.ordinal,
        steps=len(starts),
        window_start_ns=starts[0],
        window_end_ns=lane.now_ns,
        step_start_ns=tuple(starts),
        compute_ns=ledger.compute,
        exposed_comm_ns=ledger.exposed_comm,
        exposed_memcpy_ns=ledger.exposed_memcpy,
        idle_ns=ledger.idle,
    )


def _lay_step(step: int, lanes: Sequence[RankLane], step_starts: list[list[int]]) -> None:
    for lane, starts in zip(lanes, step_starts, strict=True):
        # The gradients are cleared first, so the step's device window opens before the data are there.
        lane.clear(256 * _MIB, 95_001)
        starts.append(lane.now_ns - 95_001)
        if step == 0:
            # What came before, idle time included, is outside the window.
            lane.ledger = Ledger(exposed_memcpy=95_001)
        lane.busy_host("perfdoc.data", 6_400_000 if step == 2 else 700_000)
        lane.copy(16 * _MIB, 321_007)
    for layer in range(LAYERS):
        _forward(layer, lanes)
    for lane in lanes:
        lane.wait_for_device()
        if step == 1 and lane.rank == 0:
            lane.busy_host("perfdoc.gc", 3_100_000)
    for layer in reversed(range(LAYERS)):
        _backward(layer, lanes, last=layer == 0)
    for lane in lanes:
        for chunk in range(12):
            lane.compute(_work(_ADAM, 88_000 + 311 * chunk, grid=(320, 1, 1)))
        # Short kernels after a synchronisation: each ends before the next is launched.
        lane.wait_for_device()
        for scalar in range(40):
            lane.compute(_work(_ELEMENTWISE, 2_100 + 13 * scalar, grid=(1, 1, 1)))


def _forward(layer: int, lanes: Sequence[RankLane]) -> None:
    for lane in lanes:
        lane.compute(_work(_NORM_FORWARD, 31_007 + layer))
        # Rank 1 is a little slower here, so rank 0 waits in the collectives.
        lane.compute(_work(_GEMM_SMALL, 290_003 + 7_000 * lane.rank))
    attention = (
        _work(_SDPA_FORWARD, 410_011, grid=(16, 8, 4)),
        _work(_GEMM_SMALL, 180_101),
        _work(_ELEMENTWISE, 22_003),
        _work(_NORM_FORWARD, 30_901),
    )
    communicate(lanes, _GATHER, size_bytes=24 * _MIB, transfer_ns=395_017, beneath=attention)
    communicate(lanes, _EXCHANGE, size_bytes=8 * _MIB, transfer_ns=131_071 + 17 * layer)
    for lane in lanes:
        lane.compute(_work(_GEMM, 360_019), prefetch_bytes=4 * _MIB if layer == 3 else 0)
        lane.compute(_work(_ELEMENTWISE, 41_003))
        beside = _work(_GEMM_SMALL, 120_000) if layer == 5 else None
        lane.compute(_work(_GEMM, 352_001), beside=beside)
    communicate(lanes, _EXCHANGE, size_bytes=8 * _MIB, transfer_ns=129_033)


def _backward(layer: int, lanes: Sequence[RankLane], *, last: bool) -> None:
    communicate(lanes, _EXCHANGE, size_bytes=8 * _MIB, transfer_ns=128_021)
    for lane in lanes:
        for name, duration_ns in (
            (_GEMM, 330_007),
            (_GEMM, 341_003),
            (_ELEMENTWISE, 52_009),
            (_GEMM, 336_013),
        ):
            lane.compute(_work(name, duration_ns + layer))
    communicate(lanes, _EXCHANGE, size_bytes=8 * _MIB, transfer_ns=127_013)
    attention = (
        _work(_NORM_BACKWARD, 61_003),
        _work(_SDPA_BACKWARD, 900_037, grid=(16, 8, 4)),
        _work(_GEMM_SMALL, 210_011),
        _work(_GEMM_SMALL, 208_013),
        _work(_ELEMENTWISE, 25_001),
        _work(_NORM_BACKWARD, 60_007),
    )
    communicate(lanes, _REDUCE, size_bytes=24 * _MIB, transfer_ns=610_007, beneath=attention)
    if last:
        communicate(lanes, _REDUCE, size_bytes=48 * _MIB, transfer_ns=1_210_003)


def write_hand_laid(directory: Path, *, force: bool = False) -> tuple[Path, Path]:
    """Write demo.sqlite and answer.json into a folder; CaptureError where it is there, unless `force`."""
    trace, truth = Path(directory) / "demo.sqlite", Path(directory) / "answer.json"
    for path in (trace, truth):
        refuse_overwrite(path, replace=force)
    for path, content in zip((trace, truth), _contents(), strict=True):
        with whole_file(path, replace=force) as part:
            part.write_bytes(content)
    return trace, truth


@cache
def _contents() -> tuple[bytes, bytes]:
    """Of both files, made once: dozens of tests write them."""
    timeline, answer = hand_laid_timeline()
    with tempfile.TemporaryDirectory() as folder:
        trace = write_nsys_sqlite(timeline, Path(folder) / "demo.sqlite").read_bytes()
    return trace, (json.dumps(asdict(answer), indent=2) + "\n").encode()
