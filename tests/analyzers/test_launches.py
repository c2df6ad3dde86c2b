from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from perfdoc.analyzers.device.launches import find_launches, start_of
from perfdoc.simulator.captures.timeline import TimelineBuilder
from perfdoc.traces import Kernels
from tests.analyzers.tiny import GEMM, trace_of


def test_of_calls_that_share_an_id_the_outer_one_is_the_launch(tmp_path: Path) -> None:
    builder = TimelineBuilder()
    process = builder.process()
    thread, device = process.thread(), process.device()
    outer = thread.api("cudaLaunchKernel", 10, 30)
    thread.api("cuLaunchKernel", 12, 28, correlation=outer)
    device.kernel(GEMM, 40, 50, correlation=outer)
    trace = trace_of(builder, tmp_path)
    rows = find_launches(trace).kernels
    assert rows.tolist() == [0]
    assert start_of(trace, np.append(rows, -1)).tolist() == [10, -1]


def test_ids_are_only_unique_inside_a_process(tmp_path: Path) -> None:
    builder = TimelineBuilder()
    for pid, at in ((100, 10), (200, 500)):
        process = builder.process(pid=pid)
        thread, device = process.thread(), process.device()
        thread.api("cudaLaunchKernel", at, at + 5, correlation=77)
        device.kernel(GEMM, at + 20, at + 30, correlation=77)
    trace = trace_of(builder, tmp_path)
    rows = find_launches(trace).kernels
    lag = trace.kernels.start_ns - trace.api_calls.start_ns[rows]
    assert lag.tolist() == [20, 20]


def test_sparse_and_dense_ids_give_the_same_join(tmp_path: Path) -> None:
    """Ids far apart take the sorting path; the same ids close together take the table."""
    found = []
    for step in (1, 2**29):
        builder = TimelineBuilder()
        process = builder.process()
        thread, device = process.thread(), process.device()
        for i in range(4):
            thread.api("cudaLaunchKernel", 10 * i, 10 * i + 5, correlation=1 + i * step)
            thread.api("cuLaunchKernel", 10 * i + 1, 10 * i + 4, correlation=1 + i * step)
            device.kernel(GEMM, 100 + 10 * i, 105 + 10 * i, correlation=1 + i * step)
        device.kernel(GEMM, 200, 205, correlation=999)
        trace = trace_of(builder, tmp_path)
        order = np.argsort(trace.kernels.start_ns)
        rows = find_launches(trace).kernels[order]
        found.append([int(trace.api_calls.start_ns[r]) if r >= 0 else None for r in rows.tolist()])
    assert found == [[0, 10, 20, 30, None]] * 2


def test_without_calls_every_launch_is_unknown(tmp_path: Path) -> None:
    builder = TimelineBuilder()
    builder.process().device().kernel(GEMM, 0, 5)
    trace = trace_of(builder, tmp_path)
    assert find_launches(trace).kernels.tolist() == [-1]
    unknown = {n: getattr(trace.kernels, n) for n in Kernels.column_names()} | {"correlation": np.array([-1])}
    assert find_launches(replace(trace, kernels=Kernels(**unknown))).kernels.tolist() == [-1]
