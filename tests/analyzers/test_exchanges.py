"""Send/receive kernels of an all-to-all are no messages between pipeline stages."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from perfdoc.analyzers.communication.table import communication_table
from perfdoc.analyzers.kernel_class.classify import KernelKind, classify_kernels
from perfdoc.traces import Trace
from perfdoc.traces.job_facts import JobFacts
from perfdoc.traces.kineto.read import read_kineto
from tests.analyzers.test_dimensions import SEND_RECV
from tests.analyzers.tiny import GEMM, activity_of, trace_of
from tests.captures.events import Collective, NcclPayload
from tests.captures.kineto import write_kineto
from tests.captures.timeline import TimelineBuilder, one_gpu

PIPELINE = JobFacts(tp=1, cp=1, pp=2, dp=4, ep=1)
"""In which send/receive can only be between stages."""


def said(trace: Trace, facts: JobFacts | None = None) -> set[tuple[str, str]]:
    """(dimension, collective) of what communicates."""
    activity = activity_of(trace, facts=facts)
    return {(r.dimension, r.collective) for r in communication_table(trace, activity, *activity.span)}


def in_range(folder: Path, name: str) -> Trace:
    builder, thread, device = one_gpu()
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
    builder, thread, device = one_gpu()
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


GENERIC = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"
"""RCCL's name for every kernel."""


@pytest.mark.parametrize(
    ("name", "operation", "expected"),
    [
        (GENERIC, "allreduce", ("nccl", "all_reduce", "bf16")),
        ("ncclDevKernel_Generic_1(x)", "_reduce_scatter_base", ("rccl", "reduce_scatter", "bf16")),
        (GENERIC, "_allgather_base", ("nccl", "all_gather", "")),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(x)", "allreduce", ("nccl", "all_reduce", "bf16")),
        ("oneccl_allreduce_large<bf16>", "allreduce", ("oneccl", "all_reduce", "bf16")),
        ("of_a_library_that_nobody_knows", "broadcast", ("unnamed", "broadcast", "")),
        # PyTorch flattens and divides in kernels of its own, which have the notes too.
        ("void at::native::vectorized_elementwise_kernel<4, x>(y)", "allreduce", None),
        (GENERIC, "of_tomorrow", ("nccl", "", "")),
    ],
)
def test_what_is_noted_on_a_kernel_goes_before_its_name(
    tmp_path: Path, name: str, operation: str, expected: tuple[str, str, str] | None
) -> None:
    builder = TimelineBuilder()
    process = builder.process(rank=0)
    device = process.device()
    process.group("3", "undefined", (0, 1))
    noted = Collective(operation=operation, group_name="3", ranks=(0, 1), dtype="BFloat16", in_elements=4)
    device.kernel(name, 0, 100, stream=20, collective=noted)
    device.kernel(GEMM, 100, 200)
    trace = read_kineto(write_kineto(builder.build(), tmp_path / "r.json", process.pid))
    kinds = classify_kernels(trace)
    kind = kinds.kinds[int(kinds.kind[0])]
    shown = (kind.transport, kind.collective, kind.element_type)
    assert (shown if kinds.is_communication[0] else None) == expected
    assert not kinds.is_communication[1]


@pytest.mark.parametrize(
    ("call", "collective"),
    [
        ("nccl:all_reduce", "all_reduce"),
        ("c10d::_allgather_base_", "all_gather"),
        ("_c10d_functional::reduce_scatter_tensor", "reduce_scatter"),
        ("ncclBroadcast", "broadcast"),
        ("allreduce_my_gradients", ""),
    ],
)
def test_without_notes_the_call_that_launched_it_goes_before_its_name(
    tmp_path: Path, call: str, collective: str
) -> None:
    builder, thread, device = one_gpu()
    thread.range(call, 0, 100)
    device.kernel(GENERIC, 200, 300, stream=20, launch=(thread, 10, 20))
    device.kernel(GENERIC, 400, 500, stream=20, launch=(thread, 110, 120))
    device.kernel(GEMM, 600, 700, launch=(thread, 130, 140))
    of_kernel = [kind.collective for kind in kinds_of(trace_of(builder, tmp_path))]
    assert of_kernel == [collective, ""]


def kinds_of(trace: Trace) -> list[KernelKind]:
    """What communicates, by start time."""
    comm = activity_of(trace).communication
    found = [comm.kinds[i] for i in comm.kind.tolist()]
    return [kind for kind in found if kind is not None]


@pytest.mark.parametrize(
    ("name", "devices", "expected"),
    [
        # 3 steps of 2 gradient buckets and 2 buffers; 5 kernels before them have no notes and no call.
        ("ddp_resnet_mi300x_rank0of8", 1, {"all_reduce": 6, "broadcast": 6, "": 5}),
        # 21 collectives on each GPU: 3 steps of 5 buckets and 2 buffers.
        ("ddp_resnet_4gpu_rocm_one_file", 4, {"all_reduce": 15, "broadcast": 6}),
    ],
)
def test_kernels_of_rccl(shared_traces: Path, name: str, devices: int, expected: dict[str, int]) -> None:
    trace = read_kineto(shared_traces / "strangers" / f"{name}.json.gz")
    assert len(trace.devices) == devices
    kinds = classify_kernels(trace)
    for device in range(devices):
        rows = np.flatnonzero(kinds.is_communication & (trace.kernels.device == device))
        found = Counter(kinds.kinds[i].collective for i in kinds.kind[rows].tolist())
        assert found == expected
