"""Figures of real traces that an independent script computed (../shared/traces/README.md)."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import RankMeasurement, measure_trace
from perfdoc.traces.load import read_trace
from tests.amount import some

AUTO = WindowRequest()

# file, device: kernels, communication kernels, span, busy, compute, comm, exposed, idle; ns
NSYS = {
    ("ddp_2gpu_rtx3090", 0): (2326, 230, 1611651218, 214858895, 17751315, 209016724, 197107580, 1396792323),
    ("ddp_2gpu_rtx3090", 1): (2326, 230, 1611712247, 51568706, 19338199, 44386253, 32230507, 1560143541),
    ("sp_2gpu_before", 0): (1993, 33, 299848812, 270863484, 253690832, 17172652, 17172652, 28985328),
    ("sp_2gpu_before", 1): (2017, 33, 298661551, 264324724, 256095624, 8229100, 8229100, 34336827),
    ("sp_2gpu_after", 0): (1793, 31, 299219791, 237473368, 227484352, 9989016, 9989016, 61746423),
    ("sp_2gpu_after", 1): (1794, 31, 299238478, 251362038, 227608953, 23753085, 23753085, 47876440),
    ("host_bound_2gpu_h100", 0): (1721, 0, 960485009, 22385163, 22385163, 0, 0, 938099846),
    ("host_bound_2gpu_h100", 1): (1721, 0, 960307663, 22444359, 22444359, 0, 0, 937863304),
    ("gpt_small_full_step_a100", 0): (3655, 0, 234663206, 148043935, 148043935, 0, 0, 86619271),
    ("gpt_small_fwd_bwd_a100", 0): (1905, 0, 172846746, 136092372, 136092372, 0, 0, 36754374),
    ("gpt_fwd_bwd_rtx3070ti_sched", 0): (17032, 0, 2332732549, 1733804486, 1733804486, 0, 0, 598928063),
    ("windows_rtx5000", 0): (4485, 0, 682688463, 34869183, 34869183, 0, 0, 647819280),
    ("cuda_graph_a100", 0): (30, 0, 7030538068, 78270, 78270, 0, 0, 7030459798),
}

# rank: span, busy, comm, hidden, exposed; µs
DLRM_8GPU = {
    0: (12542, 6571, 5798, 261, 5537),
    1: (18749, 12302, 11336, 280, 11056),
    2: (10887, 4285, 3492, 275, 3217),
    3: (18853, 10690, 9774, 324, 9450),
    4: (16139, 7676, 6587, 37, 6550),
    5: (15929, 7252, 6251, 40, 6211),
    6: (10941, 4340, 3558, 269, 3289),
    7: (10502, 2639, 1746, 166, 1580),
}


@functools.cache
def measured(path: Path, request: WindowRequest = AUTO) -> list[RankMeasurement]:
    return measure_trace(read_trace(path), request)[0]


@pytest.mark.parametrize(
    "name", some(sorted({name for name, _ in NSYS}), lambda name: "gpt_small" not in name)
)
def test_nsight_to_the_nanosecond(shared_traces: Path, name: str) -> None:
    ranks = {r.device.ordinal: r for r in measured(shared_traces / "nsys" / f"{name}.sqlite")}
    assert sorted(ranks) == sorted(device for n, device in NSYS if n == name)
    for device, rank in ranks.items():
        k = rank.kernels_only_capture
        assert NSYS[name, device] == (
            *(k.kernels, k.comm_kernels, k.span_ns, k.busy_ns),
            *(k.compute_ns, k.comm_ns, k.exposed_ns, k.idle_ns),
        )


@pytest.mark.parametrize("rank", sorted(DLRM_8GPU))
def test_kineto_to_the_microsecond(shared_traces: Path, rank: int) -> None:
    (result,) = measured(shared_traces / "kineto" / f"dlrm_8gpu_v100_rank{rank}.pt.trace.json.gz")
    assert (result.device.rank, result.device.rank_evidence) == (rank, "distributedInfo")
    k = result.kernels_only_capture
    figures = (k.span_ns, k.busy_ns, k.comm_ns, k.hidden_ns, k.exposed_ns)
    assert tuple(f / 1000 for f in figures) == DLRM_8GPU[rank]


def test_kineto_with_nccl_metadata(shared_traces: Path) -> None:
    (result,) = measured(shared_traces / "kineto" / "ddp_nccl_metadata_a100_rank0of2.json.gz")
    k = result.kernels_only_capture
    figures = (k.span_ns, k.busy_ns, k.comm_ns, k.hidden_ns, k.exposed_ns)
    assert [round(f / 1000) for f in figures] == [660551, 155215, 46876, 7317, 39559]
    assert result.window.kind == "steps"
    assert result.window.steps == 3
    by_collective = {c.collective: c for c in result.communication}
    assert set(by_collective) == {"all_reduce", "broadcast"}
    assert {c.group for c in result.communication} == {"default_pg"}
    assert all(c.bytes for c in result.communication)


def test_layer_norm_trace(shared_traces: Path) -> None:
    (result,) = measured(shared_traces / "kineto" / "dlrm_layernorm_a100_rank3of8.json.gz")
    k = result.kernels_only_capture
    assert (k.kernels, round(k.exposed_ns / 1e3), round(k.span_ns / 1e3)) == (8568, 87921, 463441)


def test_the_backward_window_of_each_rank(shared_traces: Path) -> None:
    request = WindowRequest(range_pattern=re.compile("^backward pass$"))
    ranks = measured(shared_traces / "nsys" / "ddp_2gpu_rtx3090.sqlite", request)
    expected = {  # ms
        0: (111, 32.77, 11.91, 20.86, 15.22, 173.45, 209.53),
        1: (111, 28.77, 12.16, 16.61, 16.43, 176.87, 209.91),
    }
    for rank in ranks:
        k = rank.kernels_only_window
        figures = (k.comm_ns, k.hidden_ns, k.exposed_ns, k.compute_ns, k.idle_ns, k.span_ns)
        got = (k.comm_kernels, *(round(f / 1e6, 2) for f in figures))
        assert got == expected[rank.device.ordinal]


def test_published_exposure_of_the_before_and_after_pair(shared_traces: Path) -> None:
    # Published by the traces' owner: exposed 25.40 -> 33.74 ms, busy 535.20 -> 488.84 ms, over both GPUs.
    sums = []
    for name in ("sp_2gpu_before", "sp_2gpu_after"):
        ranks = measured(shared_traces / "nsys" / f"{name}.sqlite")
        ks = [r.kernels_only_capture for r in ranks]
        sums.append(
            (round(sum(k.exposed_ns for k in ks) / 1e6, 2), round(sum(k.busy_ns for k in ks) / 1e6, 2))
        )
    assert [s[0] for s in sums] == [25.40, 33.74]
    # The owner's busy time leaves out 10 us and less at the edges of the capture; exposure agrees exactly.
    assert [s[1] for s in sums] == pytest.approx([535.20, 488.84], abs=0.02)


def test_graph_launches_are_work(shared_traces: Path) -> None:
    (result,) = measured(shared_traces / "nsys" / "cuda_graph_a100.sqlite")
    # Ten graphs of about 0.78 s each fill 7.81 s: a reader of kernels alone would see 78 us of work.
    assert result.ledger.compute > 0.9999 * result.ledger.total


@pytest.mark.parametrize(
    ("workers", "loads"), [(0, True), (4, False)], ids=["loading in the main process", "four workers"]
)
def test_data_loading_shows_where_the_main_process_does_it(
    shared_traces: Path, workers: int, loads: bool
) -> None:
    (result,) = measured(shared_traces / "kineto" / f"resnet50_num_workers_{workers}_v100.pt.trace.json.gz")
    share = result.ledger.idle.data / result.ledger.total
    assert share > 0.15 if loads else share < 0.01


# Here kernels stood queued for up to 21 ms beside an idle device: drivers that submit in batches, see
# docs/ledger.md. Everywhere else nearly all idle time has a cause.
BATCHED = {"gpt_fwd_bwd_rtx3070ti_sched": 62_454_729, "windows_rtx5000": 28_155_187}


@pytest.mark.parametrize(
    "name",
    some([*sorted({name for name, _ in NSYS}), "cuda_graph_a100"], lambda name: "gpt_small" not in name),
)
def test_hardly_any_idle_time_is_unexplained(shared_traces: Path, name: str) -> None:
    for rank in measured(shared_traces / "nsys" / f"{name}.sqlite", WindowRequest(whole_capture=True)):
        unexplained_ns = rank.ledger.idle.unexplained
        if name in BATCHED:
            assert unexplained_ns == BATCHED[name]
        else:
            assert unexplained_ns < 0.003 * rank.ledger.total
