"""Send/receive kernels of an all-to-all are no messages between pipeline stages."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.analyzers.communication.table import communication_table
from perfdoc.traces import Trace
from perfdoc.traces.job_facts import JobFacts
from perfdoc.traces.kineto.read import read_kineto
from perfdoc.traces.load import read_trace
from tests.analyzers.test_dimensions import SEND_RECV
from tests.analyzers.tiny import GEMM, activity_of, trace_of
from tests.captures.events import Collective, NcclPayload
from tests.captures.kineto import write_kineto
from tests.captures.timeline import TimelineBuilder

PIPELINE = JobFacts(tp=1, cp=1, pp=2, dp=4, ep=1)
"""In which send/receive can only be between stages."""


def said(trace: Trace, facts: JobFacts | None = None) -> set[tuple[str, str]]:
    """(dimension, collective) of what communicates."""
    activity = activity_of(trace, facts=facts)
    return {(r.dimension, r.collective) for r in communication_table(trace, activity, *activity.span)}


def in_range(folder: Path, name: str) -> Trace:
    builder = TimelineBuilder()
    process = builder.process()
    thread, device = process.thread(), process.device()
    thread.range(name, 0, 100)
    device.kernel(SEND_RECV, 200, 300, stream=20, launch=(thread, 10, 20))
    device.kernel(GEMM, 300, 400, launch=(thread, 110, 120))
    return trace_of(builder, folder)


@pytest.mark.parametrize(
    "name",
    [
        "nccl:all_to_all",
        "c10d::alltoall_base_",
        "## all2all_data:kjt splits ##",
        "dist.all_to_all_single",
        "a2a",
    ],
)
def test_ranges_that_say_so(tmp_path: Path, name: str) -> None:
    trace = in_range(tmp_path, name)
    assert said(trace) == {("unknown", "all_to_all")}
    assert said(trace, PIPELINE) == {("unknown", "all_to_all")}


@pytest.mark.parametrize("name", ["nccl:send", "small2allocate", "wait for all", "forward"])
def test_ranges_that_do_not(tmp_path: Path, name: str) -> None:
    trace = in_range(tmp_path, name)
    assert said(trace, PIPELINE) == {("pp", "send_recv")}


@pytest.mark.parametrize(("peers", "expected"), [(2, ("pp", "send_recv")), (3, ("unknown", "all_to_all"))])
def test_a_group_with_many_peers(tmp_path: Path, peers: int, expected: tuple[str, str]) -> None:
    """A stage in the middle speaks with two others, a rank that exchanges with three or more."""
    builder = TimelineBuilder()
    process = builder.process()
    thread, device = process.thread(), process.device()
    thread.range("ncclGroupStart", 0, 10, domain="NCCL")
    for i in range(peers):
        payload = NcclPayload(communicator=0xA, bytes=64, peer=i + 1)
        thread.range("ncclSend", 20 + 40 * i, 30 + 40 * i, domain="NCCL", payload=payload)
        thread.range("ncclRecv", 40 + 40 * i, 50 + 40 * i, domain="NCCL", payload=payload)
    thread.range("ncclGroupEnd", 300, 400, domain="NCCL")
    device.kernel(SEND_RECV, 500, 600, stream=20, launch=(thread, 320, 330))
    device.kernel(GEMM, 600, 700, launch=(thread, 410, 420))
    assert said(trace_of(builder, tmp_path), PIPELINE) == {expected}


@pytest.mark.parametrize(
    ("operation", "expected"), [("all_to_allv", ("unknown", "all_to_all")), ("send", ("pp", "send_recv"))]
)
def test_the_operation_on_the_kernel(tmp_path: Path, operation: str, expected: tuple[str, str]) -> None:
    builder = TimelineBuilder()
    process = builder.process(rank=0)
    device = process.device()
    process.group("3", "undefined", (0, 1))
    collective = Collective(operation=operation, group_name="3", ranks=(0, 1))
    device.kernel(SEND_RECV, 0, 100, stream=20, collective=collective)
    device.kernel(GEMM, 100, 200)
    trace = read_kineto(write_kineto(builder.build(), tmp_path / "r.json", process.pid))
    assert said(trace, PIPELINE) == {expected}


def test_a_recommender_has_no_pipeline(shared_traces: Path) -> None:
    """Its exchanges of embeddings are 5 a step on each rank, in ranges of their own names."""
    trace = read_trace(shared_traces / "kineto" / "dlrm_8gpu_v100_rank0.pt.trace.json.gz")
    assert said(trace) == {("unknown", "all_to_all"), ("dp", "all_reduce")}
