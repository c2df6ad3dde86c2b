from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoc.analyzers.communication.table import communication_table
from perfdoc.analyzers.device.activity import DIMENSIONS, EVIDENCE
from perfdoc.analyzers.device.dimension_names import NAMES, dimension_of_group, dimension_of_range
from perfdoc.analyzers.device.launches import innermost
from perfdoc.traces import Trace
from perfdoc.traces.kineto.read import read_kineto
from tests.analyzers.tiny import ALL_GATHER, ALL_REDUCE, GEMM, activity_of, trace_of
from tests.captures.events import Collective, NcclPayload
from tests.captures.kineto import write_kineto
from tests.captures.timeline import TimelineBuilder, one_gpu

SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def found(trace: Trace) -> list[tuple[int, str, str]]:
    """(start, dimension, evidence) of every communication, by start."""
    comm = activity_of(trace).communication
    rows = zip(comm.start_ns.tolist(), comm.dimension.tolist(), comm.evidence.tolist(), strict=True)
    return [(start, DIMENSIONS[d], EVIDENCE[e]) for start, d, e in rows]


@pytest.mark.parametrize(
    ("description", "dimension"),
    [
        ("TENSOR_MODEL_PARALLEL_GROUP", "tp"),
        ("DATA_PARALLEL_GROUP", "dp"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "dp"),
        ("DATA_PARALLEL_GROUP_WITH_CP_AG", "dp"),
        ("DATA_PARALLEL_GROUP_WITH_CP_GLOO", "dp"),
        ("INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP", "dp"),
        ("EXPERT_DATA_PARALLEL_GROUP", "dp"),
        ("CONTEXT_PARALLEL_GROUP", "cp"),
        ("HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L1", "cp"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "ep"),
        ("EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP", "ep"),
        ("EXPERT_TENSOR_PARALLEL_GROUP", "tp"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"),
        ("EMBEDDING_GROUP", "other"),
        ("POSITION_EMBEDDING_GROUP", "other"),
        ("MODEL_PARALLEL_GROUP", "other"),
        ("TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP", "other"),
        ("mesh_dp_shard_cp", "dp"),
        ("mesh_tp", "tp"),
        ("default_pg", None),
        ("undefined", None),
        ("", None),
        ("MY_TENSOR_MODEL_PARALLEL_GROUP_2", None),
    ],
)
def test_process_groups(description: str, dimension: str | None) -> None:
    assert dimension_of_group(description) == dimension


@pytest.mark.parametrize(
    ("name", "dimension"),
    [
        ("all_reduce grad [layers.0.ffn.w1.weight]", "dp"),
        ("finish_gradient_synchronization", "dp"),
        ("ddp broadcast init params", "dp"),
        ("FSDP::all_gather", "dp"),
        ("transformer_engine.AttnFuncWithCPAndKVP2P.forward", "cp"),
        ("transformer_engine._Linear.forward.row_parallel_comm", "tp"),
        ("backward-send-forward-recv", "pp"),
        ("embedding-grads-all-reduce", "other"),
        ("ep all-to-all", "ep"),
        ("moe dispatch", "ep"),
        ("tp all reduce", "tp"),
        ("tp_gather", "tp"),
        ("cp kv exchange", "cp"),
        ("cp_exchange", "cp"),
        ("ring attention send", "cp"),
        ("pp_recv", "pp"),
        ("params-all-gather", "dp"),
        ("nvte_userbuffers", "tp"),
        ("perfdoc.comm.issue all_reduce group=CONTEXT_PARALLEL_GROUP pg=3 bytes=64 seq=1", "cp"),
        ("backward pass", None),
        ("attention sublayer", None),
        ("feed-forward sublayer", None),
        ("ncclAllReduce", None),
        ("aten::embedding_dense_backward", None),
        ("gradient clipping", None),
    ],
)
def test_ranges(name: str, dimension: str | None) -> None:
    assert dimension_of_range(name) == dimension
    # The filter that thins out names before any pattern is tried must let through what a pattern finds.
    assert dimension is None or any(h in name.lower() for h in NAMES.hints)


def test_a_group_mark_ties_a_communicator_to_its_dimension(tmp_path: Path) -> None:
    builder, thread, device = one_gpu()
    thread.mark(
        "perfdoc.group group=TENSOR_MODEL_PARALLEL_GROUP pg=3 ranks=0-1 communicator=0x00000000000000aa", 0
    )
    for i, communicator in enumerate((0xAA, 0xBB)):
        at = 100 * i
        thread.range(
            "ncclAllReduce",
            at + 10,
            at + 30,
            domain="NCCL",
            payload=NcclPayload(communicator=communicator, bytes=64),
        )
        device.kernel(ALL_REDUCE, 1000 + at, 1050 + at, stream=20 + i, launch=(thread, at + 15, at + 20))
    device.kernel(GEMM, 2000, 2100, launch=(thread, 500, 510))
    trace = trace_of(builder, tmp_path)
    assert found(trace) == [(1000, "tp", "communicator"), (1100, "unknown", "none")]
    rows = communication_table(trace, activity_of(trace), 0, 3000)
    assert {(r.dimension, r.group, r.bytes) for r in rows} == {
        ("tp", "0x00000000000000aa", 64),
        ("unknown", "0x00000000000000bb", 64),
    }


def test_a_group_launches_what_was_queued_in_it(tmp_path: Path) -> None:
    # Two groups of send + receive on communicators 0xA and 0xB. Their kernels are launched by ncclGroupEnd,
    # outside of the ncclSend and ncclRecv ranges. A nested group belongs to the outer one.
    builder, thread, device = one_gpu()
    for pg, description, communicator in (
        (1, "PIPELINE_MODEL_PARALLEL_GROUP", 0xA),
        (2, "EXPERT_MODEL_PARALLEL_GROUP", 0xB),
    ):
        thread.mark(
            f"perfdoc.group group={description} pg={pg} ranks=0-1 communicator=0x{communicator:016x}", 0
        )
    for i, communicator in enumerate((0xA, 0xB)):
        at = 100 + 100 * i
        thread.range("ncclGroupStart", at, at + 2, domain="NCCL")
        thread.range("ncclGroupStart", at + 3, at + 4, domain="NCCL")
        for j, call in enumerate(("ncclSend", "ncclRecv")):
            payload = NcclPayload(communicator=communicator, bytes=1000 * (i + 1), peer=1)
            thread.range(call, at + 10 + 5 * j, at + 13 + 5 * j, domain="NCCL", payload=payload)
        thread.range("ncclGroupEnd", at + 25, at + 26, domain="NCCL")
        thread.range("ncclGroupEnd", at + 30, at + 60, domain="NCCL")
        device.kernel(SEND_RECV, 1000 + at, 1050 + at, stream=20, launch=(thread, at + 40, at + 45))
    device.kernel(GEMM, 2000, 2100, launch=(thread, 500, 510))
    trace = trace_of(builder, tmp_path)
    assert found(trace) == [(1100, "pp", "communicator"), (1200, "ep", "communicator")]
    assert activity_of(trace).communication.bytes.tolist() == [2000, 4000]


@pytest.mark.parametrize(("kernels", "sizes"), [(2, (1000, 1000)), (1, (1000, -1))])
def test_what_each_kernel_of_a_group_moves_may_be_unknown(
    tmp_path: Path, kernels: int, sizes: tuple[int, int]
) -> None:
    """Two kernels for two messages: which moved what is not said. One whose group does not say all sizes."""
    builder, thread, device = one_gpu()
    thread.range("ncclGroupStart", 0, 2, domain="NCCL")
    for i, size in enumerate(sizes):
        payload = NcclPayload(communicator=0xA, bytes=size if size >= 0 else None)
        thread.range("ncclSend", 10 + 5 * i, 12 + 5 * i, domain="NCCL", payload=payload)
    thread.range("ncclGroupEnd", 30, 60, domain="NCCL")
    for i in range(kernels):
        device.kernel(SEND_RECV, 100 + i, 200 + i, stream=20, launch=(thread, 40 + i, 41 + i))
    comm = activity_of(trace_of(builder, tmp_path)).communication
    assert (comm.communicator.tolist(), comm.bytes.tolist()) == ([0xA] * kernels, [-1] * kernels)


def test_a_group_of_two_communicators_stays_unknown(tmp_path: Path) -> None:
    builder, thread, device = one_gpu()
    thread.range("ncclGroupStart", 0, 2, domain="NCCL")
    for i, communicator in enumerate((0xA, 0xB)):
        thread.range(
            "ncclSend", 10 + 5 * i, 12 + 5 * i, domain="NCCL", payload=NcclPayload(communicator=communicator)
        )
    thread.range("ncclGroupEnd", 30, 60, domain="NCCL")
    device.kernel(SEND_RECV, 100, 200, stream=20, launch=(thread, 40, 45))
    trace = trace_of(builder, tmp_path)
    assert activity_of(trace).communication.communicator.tolist() == [0]


def test_descriptions_of_kineto(tmp_path: Path) -> None:
    builder = TimelineBuilder()
    process = builder.process(rank=0)
    device = process.device()
    for i, description in enumerate(("EXPERT_MODEL_PARALLEL_GROUP", "default_pg")):
        collective = Collective(
            operation="allreduce", group_name=str(i), group_description=description, ranks=(0, 1)
        )
        device.kernel(ALL_REDUCE, 1000 * i, 1000 * i + 500, collective=collective)
    path = write_kineto(builder.build(), tmp_path / "x.json", process.pid)
    assert found(read_kineto(path)) == [(0, "ep", "group_description"), (1000, "unknown", "none")]


def test_a_range_speaks_for_its_whole_stream_where_nothing_contradicts(tmp_path: Path) -> None:
    builder, thread, device = one_gpu()
    thread.range("backward-send", 0, 100)
    thread.range("inner without meaning", 10, 90)
    thread.range("all_reduce grad [w]", 200, 300)
    device.kernel(SEND_RECV, 1000, 1010, stream=20, launch=(thread, 50, 55))  # innermost known: backward-send
    device.kernel(SEND_RECV, 1020, 1030, stream=20, launch=(thread, 150, 155))  # in none: as its stream
    device.kernel(ALL_REDUCE, 1040, 1050, stream=21, launch=(thread, 60, 65))  # pp and dp on one stream:
    device.kernel(ALL_REDUCE, 1060, 1070, stream=21, launch=(thread, 250, 255))  # neither is believed
    device.kernel(ALL_GATHER, 1080, 1090, stream=7, launch=(thread, 260, 265))  # compute stream: by itself
    device.kernel(ALL_GATHER, 1100, 1110, stream=7, launch=(thread, 400, 405))
    device.kernel(GEMM, 1120, 1130, stream=7, launch=(thread, 410, 415))
    assert found(trace_of(builder, tmp_path)) == [
        (1000, "pp", "range"),
        (1020, "pp", "range"),
        (1040, "unknown", "none"),
        (1060, "unknown", "none"),
        (1080, "dp", "range"),
        (1100, "unknown", "none"),
    ]


def test_a_range_speaks_for_the_whole_communicator(tmp_path: Path) -> None:
    # Three all-reduces on the compute stream: two of communicator 0xA, of which one lies in a range naming
    # data parallelism; the third, of 0xB, stays unknown.
    builder, thread, device = one_gpu()
    thread.range("all_reduce grad [w]", 0, 100)
    for i, communicator in enumerate((0xA, 0xA, 0xB)):
        at = 10 + 200 * i
        payload = NcclPayload(communicator=communicator, bytes=8)
        thread.range("ncclAllReduce", at, at + 20, domain="NCCL", payload=payload)
        device.kernel(ALL_REDUCE, 1000 + at, 1050 + at, stream=7, launch=(thread, at + 5, at + 8))
    device.kernel(GEMM, 3000, 3100, stream=7, launch=(thread, 900, 910))
    expected = [("dp", "range"), ("dp", "range"), ("unknown", "none")]
    assert [f[1:] for f in found(trace_of(builder, tmp_path))] == expected


def test_real_gradients_are_data_parallel(shared_traces: Path) -> None:
    from perfdoc.traces.load import read_trace

    trace = read_trace(shared_traces / "nsys" / "ddp_2gpu_rtx3090.sqlite")
    for device in range(len(trace.devices)):
        activity = activity_of(trace, device)
        rows = communication_table(trace, activity, *activity.span)
        (gradients,) = [r for r in rows if (r.collective, r.element_type) == ("all_reduce", "bf16")]
        assert (gradients.dimension, gradients.evidence, gradients.count) == ("dp", "range", 111)
        assert gradients.group == f"0x{13429301450432826988:016x}"
        assert gradients.bytes is not None
        assert gradients.bytes > 200 * 2**20


def test_copies_between_gpus_are_whose_range_they_are_launched_in(tmp_path: Path) -> None:
    """Transformer Engine's user buffers: two copies in its range, and one by itself on another stream."""
    builder, thread, device = one_gpu()
    thread.range("TransformerLayer.column_parallel_comm_fprop", 0, 100)
    for i, stream in enumerate((20, 20, 21)):
        at = 60 * i + 5
        device.copy("peer_to_peer", 512, 1000 + at, 1030 + at, stream=stream, launch=(thread, at, at + 5))
    device.kernel(GEMM, 1010, 1020, stream=7, launch=(thread, 200, 205))
    trace = trace_of(builder, tmp_path)
    assert found(trace) == [(1005, "tp", "range"), (1065, "tp", "range"), (1125, "unknown", "none")]
    (ring, _) = communication_table(trace, activity_of(trace), 0, 2000)
    assert (ring.transport, ring.bytes, ring.hidden_ns, ring.exposed_ns) == ("copy_engine", 1024, 10, 50)


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(0, 1)), max_size=8),
    st.integers(0, 30),
    st.integers(0, 1),
)
def test_innermost_against_a_search(ranges: list[tuple[int, int, int]], time: int, thread: int) -> None:
    """Nested ranges only: each is cut to the one around it."""
    nested: list[tuple[int, int, int]] = []
    for a, b, t in sorted((min(r[:2]), max(r[:2]), r[2]) for r in ranges):
        for s, e, u in reversed(nested):
            if u == t and s <= a < e:
                b = min(b, e)
                break
        nested.append((a, b, t))
    columns = [np.array([r[i] for r in nested], np.int64) for i in range(3)]
    (at,) = innermost(*columns, np.array([time]), np.array([thread])).tolist()
    open_then = [(s, -e) for s, e, t in nested if t == thread and s <= time < e]
    expected = max(open_then, default=None)
    assert (None if at < 0 else (nested[at][0], -nested[at][1])) == expected
