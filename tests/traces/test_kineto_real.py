"""The PyTorch profiler reader on real captures, against figures of an independent script."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfdoc.traces.kineto.read import read_kineto
from perfdoc.traces.model import SyncKind, Trace
from perfdoc.traces.table import I64, Bool

ROOT = Path(__file__).resolve().parents[2]
KINETO = ROOT.parent / "shared" / "traces" / "kineto"
pytestmark = pytest.mark.skipif(
    not KINETO.is_dir(), reason="the real traces (../shared/traces beside the repository) are not here"
)

# File, then span, busy, communication, hidden and exposed in ms: unions over kernels only.
REFERENCE = {
    "dlrm_8gpu_v100_rank0.pt.trace": (12.542, 6.571, 5.798, 0.261, 5.537),
    "dlrm_8gpu_v100_rank1.pt.trace": (18.749, 12.302, 11.336, 0.280, 11.056),
    "dlrm_8gpu_v100_rank2.pt.trace": (10.887, 4.285, 3.492, 0.275, 3.217),
    "dlrm_8gpu_v100_rank3.pt.trace": (18.853, 10.690, 9.774, 0.324, 9.450),
    "dlrm_8gpu_v100_rank4.pt.trace": (16.139, 7.676, 6.587, 0.037, 6.550),
    "dlrm_8gpu_v100_rank5.pt.trace": (15.929, 7.252, 6.251, 0.040, 6.211),
    "dlrm_8gpu_v100_rank6.pt.trace": (10.941, 4.340, 3.558, 0.269, 3.289),
    "dlrm_8gpu_v100_rank7.pt.trace": (10.502, 2.639, 1.746, 0.166, 1.580),
    "ddp_nccl_metadata_a100_rank0of2": (660.551, 155.215, 46.876, 7.317, 39.559),
}


def read(name: str) -> Trace:
    return read_kineto(KINETO / f"{name}.json.gz")


def covered(start: I64, end: I64, edges: I64) -> Bool:
    """For every elementary interval between neighbouring edges: whether any of the intervals covers it."""
    change = np.zeros(len(edges) + 1, dtype=np.int64)
    np.add.at(change, np.searchsorted(edges, start), 1)
    np.add.at(change, np.searchsorted(edges, end), -1)
    return np.cumsum(change)[: len(edges) - 1] > 0


def sums_ms(trace: Trace) -> tuple[float, ...]:
    kernels = trace.kernels
    edges = np.unique(np.concatenate((kernels.start_ns, kernels.end_ns)))
    width = np.diff(edges)
    is_comm = np.array(["nccl" in name for name in trace.names(kernels.name)])
    comm = covered(kernels.start_ns[is_comm], kernels.end_ns[is_comm], edges)
    compute = covered(kernels.start_ns[~is_comm], kernels.end_ns[~is_comm], edges)
    masks = (comm | compute, comm, comm & compute, comm & ~compute)
    figures = (edges[-1] - edges[0], *(width[mask].sum() for mask in masks))
    return tuple(round(int(ns) / 1e6, 3) for ns in figures)


@pytest.mark.parametrize("name", REFERENCE)
def test_reference_figures_to_the_microsecond(name: str) -> None:
    assert sums_ms(read(name)) == REFERENCE[name]


def test_exposed_share_of_the_layernorm_capture() -> None:
    trace = read("dlrm_layernorm_a100_rank3of8")
    span, _, _, _, exposed = sums_ms(trace)
    assert (len(trace.kernels), span, exposed) == (8568, 463.441, 87.921)
    (device,) = trace.devices
    assert (device.ordinal, device.rank, device.process, device.sm_count) == (3, 3, 3113936, 108)
    assert trace.utc_origin_ns == 0
    assert "layer_norm_grad_input_kernel" in set(trace.names(trace.kernels.name))


def test_all_ranks_of_a_step_lie_on_one_clock() -> None:
    # The first all-to-all starts up to 7.6 ms apart and ends together.
    starts, ends = [], []
    for rank in range(8):
        trace = read(f"dlrm_8gpu_v100_rank{rank}.pt.trace")
        assert trace.utc_origin_ns == 0
        assert [device.rank for device in trace.devices] == [rank]
        assert trace.world_size == 8
        rows = [i for i, name in enumerate(trace.names(trace.kernels.name)) if "SendRecv" in name]
        first = min(rows, key=lambda row: int(trace.kernels.start_ns[row]))
        starts.append(int(trace.kernels.start_ns[first]))
        ends.append(int(trace.kernels.end_ns[first]))
    assert max(starts) - min(starts) == pytest.approx(7.6e6, abs=0.1e6)
    assert max(ends) - min(ends) < 0.1e6


def test_collective_metadata() -> None:
    trace = read("ddp_nccl_metadata_a100_rank0of2")
    payloads = trace.payloads
    assert len(payloads) == 21
    row = payloads.bytes.tolist().index(6637568 * 4)
    assert trace.strings[payloads.operation[row]] == "allreduce"
    assert trace.strings[payloads.group_description[row]] == "default_pg"
    assert trace.names(trace.kernels.name)[payloads.kernel[row]] == "ncclKernel_AllReduce_RING_LL_Sum_float"
    assert [(g.name, g.ranks) for g in trace.groups] == [("0", (0, 1))]
    # 2024-05-23 00:15:22 UTC: the file's own log says 17:15:22 on the evening before, seven hours west.
    assert trace.utc_origin_ns is not None
    assert (trace.utc_origin_ns + int(trace.kernels.start_ns.min())) // 10**9 == 1716423322
    assert "ProfilerStep#" in " ".join(trace.names(trace.ranges.name))


def test_event_edges_across_streams() -> None:
    trace = read("cuda_event_sync_multi_stream")
    syncs = trace.syncs
    (wait,) = np.flatnonzero(syncs.kind == SyncKind.STREAM_WAIT_EVENT)
    assert (syncs.stream[wait], syncs.source_stream[wait]) == (24, 20)
    (record,) = np.flatnonzero(trace.api_calls.correlation == syncs.source_correlation[wait])
    assert trace.strings[trace.api_calls.name[record]] == "cudaEventRecord"
    assert trace.capabilities["event_edges"].available


def test_old_category_names() -> None:
    trace = read("resnet50_num_workers_0_v100.pt.trace")
    assert (len(trace.kernels), len(trace.copies), len(trace.api_calls)) == (9564, 451, 10920)
    assert len(trace.operators) == 33384
    assert sum(name.startswith("ProfilerStep#") for name in trace.names(trace.ranges.name)) == 6
    assert not trace.capabilities["gpu_identity"].available
    bare_list = read("resnet50_num_workers_4_v100.pt.trace")
    assert (len(bare_list.kernels), bare_list.schema, bare_list.notes[0].code) == (
        9484,
        None,
        "kernels-without-launch",
    )


def test_capture_without_gpu_rows() -> None:
    trace = read("cpu_only")
    assert (len(trace.kernels), len(trace.devices), trace.world_size) == (0, 0, 300)
    assert len(trace.ranges) == 11
    assert trace.groups[0].ranks == tuple(range(300))
    assert not trace.capabilities["kernels"].available
    assert trace.capabilities["kernels"].remedy
