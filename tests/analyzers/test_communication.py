from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoc.analyzers.base.rows import sum_by
from perfdoc.analyzers.communication.dimensions import _agreed
from perfdoc.analyzers.communication.table import MAX_GROUPS, communication_table
from perfdoc.analyzers.device.launches import group_sizes
from perfdoc.analyzers.kernel_class.classify import KernelClass, classify_kernels
from perfdoc.analyzers.kernels.parts import kernel_times, kernels_only
from perfdoc.results.ranks import Communication
from perfdoc.traces.kineto.read import read_kineto
from tests.analyzers.tiny import ALL_GATHER, ALL_REDUCE, GEMM, activity_of, one_device, trace_of
from tests.captures.events import Collective, NcclPayload
from tests.captures.kineto import write_kineto
from tests.captures.timeline import TimelineBuilder, one_gpu


def test_rows_are_unions_split_by_collective(tmp_path: Path) -> None:
    # Two all-reduces [0,40) and [20,60) overlap: union 60, under the gemm [50,100): hidden 10, exposed 50.
    # One all-gather [70,120): hidden 30, exposed 20.
    trace = one_device(
        tmp_path,
        [(ALL_REDUCE, 0, 40, 20), (ALL_REDUCE, 20, 60, 21), (ALL_GATHER, 70, 120, 20), (GEMM, 50, 100, 7)],
    )
    rows = communication_table(trace, activity_of(trace), 0, 120)
    common = {"dimension": "unknown", "transport": "nccl", "group": "", "bytes": None, "evidence": "none"}
    common |= {"blocking_ns": None, "bus_bandwidth_gbps": None}
    assert rows == [
        Communication(
            collective="all_reduce", element_type="bf16", count=2,
            total_ns=60, hidden_ns=10, exposed_ns=50, **common,
        ),
        Communication(
            collective="all_gather", element_type="", count=1,
            total_ns=50, hidden_ns=30, exposed_ns=20, **common,
        ),
    ]  # fmt: skip


def test_a_window_clips_and_counts_what_reaches_into_it(tmp_path: Path) -> None:
    trace = one_device(tmp_path, [(ALL_REDUCE, 0, 40, 20), (ALL_REDUCE, 90, 100, 20), (GEMM, 30, 35, 7)])
    (row,) = communication_table(trace, activity_of(trace), 20, 50)
    # [20,40): hidden [30,35).
    assert (row.count, row.total_ns, row.hidden_ns, row.exposed_ns) == (1, 20, 5, 15)


def test_groups_and_bytes_come_from_the_capture(tmp_path: Path) -> None:
    builder = TimelineBuilder()
    process = builder.process(rank=0)
    device = process.device()
    tp = Collective(
        operation="allreduce", group_name="3", group_description="TENSOR_MODEL_PARALLEL_GROUP",
        ranks=(0, 1), dtype="BFloat16", in_elements=1000, out_elements=1000,
    )  # fmt: skip
    undescribed = Collective(
        operation="allreduce", group_name="7", ranks=(0, 1), dtype="Mystery", in_elements=5
    )
    device.kernel(ALL_REDUCE, 0, 100, collective=undescribed)
    device.kernel(ALL_REDUCE, 1000, 2000, collective=tp)
    device.kernel(ALL_REDUCE, 2000, 2500, collective=tp)
    device.kernel(ALL_REDUCE, 3200, 3300, collective=replace(tp, group_description="9", in_elements=0))
    device.kernel(GEMM, 4000, 5000)
    timeline = builder.build()
    path = tmp_path / "rank0.json"
    write_kineto(timeline, path, process.pid)
    trace = read_kineto(path)
    rows = communication_table(trace, activity_of(trace), 0, 10**6)
    # 1000 bf16 elements are 2000 bytes, twice; the element type Mystery has no known size; none is no bytes.
    assert [(r.group, r.count, r.bytes) for r in rows] == [
        ("TENSOR_MODEL_PARALLEL_GROUP", 2, 4000),
        ("7", 1, None),
        ("9", 1, 0),
    ]


def test_a_zero_length_kernel_is_counted_without_time(tmp_path: Path) -> None:
    trace = one_device(tmp_path, [(ALL_REDUCE, 10, 10, 20), (GEMM, 0, 100, 7)])
    # In the window that it is the first moment of, and not in the one that ends there.
    for window in ((0, 100), (10, 100)):
        (row,) = communication_table(trace, activity_of(trace), *window)
        assert (row.count, row.total_ns) == (1, 0)
    assert communication_table(trace, activity_of(trace), 0, 10) == []


def test_kernels_only_leaves_copies_and_graphs_out(tmp_path: Path) -> None:
    builder = TimelineBuilder()
    device = builder.process().device()
    device.copy("host_to_device", 64, 0, 50)
    device.graph_launch(1, 300, 900)
    device.kernel(GEMM, 100, 150)
    device.kernel(ALL_REDUCE, 140, 200, stream=20)
    trace = trace_of(builder, tmp_path)
    k = kernels_only(trace, activity_of(trace))
    assert (k.kernels, k.comm_kernels, k.span_ns, k.busy_ns) == (2, 1, 100, 100)
    assert (k.compute_ns, k.comm_ns, k.hidden_ns, k.exposed_ns, k.idle_ns) == (50, 60, 10, 50, 0)
    clipped = kernels_only(trace, activity_of(trace), (0, 145))
    assert (clipped.span_ns, clipped.compute_ns, clipped.comm_ns, clipped.idle_ns) == (145, 45, 5, 100)


def test_kernel_times_clip_to_the_window(tmp_path: Path) -> None:
    trace = one_device(
        tmp_path, [(GEMM, 0, 100, 7), (GEMM, 50, 100, 8), (ALL_REDUCE, 90, 300, 20), (GEMM, 400, 500, 7)]
    )
    times = kernel_times(trace, activity_of(trace), classify_kernels(trace), 80, 200)
    found = {t.kernel_class: (t.count, t.total_ns) for t in times}
    assert found == {KernelClass.GEMM: (2, 20 + 20), KernelClass.COMMUNICATION: (1, 110)}


def test_sums_stay_exact_beyond_float64() -> None:
    index = np.array([0, 0, 1])
    for large in (2**60, 2**53, 2**52):  # 2**53 + 1 is the first that float64 cannot hold
        assert sum_by(index, np.array([large, 1, 3]), 2).tolist() == [large + 1, 3]


@pytest.mark.slow
def test_as_many_groups_as_kernels_share_rows(tmp_path: Path) -> None:
    # 20,000 communicators, one kernel of 10 ns each, the first 256 of 20 ns. Loops over groups that look at
    # every row each time would take minutes here.
    count = 20_000
    builder, thread, device = one_gpu()
    for i in range(count):
        payload = NcclPayload(communicator=1 + i, bytes=8)
        thread.range("ncclAllReduce", 100 * i, 100 * i + 50, domain="NCCL", payload=payload)
        end = 100 * i + (80 if i < MAX_GROUPS else 70)
        device.kernel(ALL_REDUCE, 100 * i + 60, end, launch=(thread, 100 * i + 10, 100 * i + 20))
    trace = trace_of(builder, tmp_path)
    rows = communication_table(trace, activity_of(trace), 0, 100 * count)
    assert len(rows) == MAX_GROUPS + 1
    assert sum(r.count for r in rows) == count
    assert (rows[0].group, rows[0].count) == (f"({count - MAX_GROUPS:,} other groups)", count - MAX_GROUPS)
    assert (rows[0].total_ns, rows[0].bytes) == (10 * (count - MAX_GROUPS), 8 * (count - MAX_GROUPS))
    assert {(r.count, r.total_ns) for r in rows[1:]} == {(1, 20)}


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-1, 6)), max_size=30))
def test_votes_of_groups_as_by_hand(rows: list[tuple[int, int]]) -> None:
    group, found = np.array(rows, np.int64).reshape(-1, 2).T
    expected = []
    for g, _ in rows:
        votes = {v for other, v in rows if other == g and v >= 0}
        expected.append(votes.pop() if len(votes) == 1 else -1)
    assert _agreed(group, found).tolist() == expected


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-1, 3)), min_size=1, max_size=20))
def test_sizes_are_borrowed_where_all_agree(rows: list[tuple[int, int]]) -> None:
    class Stub:
        class payloads:  # noqa: N801
            communicator = np.array([c for c, _ in rows], np.uint64)
            group_size = np.array([s for _, s in rows], np.int64)

            def __len__(self) -> int:
                return len(rows)

    stub = Stub()
    stub.payloads = Stub.payloads()  # type: ignore[misc, assignment]
    own = np.arange(len(rows))
    found = group_sizes(stub, own, Stub.payloads.communicator)  # type: ignore[arg-type]
    for (communicator, size), got in zip(rows, found.tolist(), strict=True):
        said = {s for c, s in rows if c == communicator and s > 0}
        borrowed = said.pop() if communicator and len(said) == 1 else -1
        assert got == (size if size > 0 else borrowed)
