"""Traces built in memory for tests of analyses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perfdoc.analyzers.communication.dimensions import attribute_dimensions
from perfdoc.analyzers.device.activity import Activity, device_activity
from perfdoc.analyzers.device.launches import find_launches
from perfdoc.analyzers.device.range_names import find_known_ranges
from perfdoc.analyzers.device.told_by_launch import told_by_launch
from perfdoc.analyzers.kernel_class.classify import classify_kernels
from perfdoc.traces import Trace
from perfdoc.traces.job_facts import JobFacts
from perfdoc.traces.nsys.read import read_nsys_sqlite
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import TimelineBuilder

GEMM = "nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NNT"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ALL_GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
REDUCE_SCATTER = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def trace_of(builder: TimelineBuilder, folder: Path) -> Trace:
    """Through a real Nsight file: what the analyses see is what a reader made of it."""
    return read_nsys_sqlite(write_nsys_sqlite(builder.build(), folder / "tiny.sqlite", force=True))


def activity_of(trace: Trace, device: int = 0, facts: JobFacts | None = None) -> Activity:
    """The activity of a device that must have some."""
    launches = find_launches(trace)
    kinds = told_by_launch(trace, classify_kernels(trace), launches)
    activity = device_activity(trace, device, kinds, launches)
    assert activity is not None
    return attribute_dimensions(trace, activity, find_known_ranges(trace), launches, facts)


def one_device(folder: Path, kernels: Sequence[tuple[str, int, int, int]]) -> Trace:
    """One process, one GPU, kernels as (name, start, end, stream), without launches."""
    builder = TimelineBuilder()
    device = builder.process().device()
    for name, start, end, stream in kernels:
        device.kernel(name, start, end, stream=stream)
    return trace_of(builder, folder)
