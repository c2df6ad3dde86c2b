"""The PyTorch profiler reader on real captures, against figures of an independent script."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfdoc.traces.kineto.read import read_kineto
from perfdoc.traces.model import SyncKind, Trace

ROOT = Path(__file__).resolve().parents[2]
KINETO = ROOT.parent / "shared" / "traces" / "kineto"
pytestmark = pytest.mark.skipif(
    not KINETO.is_dir(), reason="the real traces (../shared/traces beside the repository) are not here"
)


def read(name: str) -> Trace:
    return read_kineto(KINETO / f"{name}.json.gz")


def test_device_of_the_layernorm_capture() -> None:
    trace = read("dlrm_layernorm_a100_rank3of8")
    assert len(trace.kernels) == 8568
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
