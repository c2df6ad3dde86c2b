"""What PyTorch's DistributedDataParallel sends is data-parallel, by where it is launched."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.analyzers.device.activity import DIMENSIONS, EVIDENCE
from perfdoc.traces import Trace
from perfdoc.traces.kineto.read import read_kineto
from perfdoc.traces.load import read_trace
from tests.analyzers.tiny import ALL_REDUCE, GEMM, activity_of, trace_of
from tests.captures.events import Collective
from tests.captures.kineto import write_kineto
from tests.captures.timeline import TimelineBuilder, one_gpu

BROADCAST = "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
NODE = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
FORWARD = "DistributedDataParallel.forward"
DP, UNKNOWN = ("dp", "range"), ("unknown", "none")


def found(trace: Trace) -> list[tuple[str, str]]:
    """(dimension, evidence) of every communication, by start."""
    comm = activity_of(trace).communication
    rows = zip(comm.dimension.tolist(), comm.evidence.tolist(), strict=True)
    return [(DIMENSIONS[d], EVIDENCE[e]) for d, e in rows]


def step(
    folder: Path, sent: list[tuple[str, str, str, int]], *, around: str = FORWARD, world: int = 2
) -> Trace:
    """Of a world of so many ranks: (kernel, what it is launched in, group, ranks), one after the other on a
    stream of their own. A forward on the main thread is called `around`; operators are autograd's."""
    builder = TimelineBuilder()
    process, *_ = [builder.process(pid=1000 + i, rank=i) for i in range(world)]
    main, autograd, device = process.thread(), process.thread(), process.device()
    main.range(around, 0, 1000)
    device.kernel(GEMM, 100, 200, stream=7, launch=(main, 50, 60))
    for i, (name, operator, group, ranks) in enumerate(sent):
        at = 1000 * i + 1000 if operator != around else 100 + 10 * i
        thread = main if operator == around else autograd
        if operator != around:
            process.operator(thread, operator, at, at + 100)
            process.operator(thread, "c10d::allreduce_", at + 10, at + 90)
        operation = {ALL_REDUCE: "allreduce", BROADCAST: "broadcast", SEND_RECV: "all_to_all"}[name]
        collective = Collective(operation=operation, group_name=group, ranks=tuple(range(ranks)))
        begin = 10_000 + 1000 * i
        device.kernel(
            name, begin, begin + 500, stream=20, launch=(thread, at + 40, at + 45), collective=collective
        )
    return read_kineto(write_kineto(builder.build(), folder / "x.json", process.pid))


def test_ddp_reduces_gradients_and_broadcasts_buffers(tmp_path: Path) -> None:
    """Of one group of all ranks: two buckets launched in AccumulateGrad, a broadcast in DDP's forward. On the
    same stream SyncBatchNorm reduces in its own node and somebody exchanges embeddings: neither is DDP's."""
    sent = [
        (BROADCAST, FORWARD, "0", 2),
        (ALL_REDUCE, NODE, "0", 2),
        (ALL_REDUCE, "autograd::engine::evaluate_function: SyncBatchNormBackward", "0", 2),
        (ALL_REDUCE, "torch::autograd::AccumulateGrad", "0", 2),
        (SEND_RECV, "autograd::engine::evaluate_function: All2All_Pooled_WaitBackward", "0", 2),
        (SEND_RECV, NODE, "0", 2),
    ]
    assert found(step(tmp_path, sent)) == [DP, DP, UNKNOWN, DP, UNKNOWN, UNKNOWN]


@pytest.mark.parametrize(
    ("around", "node", "world", "ranks"),
    [
        # Nothing in the capture is DDP's: the hook may be anybody's.
        ("MyModel.forward", NODE, 2, 2),
        ("DistributedDataParallel.forwarding", NODE, 2, 2),
        # Other parallelism reduces in the node of its own function.
        (FORWARD, "autograd::engine::evaluate_function: AccumulateGradScalerBackward", 2, 2),
        # A group of 2 of 4 ranks: a hook that sums a norm's gradients over tensor-parallel ranks looks so.
        (FORWARD, NODE, 4, 2),
    ],
)
def test_what_may_be_somebody_elses_stays_unknown(
    tmp_path: Path, around: str, node: str, world: int, ranks: int
) -> None:
    sent = [(BROADCAST, around, "0", ranks), (ALL_REDUCE, node, "0", ranks)]
    assert found(step(tmp_path, sent, around=around, world=world)) == [UNKNOWN, UNKNOWN]


def test_tensor_parallelism_reduces_in_its_own_function(tmp_path: Path) -> None:
    node = "autograd::engine::evaluate_function: _CopyToModelParallelRegionBackward"
    assert found(step(tmp_path, [(ALL_REDUCE, node, "0", 2)])) == [("tp", "operator")]


def test_of_two_groups_the_one_of_all_ranks_is_ddps(tmp_path: Path) -> None:
    sent = [(ALL_REDUCE, NODE, "0", 4), (ALL_REDUCE, NODE, "1", 2), (BROADCAST, FORWARD, "1", 2)]
    assert found(step(tmp_path, sent, world=4)) == [DP, UNKNOWN, UNKNOWN]


@pytest.mark.parametrize(("streams", "expected"), [((20, 20), DP), ((20, 21), UNKNOWN)])
def test_ranges_of_emit_nvtx(tmp_path: Path, streams: tuple[int, int], expected: tuple[str, str]) -> None:
    """Nsight has no group's size: one stream that reduces so is DDP's, of two either may be another's."""
    builder = TimelineBuilder()
    process = builder.process()
    main, autograd, device = process.thread(), process.thread(), process.device()
    main.range(f"{FORWARD}, op_id = 4", 0, 100)
    device.kernel(GEMM, 10, 20, stream=7, launch=(main, 5, 8))
    for i, stream in enumerate(streams):
        at = 200 + 100 * i
        autograd.range(f"{NODE}, op_id = {70 + i}", at, at + 50)
        autograd.range(f"torch::autograd::AccumulateGrad, seq = 9, op_id = {80 + i}", at + 10, at + 40)
        device.kernel(ALL_REDUCE, 10 * at, 10 * at + 50, stream=stream, launch=(autograd, at + 20, at + 25))
    assert found(trace_of(builder, tmp_path)) == [expected, expected]


def test_ddp_speaks_for_no_other_and_a_range_inside_is_believed_first(tmp_path: Path) -> None:
    """A hook's own range says tp of what it launches; its stream then says so of what has no name, but not of
    what DDP launched."""
    builder, thread, device = one_gpu()
    thread.range(FORWARD, 0, 100)
    device.kernel(GEMM, 10, 20, stream=7, launch=(thread, 5, 8))
    for at in (200, 300):
        thread.range(NODE, at, at + 50)
    thread.range("tp all reduce", 310, 340)
    for i, at in enumerate((220, 320, 420)):
        device.kernel(ALL_REDUCE, 1000 * i + 1000, 1000 * i + 1500, stream=20, launch=(thread, at, at + 5))
    assert found(trace_of(builder, tmp_path)) == [DP, ("tp", "range"), ("tp", "range")]


def test_real_jobs(shared_traces: Path) -> None:
    """ResNet-like job of 2 ranks: 15 buckets and 6 broadcasts of buffers, nothing else. DLRM: 18 and 3
    all-reduces of DDP; sharded embeddings' all-to-alls are no dimension's."""
    folder = shared_traces / "kineto"
    assert found(read_trace(folder / "ddp_nccl_metadata_a100_rank0of2.json.gz")) == [DP] * 21
    of_dlrm = found(read_trace(folder / "dlrm_layernorm_a100_rank3of8.json.gz"))
    assert (of_dlrm.count(DP), of_dlrm.count(UNKNOWN)) == (18, 42)
    of_rank = found(read_trace(folder / "dlrm_8gpu_v100_rank0.pt.trace.json.gz"))
    assert (of_rank.count(DP), of_rank.count(UNKNOWN)) == (3, 5)
