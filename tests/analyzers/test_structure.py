"""Dimensions from what a communication is and the job's layout, and its bus bandwidth."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfdoc.analyzers.communication.table import bus_bandwidth_gbps, communication_table
from perfdoc.analyzers.device.activity import DIMENSIONS, EVIDENCE
from perfdoc.traces import Trace
from perfdoc.traces.given_facts import given_facts
from perfdoc.traces.job_facts import JobFacts
from perfdoc.traces.kineto.read import read_kineto
from tests.analyzers.tiny import ALL_GATHER, ALL_REDUCE, GEMM, activity_of, one_device, trace_of
from tests.captures.events import Collective, NcclPayload
from tests.captures.kineto import write_kineto
from tests.captures.timeline import TimelineBuilder, one_gpu

SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
REDUCE_SCATTER = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
DEEP_EP = "void deep_ep::intranode::dispatch<8, 768>(int4*)"
HYBRID_EP = "void hybrid_ep::dispatch_kernel<hybrid_ep::Config<1>>(x)"
NVSHMEM = "nvshmemi_alltoall_on_stream_kernel"
USER_BUFFERS = "kuserbuffers_pushsend(int)"
DATA_ONLY = ["dp=8", "tp=1", "cp=1", "pp=1", "ep=1"]


def found(trace: Trace, facts: JobFacts) -> list[tuple[str, str]]:
    """(dimension, evidence) of every communication, by start."""
    comm = activity_of(trace, facts=facts).communication
    rows = zip(comm.dimension.tolist(), comm.evidence.tolist(), strict=True)
    return [(DIMENSIONS[d], EVIDENCE[e]) for d, e in rows]


@pytest.mark.parametrize(
    ("name", "layout", "dimension"),
    [
        # One dimension alone: whatever it does is that dimension's, the norm's all-reduce included.
        (ALL_REDUCE, DATA_ONLY, "dp"),
        (ALL_REDUCE, ["dp=1", "tp=8", "cp=1", "pp=1", "ep=1"], "tp"),
        (SEND_RECV, ["dp=1", "tp=1", "cp=1", "pp=4", "ep=1"], "pp"),
        # Experts lie on the ranks of data parallelism: an exchange is theirs, a reduction may be.
        (SEND_RECV, [*DATA_ONLY[:-1], "ep=8"], "ep"),
        (ALL_REDUCE, [*DATA_ONLY[:-1], "ep=8"], None),
        # Nobody said that there are no experts: an exchange may be theirs.
        (SEND_RECV, ["dp=8", "tp=1", "cp=2", "pp=1"], None),
        # A reduction over the only ranks that there are is not.
        (ALL_REDUCE, ["world_size=8", "tp=8"], "tp"),
        (ALL_REDUCE, ["dp=8", "tp=1", "cp=1", "pp=1"], "dp"),
        # Send/receive is pp's or cp's where both have several ranks; with cp=1 only pp's.
        (SEND_RECV, ["dp=2", "tp=2", "cp=2", "pp=2", "ep=1"], None),
        (SEND_RECV, ["dp=2", "tp=2", "cp=1", "pp=2", "ep=1"], "pp"),
        (SEND_RECV, ["dp=2", "tp=2", "cp=2", "pp=1", "ep=1"], "cp"),
        # dp, tp and the norm's group all use all-reduce, and its size is not in the capture.
        (ALL_REDUCE, ["dp=2", "tp=2", "cp=1", "pp=1", "ep=1"], None),
        # A layout that is known in part excludes nothing.
        (SEND_RECV, ["pp=4"], None),
        (ALL_REDUCE, [], None),
        # These serve one dimension, whatever the layout.
        (DEEP_EP, [], "ep"),
        ("void dpsk::ep::internode::cached_notify<false>(int)", [], "ep"),
        ("void uccl::internode::combine<false, 4>(int4*)", [], "ep"),
        ("void vendor::moe::internode_ll::dispatch<true>(void*)", [], "ep"),
        ("moeA2APrepareCombineKernel(int*)", [], "ep"),
        # DeepEP's send and receive of pipeline stages is none of theirs; Mooncake runs any collective.
        ("void deep_ep::elastic::pp_send_impl<4>(void*)", [], None),
        ("void deep_ep::elastic::pp_send_impl<4>(void*)", ["dp=1", "tp=1", "cp=1", "pp=4", "ep=1"], "pp"),
        ("mooncake::enqueueTaskKernel(c10d::OpType)", [], None),
        (HYBRID_EP, DATA_ONLY, "ep"),
        (USER_BUFFERS, [], "tp"),
        # NVSHMEM serves any: its exchange is the experts', if the layout has them.
        (NVSHMEM, [], None),
        (NVSHMEM, [*DATA_ONLY[:-1], "ep=8"], "ep"),
        # What the layout has no use for stays unknown.
        (SEND_RECV, DATA_ONLY, None),
    ],
)
def test_what_the_layout_leaves(tmp_path: Path, name: str, layout: list[str], dimension: str | None) -> None:
    trace = one_device(tmp_path, [(name, 0, 100, 20), (GEMM, 0, 10, 7)])
    expected = ("unknown", "none") if dimension is None else (dimension, "structure")
    assert found(trace, given_facts(layout)) == [expected]


def sized(folder: Path, kernels: list[tuple[str, str, str, int]]) -> Trace:
    """(kernel, operation, group, ranks), 10 µs each, one after the other, all on a stream that computes."""
    builder = TimelineBuilder()
    process = builder.process(rank=0)
    device = process.device()
    device.kernel(GEMM, 0, 1000, stream=7)
    for i, (name, operation, group, ranks) in enumerate(kernels, 1):
        collective = Collective(
            operation=operation, group_name=group, ranks=tuple(range(ranks)), dtype="Float", in_elements=1000
        )
        device.kernel(name, 10_000 * i, 10_000 * (i + 1), stream=7, collective=collective)
    return read_kineto(write_kineto(builder.build(), folder / "x.json", process.pid))


def test_the_size_of_a_group_tells_it_apart(tmp_path: Path) -> None:
    """World 24 = tp 3 x dp 8, no pipeline: groups of 8 are dp's, and of 4, a part of them. Groups of 3 are
    tp's for a reduce-scatter; an all-reduce over 3 may be the norm's, unless its group did what is tp's."""
    trace = sized(
        tmp_path,
        [
            (ALL_REDUCE, "allreduce", "a", 8),
            (REDUCE_SCATTER, "_reduce_scatter_base", "b", 3),
            (ALL_REDUCE, "allreduce", "c", 3),
            (ALL_REDUCE, "allreduce", "b", 3),
            (ALL_REDUCE, "allreduce", "d", 24),
            (ALL_REDUCE, "allreduce", "f", 4),
            (ALL_REDUCE, "allreduce", "e", 5),
        ],
    )
    assert [d for d, _ in found(trace, given_facts(["dp=8", "tp=3", "cp=1", "pp=1", "ep=1"]))] == [
        *("dp", "tp", "unknown", "tp", "other", "dp", "unknown")
    ]
    assert {d for d, _ in found(trace, JobFacts())} == {"unknown"}


def test_an_exchange_that_no_dimension_makes_hides_no_reduction(tmp_path: Path) -> None:
    """Embeddings sharded over the 8 data-parallel ranks: the group of all of them reduces gradients and
    exchanges embeddings. Where dp alone has several ranks the reduction can be nothing else."""
    kernels = [
        (ALL_REDUCE, "allreduce", "a", 8),
        (SEND_RECV, "all_to_all", "a", 8),
        (ALL_GATHER, "_allgather_base", "a", 8),
        # Of a part of the ranks: an exchange tells of a dimension that the layout lacks.
        (ALL_REDUCE, "allreduce", "b", 4),
        (SEND_RECV, "all_to_all", "b", 4),
    ]
    trace = sized(tmp_path, kernels)
    dimensions = [d for d, _ in found(trace, given_facts(DATA_ONLY))]
    assert dimensions == ["dp", "unknown", "dp", "unknown", "unknown"]
    # Of two dimensions the exchange may be one's that the layout lacks: on its group nothing is decided.
    two = given_facts(["dp=8", "tp=2", "cp=1", "pp=1", "ep=1"])
    assert {d for d, _ in found(trace, two)} == {"unknown"}


def test_first_and_last_stage_share_an_embedding(tmp_path: Path) -> None:
    """dp=3, pp=3: an all-reduce over 2 ranks is the embedding's or a pair of stages'; over 9 it is no
    dimension's."""
    trace = sized(tmp_path, [(ALL_REDUCE, "allreduce", "a", 2), (ALL_REDUCE, "allreduce", "b", 9)])
    dimensions = [d for d, _ in found(trace, given_facts(["dp=3", "tp=1", "cp=1", "pp=3", "ep=1"]))]
    assert dimensions == ["unknown", "other"]


def test_stronger_evidence_is_not_touched(tmp_path: Path) -> None:
    """The group's description says tp; a layout that would say dp changes nothing."""
    builder = TimelineBuilder()
    process = builder.process(rank=0)
    collective = Collective(operation="allreduce", group_description="TENSOR_MODEL_PARALLEL_GROUP")
    process.device().kernel(ALL_REDUCE, 0, 100, collective=collective)
    trace = read_kineto(write_kineto(builder.build(), tmp_path / "x.json", process.pid))
    assert found(trace, given_facts(DATA_ONLY)) == [("tp", "group_description")]


@pytest.mark.parametrize(
    ("collective", "gbps"),
    [
        # 1 MB over 8 ranks in 1 ms: 1 GB/s times the factor.
        ("all_reduce", 1.75),
        ("all_gather", 7.0),
        ("reduce_scatter", 7.0),
        ("all_to_all", 7.0),
        ("broadcast", 1.0),
        ("send_recv", None),
        ("", None),
    ],
)
def test_bus_bandwidth_by_collective(collective: str, gbps: float | None) -> None:
    one = np.array([1])
    assert bus_bandwidth_gbps(collective, one * 1_000_000, one * 8, one * 1_000_000) == gbps


def test_the_table_has_the_bandwidth_where_the_capture_has_the_facts(tmp_path: Path) -> None:
    """4000 bytes all-reduced by 4 ranks in 10 µs: 0.4 GB/s x 2 x 3/4 = 0.6. An all-gather of 4000 bytes a
    rank: 0.4 x 3 = 1.2."""
    trace = sized(tmp_path, [(ALL_REDUCE, "allreduce", "a", 4), (ALL_GATHER, "_allgather_base", "b", 4)])
    rows = communication_table(trace, activity_of(trace), 0, 100_000)
    assert {r.collective: r.bus_bandwidth_gbps for r in rows} == {
        "all_reduce": pytest.approx(0.6),
        "all_gather": pytest.approx(1.2),
    }


def test_an_all_to_all_has_a_bandwidth_though_its_kernels_only_send_and_receive(tmp_path: Path) -> None:
    """4000 bytes cut for 4 ranks in 10 us: 0.1 GB/s to each x 3. A send has none, and a row of its own."""
    calls = [
        (SEND_RECV, "all_to_all", "a", 4),
        (SEND_RECV, "all_to_all", "b", 4),
        (SEND_RECV, "send", "b", 4),
    ]
    trace = sized(tmp_path, calls)
    rows = communication_table(trace, activity_of(trace), 0, 100_000)
    assert {(r.group, r.collective): r.bus_bandwidth_gbps for r in rows} == {
        ("a", "all_to_all"): pytest.approx(0.3),
        ("b", "all_to_all"): pytest.approx(0.3),
        ("b", "send_recv"): None,
    }


def test_coalesced_collectives_have_a_bandwidth_and_mixed_groups_have_none(tmp_path: Path) -> None:
    """As megatron-core's optimizer does it: reduce-scatters of 1000 and 3000 bytes a rank, over 4 ranks, in a
    group and a kernel of 10 us: 0.4 GB/s x 3. An all-gather and a reduce-scatter add up to no such figure."""
    builder, thread, device = one_gpu()
    device.kernel(GEMM, 0, 100, stream=7)
    alike, mixed = ("ncclReduceScatter", "ncclReduceScatter"), ("ncclAllGather", "ncclReduceScatter")
    for at, kernel, calls in ((1000, REDUCE_SCATTER, alike), (2000, ALL_GATHER, mixed)):
        thread.range("ncclGroupStart", at, at + 2, domain="NCCL")
        for i, (call, size) in enumerate(zip(calls, (1000, 3000), strict=True)):
            payload = NcclPayload(communicator=0xA, bytes=size, ranks=4)
            thread.range(call, at + 10 * (i + 1), at + 10 * i + 15, domain="NCCL", payload=payload)
        thread.range("ncclGroupEnd", at + 50, at + 90, domain="NCCL")
        launch = (thread, at + 60, at + 70)
        device.kernel(kernel, 20 * at, 20 * at + 10_000, stream=20, launch=launch)
    trace = trace_of(builder, tmp_path)
    rows = communication_table(trace, activity_of(trace), 0, 100_000)
    assert {r.collective: (r.bytes, r.bus_bandwidth_gbps) for r in rows} == {
        "reduce_scatter": (4000, pytest.approx(1.2)),
        "all_gather": (4000, None),
    }


def test_a_copy_that_nccl_launches_is_communication(tmp_path: Path) -> None:
    """Copies inside the GPU: two each in an all-gather's call, in that of a group of one rank, and alone.
    The first two move data between ranks, 48 + 16 bytes. So does one between GPUs."""
    builder, thread, device = one_gpu()
    device.kernel(GEMM, 0, 100, stream=7)
    for start, ranks in ((1000, 4), (3000, 1), (5000, None)):
        if ranks is not None:
            payload = NcclPayload(communicator=77, bytes=64, ranks=ranks)
            thread.range("ncclAllGather", start, start + 500, domain="NCCL", payload=payload)
        for part, size in enumerate((48, 16)):
            at = start + 600 + 200 * part
            launch = (thread, start + 100 + 50 * part, start + 140 + 50 * part)
            device.copy("device_to_device", size, at, at + 200, stream=20, launch=launch)
    device.copy("peer_to_peer", 4096, 7000, 7500, stream=21)
    trace = trace_of(builder, tmp_path)
    activity = activity_of(trace)
    assert activity.communication.start_ns.tolist() == [1600, 1800, 7000]
    assert activity.communication.bytes.tolist() == [48, 16, 4096]
    assert activity.copies.total_ns == 800
    rows = communication_table(trace, activity, 0, 8000)
    assert [(r.count, r.bytes, r.bus_bandwidth_gbps) for r in rows] == [(1, 4096, None), (2, 64, None)]


def test_a_copy_of_a_group_that_was_created_with_one_rank_is_none(tmp_path: Path) -> None:
    """NCCL says how many ranks there are where it creates a communicator, and not in each call."""
    builder, thread, device = one_gpu()
    device.kernel(GEMM, 0, 100, stream=7)
    for at, communicator, ranks in ((1000, 77, 1), (3000, 78, 2), (5000, 79, None)):
        if ranks is not None:
            made = NcclPayload(communicator=communicator, ranks=ranks, rank=0, device=0)
            thread.range("ncclCommInitRank", at - 300, at - 200, domain="NCCL", payload=made)
        payload = NcclPayload(communicator=communicator, bytes=64)
        thread.range("ncclAllGather", at, at + 500, domain="NCCL", payload=payload)
        launch = (thread, at + 100, at + 140)
        device.copy("device_to_device", 64, at + 600, at + 800, stream=20, launch=launch)
    activity = activity_of(trace_of(builder, tmp_path))
    assert activity.communication.start_ns.tolist() == [3600, 5600]
    assert activity.copies.total_ns == 200


def test_batched_copies_in_a_call_of_nccl_are_communication_without_payloads(tmp_path: Path) -> None:
    """A collective on copy engines (NCCL 2.28) copies in batches; a group of one rank, and a program, singly;
    and a program's own batch is in no call of NCCL's."""
    builder, thread, device = one_gpu()
    device.kernel(GEMM, 0, 100, stream=7)
    batch, single = "cudaMemcpyBatchAsync_v12080", "cudaMemcpyAsync_v3020"
    for at, domain, call in ((1000, "NCCL", batch), (2000, "NCCL", single), (3000, "mine", batch)):
        thread.range("ncclAllGather", at, at + 500, domain=domain)
        device.copy("device_to_device", 64, at + 600, at + 800, launch=(thread, at + 100, at + 140, call))
    activity = activity_of(trace_of(builder, tmp_path))
    assert activity.communication.start_ns.tolist() == [1600]
    assert activity.copies.total_ns == 400
