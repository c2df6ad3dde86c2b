from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perfdoc.analyzers.device.idle import idle_inputs
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.host.activity import host_activity
from perfdoc.analyzers.host.calls import CallKind, call_kind, host_calls
from perfdoc.analyzers.ledger.steps import build_ledger
from perfdoc.results.host import HostSplit
from perfdoc.traces.nsys.read import read_nsys_sqlite
from tests.amount import some
from tests.analyzers.device_views import view_of, views_of
from tests.analyzers.host_brute import host_idle_by_kind, random_view
from tests.analyzers.tiny import GEMM
from tests.captures.timeline import TimelineBuilder, one_gpu

US = 1000
PARTS = ("python", "synchronising", "allocation", "module_load", "launch", "other_call")


def parts(split: HostSplit) -> dict[str, int]:
    """The parts that are not 0."""
    assert split.state == "measured"
    found = {name: getattr(split, f"{name}_ns") for name in PARTS}
    assert sum(found.values()) == split.host_ns
    return {name: ns for name, ns in found.items() if ns}


def idle_ns(view: DeviceView) -> dict[str, int]:
    window = view.window
    inputs = idle_inputs(view.trace, view.activity, view.known)
    return build_ledger(view.activity, window.start_ns, window.end_ns, inputs).idle.by_name


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cudaStreamSynchronize_v3020", CallKind.SYNCHRONISING),
        ("cudaDeviceSynchronize_ptsz", CallKind.SYNCHRONISING),
        ("cuCtxSynchronize", CallKind.SYNCHRONISING),
        ("cudaMemcpy_v3020", CallKind.SYNCHRONISING),
        ("cuMemcpyDtoH_v2", CallKind.SYNCHRONISING),
        ("cudaMemcpyAsync_v3020", CallKind.LAUNCH),
        ("cuMemcpyDtoHAsync_v2_ptsz", CallKind.LAUNCH),
        ("cudaMemset_v3020", CallKind.LAUNCH),
        ("cudaLaunchKernelExC_v11060", CallKind.LAUNCH),
        ("cudaGraphLaunch_v10000", CallKind.LAUNCH),
        ("cudaMalloc_v3020", CallKind.ALLOCATION),
        ("cudaFreeHost_v3020", CallKind.ALLOCATION),
        ("cudaMallocAsync_v11020", CallKind.STREAM_ALLOCATION),
        ("cudaFreeAsync_ptsz", CallKind.STREAM_ALLOCATION),
        ("cudaMallocFromPoolAsync", CallKind.STREAM_ALLOCATION),
        ("cuMemAllocFromPoolAsync_ptsz", CallKind.STREAM_ALLOCATION),
        ("cuMemFreeAsync", CallKind.STREAM_ALLOCATION),
        ("cuMemFree_v2", CallKind.ALLOCATION),
        ("cuMemSetAccess", CallKind.ALLOCATION),
        ("cuMemAddressReserve", CallKind.ALLOCATION),
        ("cuLibraryLoadData", CallKind.MODULE_LOAD),
        ("cuModuleLoadDataEx", CallKind.MODULE_LOAD),
        ("cudaStreamWaitEvent_v3020", CallKind.OTHER),
        ("cudaEventQuery_v3020", CallKind.OTHER),
        ("cuMemGetAllocationGranularity", CallKind.OTHER),
        ("cudaMemGetInfo_v3020", CallKind.OTHER),
        ("hipLaunchKernel", CallKind.LAUNCH),
        ("hipExtModuleLaunchKernel", CallKind.LAUNCH),
        ("hipGraphLaunch", CallKind.LAUNCH),
        ("hipMemcpyAsync", CallKind.LAUNCH),
        ("hipMemcpyWithStream", CallKind.SYNCHRONISING),
        ("hipStreamSynchronize", CallKind.SYNCHRONISING),
        ("hipEventSynchronize", CallKind.SYNCHRONISING),
        ("hipMalloc", CallKind.ALLOCATION),
        ("hipHostMalloc", CallKind.ALLOCATION),
        ("hipMallocAsync", CallKind.STREAM_ALLOCATION),
        ("hipModuleLoadData", CallKind.MODULE_LOAD),
        ("hipGetDevice", CallKind.OTHER),
        ("urEnqueueKernelLaunch", CallKind.LAUNCH),
        ("urQueueFinish", CallKind.SYNCHRONISING),
        ("urUSMDeviceAlloc", CallKind.ALLOCATION),
        ("zeCommandListAppendLaunchKernel", CallKind.LAUNCH),
        ("zeEventHostSynchronize", CallKind.SYNCHRONISING),
        ("zeMemAllocDevice", CallKind.ALLOCATION),
        ("zeModuleCreate", CallKind.MODULE_LOAD),
        ("mcStreamSynchronize", CallKind.SYNCHRONISING),
        ("sdaaMemcpyAsync", CallKind.LAUNCH),
        ("suLaunchKernel", CallKind.LAUNCH),
        ("mcMalloc", CallKind.ALLOCATION),
        ("INVALID", CallKind.OTHER),
    ],
)
def test_what_a_call_does_is_told_by_its_name(name: str, kind: CallKind) -> None:
    assert call_kind(name) is kind


def test_calls_that_begin_together_come_longest_first_and_times_in_order_are_not_copied(
    tmp_path: Path,
) -> None:
    """In the file by start, the shorter of the two at 120 us first; the thread's starts serve as they are."""
    builder, thread, device = one_gpu()
    device.kernel(GEMM, 0, 200 * US, launch=(thread, 0, 5 * US))
    for name, start, end in (("cudaFree", 120, 125), ("cudaMalloc", 120, 130), ("cudaEventRecord", 140, 141)):
        thread.api(name, start * US, end * US)
    view = view_of(builder, tmp_path)
    api = view.trace.api_calls
    api = api.take(np.lexsort((api.end_ns, api.start_ns)))
    calls = host_calls(replace(view, trace=replace(view.trace, api_calls=api)))
    assert api.end_ns.tolist() == [5 * US, 125 * US, 130 * US, 141 * US]
    assert calls.start_ns.tolist() == [0, 120 * US, 120 * US, 140 * US]
    assert calls.end_ns.tolist() == [5 * US, 130 * US, 125 * US, 141 * US]
    names = [view.trace.strings[i].partition("_")[0] for i in calls.name.tolist()]
    assert names[1:] == ["cudaMalloc", "cudaFree", "cudaEventRecord"]
    assert np.shares_memory(calls.start_ns, api.start_ns)
    assert api.end_ns.tolist()[1:3] == [125 * US, 130 * US]


def test_a_gap_divides_by_what_the_launching_thread_did(tmp_path: Path) -> None:
    # Idle [100, 200) us, launched at 190, back at 195: host 95 us. Of these: malloc [110, 130), which
    # reserves addresses [112, 118) inside; a wait [130, 140); event records [150, 151) and [160, 162) by two
    # versions of a call; the launch [190, 195), in which code is loaded [191, 194); Python the rest: 57.
    builder = TimelineBuilder()
    process = builder.process()
    thread, other, device = process.thread(), process.thread(), process.device()
    device.kernel(GEMM, 0, 100 * US, launch=(thread, 0, 5 * US))
    device.kernel(GEMM, 200 * US, 210 * US, launch=(thread, 190 * US, 195 * US))
    for name, start, end in (
        ("cudaMalloc", 110, 130),
        ("cuMemAddressReserve", 112, 118),
        ("cudaStreamSynchronize", 130, 140),
        ("cudaEventRecord_v3020", 150, 151),
        ("cudaEventRecord_ptsz", 160, 162),
        ("cuLibraryLoadData", 191, 194),
    ):
        thread.api(name, start * US, end * US)
    other.api("cudaDeviceSynchronize", 100 * US, 200 * US)  # a thread that launches nothing holds up nobody
    split = host_activity(view_of(builder, tmp_path))[0].idle_split
    assert parts(split) == {
        "python": 57 * US,
        "synchronising": 10 * US,
        "allocation": 20 * US,
        "module_load": 3 * US,
        "launch": 2 * US,
        "other_call": 3 * US,
    }
    # By function the nested ones count in both.
    assert [(c.call, c.count, c.idle_ns) for c in split.calls] == [
        ("cudaMalloc", 1, 20 * US),
        ("cudaStreamSynchronize", 1, 10 * US),
        ("cuMemAddressReserve", 1, 6 * US),
        ("cudaLaunchKernel", 1, 5 * US),
        ("cuLibraryLoadData", 1, 3 * US),
        ("cudaEventRecord", 2, 3 * US),
    ]


def test_the_thread_before_answers_where_the_next_one_had_nothing_to_do(tmp_path: Path) -> None:
    # Forward's thread waits [90, 150) us for the loss, then lets backward's thread go, which launches at 180.
    # Host [100, 185): waiting 50, launching 5, Python 30. Its event record at [155, 160) holds up nobody.
    builder = TimelineBuilder()
    process = builder.process()
    forward, backward, device = process.thread(), process.thread(), process.device()
    device.kernel(GEMM, 0, 100 * US, launch=(forward, 0, 5 * US))
    forward.api("cudaStreamSynchronize", 90 * US, 150 * US)
    forward.api("cudaEventRecord", 155 * US, 160 * US)
    device.kernel(GEMM, 190 * US, 200 * US, launch=(backward, 180 * US, 185 * US))
    split = host_activity(view_of(builder, tmp_path))[0].idle_split
    assert parts(split) == {"python": 30 * US, "synchronising": 50 * US, "launch": 5 * US}


@pytest.mark.parametrize("seed", range(12))
def test_parts_are_what_a_count_by_nanosecond_gives(tmp_path: Path, seed: int) -> None:
    view = random_view(seed, tmp_path)
    expected = host_idle_by_kind(view)
    activity = host_activity(view)[0]
    names = {"LAUNCH": "launch", "OTHER": "other_call", "python": "python"}
    wanted = {names.get(k, k.lower()): ns for k, ns in expected.items() if k != "gc_or_data"}
    assert parts(activity.idle_split) == wanted
    idle = idle_ns(view)
    assert activity.idle_split.host_ns == idle["host"]
    assert expected["gc_or_data"] == idle["gc"] + idle["data"]
    assert activity.launch_queue.starved_ns == sum(expected.values())


@pytest.mark.parametrize(
    ("trace", "part"),
    some(
        [("windows_rtx5000", "launch"), ("gpt_small_full_step_a100", "python")],
        lambda case: case[1] == "launch",
    ),
)
def test_real_traces_split_exactly(shared_traces: Path, trace: str, part: str) -> None:
    # Windows: launching itself is slow (batched submission). A100, eager PyTorch: Python is.
    (view,) = views_of(read_nsys_sqlite(shared_traces / "nsys" / f"{trace}.sqlite"))
    split = host_activity(view)[0].idle_split
    found = parts(split)
    assert split.host_ns == idle_ns(view)["host"]
    share = {"launch": (0.3, 0.4), "python": (0.7, 0.8)}[part]
    assert share[0] < found[part] / sum(found.values()) < share[1]


MS = 1_000_000


@pytest.mark.parametrize(
    ("kernel", "gap", "pausing"),
    [
        (100 * US, 50 * US, 0),  # launch-bound
        (100 * US, 9 * MS, 9 * MS),  # launches are 9.1 ms apart: nothing is busy with launching
        (300 * MS, 1_000 * MS, 1_000 * MS),
        (300 * MS, 900 * US, 900 * US),  # no call for 300.9 ms
    ],
)
def test_a_long_time_without_a_call_is_no_launching(
    tmp_path: Path, kernel: int, gap: int, pausing: int
) -> None:
    """20 kernels, each launched so long after the one before it has ended."""
    builder, thread, device = one_gpu()
    for i in range(20):
        at = MS + i * (kernel + gap)
        device.kernel(GEMM, at, at + kernel, launch=(thread, at - 2, at - 1))
    split = host_activity(view_of(builder, tmp_path))[0].idle_split
    # Of each of 19 gaps the call itself takes 1 ns, and the kernel waits for another one.
    assert split.pausing_ns == (19 * (pausing - 2) if pausing else 0)


def test_one_long_pause_among_many_launches(tmp_path: Path) -> None:
    """Launches are 150 us apart; before one of 100 the host does something else for 30 ms, before another for
    8 ms."""
    builder, thread, device = one_gpu()
    at = 0
    for i in range(100):
        at += {40: 30 * MS, 70: 8 * MS}.get(i, 50 * US)
        device.kernel(GEMM, at, at + 100 * US, launch=(thread, at - 2, at - 1))
        at += 100 * US
    split = host_activity(view_of(builder, tmp_path))[0].idle_split
    assert split.pausing_ns == 30 * MS - 2


@pytest.mark.parametrize(
    ("bytes_", "kind", "before"),
    [
        (1 << 20, "host_to_device", 28),
        (1 << 12, "host_to_device", 28),
        (8, "host_to_device", 0),
        (1 << 20, "device_to_host", 0),
    ],
)
def test_what_a_copy_of_a_batch_ends_is_told(tmp_path: Path, bytes_: int, kind: str, before: int) -> None:
    """Off the CPU for 28 of 30 ms before each of three copies, which kernels follow at once."""
    builder, thread, device = one_gpu()
    device.kernel(GEMM, 0, MS, launch=(thread, 0, 1))
    for i in range(3):
        at = MS + i * 32 * MS
        thread.off_cpu(at + MS, at + 29 * MS)
        device.copy(
            kind, bytes_, at + 30 * MS, at + 31 * MS, launch=(thread, at + 30 * MS - 20, at + 30 * MS - 10)
        )
        device.kernel(GEMM, at + 31 * MS, at + 32 * MS, launch=(thread, at + 30 * MS - 9, at + 30 * MS - 1))
    split = host_activity(view_of(builder, tmp_path))[0].idle_split
    assert split.waiting_ns == 3 * 28 * MS
    # Of the other 2 ms nothing is known: no launch for longer than launching takes.
    assert split.pausing_ns is not None
    assert split.before_copies_ns == (3 * before * MS + split.pausing_ns if before else 0)
