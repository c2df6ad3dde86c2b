"""Collectives by size, copies by direction and all-to-all, worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.job import measure_job
from perfdoc.analyzers.measure import measure_capture
from perfdoc.analyzers.tables.device import copy_rows
from perfdoc.results.tables import CollectiveSize, Tables
from tests.analyzers.device_views import view_of
from tests.analyzers.tiny import ALL_REDUCE, GEMM
from tests.captures.events import Collective
from tests.captures.kineto import write_kineto
from tests.captures.timeline import TimelineBuilder

SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
US = 1_000


def tables_of(paths: list[Path]) -> Tables:
    return measure_job([measure_capture(path, WindowRequest()) for path in paths]).tables


def rank_file(folder: Path, rank: int, kernels: list[tuple[str, int, int, Collective]]) -> Path:
    """One rank of two in the DP group: a GEMM [0, 100) us, then these kernels (times in us)."""
    builder = TimelineBuilder()
    process = builder.process(pid=1000 + rank, rank=rank)
    device = process.device()
    process.group("1", "DATA_PARALLEL_GROUP", (0, 1))
    device.kernel(GEMM, 0, 100 * US)
    for name, start, end, collective in kernels:
        device.kernel(name, start * US, end * US, stream=20, collective=collective)
    path = folder / f"rank{rank}.json"
    write_kineto(builder.build(), path, process.pid)
    return path


def reduced(elements: int, sequence: int) -> Collective:
    return Collective(
        operation="allreduce",
        group_name="1",
        group_description="DATA_PARALLEL_GROUP",
        ranks=(0, 1),
        dtype="Float",
        in_elements=elements,
        out_elements=elements,
        sequence=sequence,
    )


def by_size(rows: list[CollectiveSize]) -> Mapping[int, CollectiveSize]:
    return {row.least_bytes: row for row in rows}


def test_a_matched_collective_is_as_fast_as_its_last_rank(tmp_path: Path) -> None:
    """
    4,000 bytes: rank 0 comes 30 us early and is in it for 40 us, rank 1 for 10 us: the transfer is 10 us, and
    with two ranks the bus carries 2 x 1/2 x 4,000 bytes in it: 0.4 GB/s.
    400,000 bytes: both take 500 us: 0.8 GB/s, the best.
    """
    paths = [
        rank_file(
            tmp_path,
            rank,
            [(ALL_REDUCE, begin, 240, reduced(1000, 1)), (ALL_REDUCE, 300, 800, reduced(100_000, 2))],
        )
        for rank, begin in ((0, 200), (1, 230))
    ]
    rows = by_size(tables_of(paths).collectives)
    small, large = rows[4_000], rows[400_000]
    assert (small.dimension, small.collective, small.transport) == ("dp", "all_reduce", "nccl")
    assert (small.ranks, small.count, small.matched, small.basis) == (2, 2, 2, "transfer")
    assert (small.total_ns, small.mean_ns, small.transfer_ns) == (50 * US, 25 * US, 20 * US)
    assert small.bus_bandwidth_gbps == pytest.approx(0.4)
    assert (large.bus_bandwidth_gbps, large.best_gbps) == (pytest.approx(0.8), pytest.approx(0.8))
    assert (small.of_best_frac, large.of_best_frac) == (pytest.approx(0.5), 1.0)
    # One rank alone is in it for 40 us, which is all that is known: 0.1 GB/s.
    (alone, _) = tables_of(paths[:1]).collectives
    assert (alone.basis, alone.matched, alone.transfer_ns) == ("duration", 0, None)
    assert alone.bus_bandwidth_gbps == pytest.approx(0.1)


def test_a_larger_message_that_is_slower_is_not_held_against_the_small_one(tmp_path: Path) -> None:
    kernels = [
        (ALL_REDUCE, 200, 210, reduced(1000, 1)),  # 0.4 GB/s
        (ALL_REDUCE, 300, 400, reduced(5000, 2)),  # 0.2 GB/s
    ]
    rows = by_size(tables_of([rank_file(tmp_path, 0, kernels)]).collectives)
    assert rows[4_000].best_gbps == pytest.approx(0.4)
    assert (rows[20_000].best_gbps, rows[20_000].of_best_frac) == (pytest.approx(0.2), 1.0)


def test_many_sizes_share_rows_from_one_power_of_two_to_the_next(tmp_path: Path) -> None:
    """Nine sizes from 4,000 to 4,800 bytes in steps of 100: two below 4,096, seven above."""
    kernels = [(ALL_REDUCE, 200 + 20 * i, 210 + 20 * i, reduced(1000 + 25 * i, i)) for i in range(9)]
    rows = tables_of([rank_file(tmp_path, 0, kernels)]).collectives
    assert [(r.least_bytes, r.most_bytes, r.count) for r in rows] == [(4_000, 4_000, 1), (4_100, 4_800, 8)]


def exchanged(sent: int, received: int, sequence: int, operation: str = "all_to_allv") -> Collective:
    return replace(
        reduced(sent, sequence),
        operation=operation,
        group_name="2",
        group_description="EXPERT_MODEL_PARALLEL_GROUP",
        out_elements=received,
    )


def test_bytes_of_an_uneven_all_to_all_by_rank(tmp_path: Path) -> None:
    """Rank 0 sends 1,000 and gets 3,000 elements of 4 bytes, rank 1 the other way round, twice."""
    paths = []
    for rank, (sent, received) in enumerate(((1000, 3000), (3000, 1000))):
        calls = [(SEND_RECV, 200 + 50 * i, 240 + 50 * i, exchanged(sent, received, i)) for i in range(2)]
        paths.append(rank_file(tmp_path, rank, calls))
    found = tables_of(paths).all_to_all
    assert [(r.rank, r.dimension, r.count, r.sent_bytes, r.received_bytes) for r in found.by_rank] == [
        ("rank 0", "ep", 2, 8_000, 24_000),
        ("rank 1", "ep", 2, 24_000, 8_000),
    ]
    # To whom it goes is not said.
    assert [r.to_most_over_mean for r in found.by_rank] == [None, None]
    (balance,) = found.balance
    # 24,000 over a mean of 16,000.
    assert (balance.sent_most_over_mean, balance.received_most_over_mean) == (1.5, 1.5)
    assert balance.most_received == "rank 0"


def test_an_even_all_to_all_is_even(tmp_path: Path) -> None:
    call = (SEND_RECV, 200, 240, exchanged(1000, 1000, 1, "all_to_all"))
    found = tables_of([rank_file(tmp_path, rank, [call]) for rank in (0, 1)]).all_to_all
    assert [(r.sent_bytes, r.to_most_over_mean) for r in found.by_rank] == [(4_000, 1.0), (4_000, 1.0)]
    assert [(b.received_most_over_mean, b.most_received) for b in found.balance] == [(1.0, "")]


def test_copies_by_direction_and_memory(tmp_path: Path) -> None:
    """A GEMM [0, 100). To the device: 800 bytes in [90, 130), 200 of them exposed... each by hand below."""
    builder = TimelineBuilder()
    device = builder.process().device()
    device.kernel(GEMM, 0, 100)
    device.copy("host_to_device", 800, 90, 130, stream=20, pinned=True)
    device.copy("host_to_device", 200, 200, 210, stream=20, pinned=False)
    device.copy("device_to_host", 64, 210, 242, stream=20)
    device.copy("peer_to_peer", 100, 20, 120, stream=21)
    device.memset(32, 300, 308, stream=20)
    rows = {(r.direction, r.memory): r for r in copy_rows(view_of(builder, tmp_path))}
    found = {key: (r.count, r.bytes, r.total_ns, r.largest_bytes) for key, r in rows.items()}
    assert found == {
        ("host to device", "pinned"): (1, 800, 40, 800),
        ("host to device", "pageable"): (1, 200, 10, 200),
        ("device to host", "unknown"): (1, 64, 32, 64),
        ("peer to peer", ""): (1, 100, 100, 100),
        ("memset", ""): (1, 32, 8, 32),
    }
    # [90, 120) lies under the GEMM and the copy between GPUs; of the latter [100, 120) under no compute.
    assert {key: r.exposed_ns for key, r in rows.items()} == {
        ("host to device", "pinned"): 10,
        ("host to device", "pageable"): 10,
        ("device to host", "unknown"): 32,
        ("peer to peer", ""): 20,
        ("memset", ""): 8,
    }
    assert rows["host to device", "pinned"].gbps == 20.0
    assert [key for key, r in rows.items() if r.communication] == [("peer to peer", "")]


def test_a_collective_is_held_against_its_own_kind(tmp_path: Path) -> None:
    """400,000 bytes: a broadcast in 100 us is at 4 GB/s, an all-reduce in 200 us at 2 x 2 x 1/2."""
    sent = replace(reduced(100_000, 2), operation="broadcast")
    broadcast = "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    kernels = [(ALL_REDUCE, 200, 400, reduced(100_000, 1)), (broadcast, 500, 600, sent)]
    rows = {r.collective: r for r in tables_of([rank_file(tmp_path, 0, kernels)]).collectives}
    assert {name: row.bus_bandwidth_gbps for name, row in rows.items()} == {
        "all_reduce": pytest.approx(2.0),
        "broadcast": pytest.approx(4.0),
    }
    assert [row.of_best_frac for row in rows.values()] == [1.0, 1.0]
