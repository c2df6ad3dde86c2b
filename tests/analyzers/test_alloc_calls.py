from __future__ import annotations

from pathlib import Path

from perfdoc.analyzers.host.activity import host_activity
from tests.analyzers.device_views import view_of
from tests.analyzers.tiny import GEMM
from tests.captures.timeline import one_gpu

US = 1000


def test_only_calls_inside_steps_count_where_there_are_steps(tmp_path: Path) -> None:
    # Three steps of 100 us, each with a kernel that starts at 50 and is launched at 40. Allocations: one
    # before the steps, two in the first (one of them inside the other), one between, none in the last.
    # In the first step the device has run nothing yet; in the second [160, 162) falls into its idle time.
    builder, thread, device = one_gpu()
    thread.api("cudaMalloc", 1 * US, 9 * US)
    for i in range(3):
        at = (10 + 100 * i) * US
        thread.range(f"perfdoc.step {i}", at, at + 90 * US)
        device.kernel(GEMM, at + 50 * US, at + 80 * US, launch=(thread, at + 40 * US, at + 45 * US))
    thread.api("cudaMalloc", 12 * US, 30 * US)
    thread.api("cuMemCreate", 13 * US, 20 * US)
    thread.range("perfdoc.forward layer=0", 115 * US, 140 * US)
    thread.api("cudaFree", 120 * US, 122 * US)
    thread.api("cudaMalloc", 201 * US, 205 * US)
    found = host_activity(view_of(builder, tmp_path))[0].alloc_calls
    assert (found.state, found.count, found.host_ns) == ("measured", 2, 20 * US)
    assert (found.steps, found.steps_with_calls, found.last_step_count) == (3, 2, 0)
    assert found.idle_inside_ns == 2 * US
    assert [(g.call, g.range_name, g.idle_inside_ns) for g in found.groups] == [
        ("cudaFree", "perfdoc.forward layer=0", 2 * US),
        ("cudaMalloc", "perfdoc.step 0", 0),
    ]


def test_allocations_in_a_streams_order_are_counted_apart(tmp_path: Path) -> None:
    # [110, 120) and [130, 135) of the gap [100, 150) by a stream's order, [140, 142) by the device's.
    builder, thread, device = one_gpu()
    device.kernel(GEMM, 0, 100, launch=(thread, 0, 0))
    thread.api("cudaMallocAsync_v11020", 110, 120)
    thread.api("cudaFreeAsync", 130, 135)
    thread.api("cudaFree", 140, 142)
    device.kernel(GEMM, 150, 300, launch=(thread, 145, 150))
    host = host_activity(view_of(builder, tmp_path))[0]
    found, split = host.alloc_calls, host.idle_split
    assert (found.count, found.host_ns, found.idle_inside_ns) == (1, 2, 2)
    assert (split.allocation_ns, split.stream_allocation_ns, split.launch_ns, split.python_ns) == (
        2,
        15,
        5,
        28,
    )
    assert host.sync_calls.count == 0
