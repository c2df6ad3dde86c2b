from __future__ import annotations

from pathlib import Path

from perfdoc.analyzers.host.activity import host_activity
from tests.analyzers.device_views import view_of
from tests.analyzers.tiny import ALL_REDUCE, GEMM
from tests.captures.timeline import one_gpu

US = 1000
SMALL = "vectorized_elementwise_kernel"


def test_small_is_shorter_than_its_launch_where_the_device_waits_for_it(tmp_path: Path) -> None:
    # Launch-bound: launches take 5 us and return as the kernels start, 20 us apart: 2 us kernels (small) at
    # 20, 40, 60, and a gemm of 8 us at 80 (not small). Queued behind it: two 2 us kernels launched while it
    # ran, which cost their own time only. A collective and a graph's kernel are not looked at.
    builder, thread, device = one_gpu()
    for at, length in ((20, 2), (40, 2), (60, 2), (80, 8)):
        name = SMALL if length == 2 else GEMM
        device.kernel(name, at * US, (at + length) * US, launch=(thread, (at - 5) * US, at * US))
    device.kernel(SMALL, 88 * US, 90 * US, launch=(thread, 81 * US, 84 * US))
    device.kernel(SMALL, 90 * US, 92 * US, launch=(thread, 84 * US, 87 * US))
    device.kernel(ALL_REDUCE, 92 * US, 93 * US, stream=20, launch=(thread, 87 * US, 88 * US))
    device.kernel(
        SMALL, 110 * US, 111 * US, graph_node=5, launch=(thread, 100 * US, 105 * US, "cudaGraphLaunch")
    )
    found = host_activity(view_of(builder, tmp_path))[0].small_kernels
    # The window begins with the first kernel, so no gap before it is seen: two small of three launch-bound.
    assert (found.kernels, found.small) == (6, 2)
    assert (found.small_ns, found.idle_before_ns) == (4 * US, 36 * US)
    assert found.median_kernel_ns == 2 * US
    assert found.median_launch_interval_ns == 20 * US
    (name,) = found.names
    assert (name.name, name.count, name.total_ns, name.idle_before_ns) == (SMALL, 2, 4 * US, 36 * US)


def test_a_full_queue_has_no_small_kernels(tmp_path: Path) -> None:
    # A launch on a full queue waits in the driver: 50 us for a kernel of 10 that nothing waits for.
    builder, thread, device = one_gpu()
    device.kernel(GEMM, 0, 100 * US, launch=(thread, 0, 0))
    device.kernel(SMALL, 100 * US, 110 * US, launch=(thread, 10 * US, 60 * US))
    found = host_activity(view_of(builder, tmp_path))[0].small_kernels
    assert found.small == 0


def test_unknown_launches_and_graphs_alone_abstain(tmp_path: Path) -> None:
    builder, thread, device = one_gpu()
    device.kernel(SMALL, 10, 20, graph_node=3, launch=(thread, 1, 2, "cudaGraphLaunch"))
    found = host_activity(view_of(builder, tmp_path))[0].small_kernels
    assert (found.state, found.kernels) == ("not_measured", None)
    assert "launched on its own" in found.reason
