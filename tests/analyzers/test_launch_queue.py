from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.host.activity import launch_queue
from perfdoc.analyzers.host.idle import host_idle
from perfdoc.results.host import LaunchQueue
from perfdoc.traces.nsys.read import read_nsys_sqlite
from tests.analyzers.device_views import view_of, views_of
from tests.analyzers.host_brute import depth_at, random_view
from tests.analyzers.tiny import ALL_REDUCE, GEMM
from tests.captures.timeline import TimelineBuilder, one_gpu


def queue_of(view: DeviceView) -> LaunchQueue:
    queue = launch_queue(view, host_idle(view))
    assert queue.state == "measured"
    return queue


def test_depth_is_what_was_launched_and_has_not_started(tmp_path: Path) -> None:
    # Window [100, 500). Calls return at 10, 20, 30, 250; kernels start at 100, 200, 300, 400.
    # Depth: [100, 200) two, [200, 250) one, [250, 300) two, [300, 400) one, [400, 500) none.
    # 0: 100 ns, 1: 150, 2: 150. The median is 1, the mean (150 + 300) / 400, 250 of 400 are shallow.
    builder, thread, device = one_gpu()
    for start, returned in ((100, 10), (200, 20), (300, 30), (400, 250)):
        device.kernel(GEMM, start, start + 100, launch=(thread, returned - 5, returned))
    queue = queue_of(view_of(builder, tmp_path))
    assert queue.median_depth == 1
    assert queue.shallow_frac == 250 / 400
    assert (queue.starved_ns, queue.reason) == (0, "")


def test_two_that_start_as_the_window_does_are_not_queued_in_it(tmp_path: Path) -> None:
    # On two streams from 100 on; a third one stands behind them until 300, and runs until 400.
    builder, thread, device = one_gpu()
    for stream, start in ((7, 100), (8, 100), (7, 300)):
        device.kernel(GEMM, start, start + 100, stream=stream, launch=(thread, 10, 20))
    queue = queue_of(view_of(builder, tmp_path))
    assert (queue.median_depth, queue.shallow_frac) == (1, 1.0)


def test_queued_communication_is_no_depth(tmp_path: Path) -> None:
    # Ten collectives queued on a stream of their own say nothing of how far compute is ahead.
    builder, thread, device = one_gpu()
    device.kernel(GEMM, 100, 1000, launch=(thread, 0, 1))
    for i in range(10):
        device.kernel(ALL_REDUCE, 500 + i, 501 + i, stream=20, launch=(thread, 10 + i, 11 + i))
    queue = queue_of(view_of(builder, tmp_path))
    assert (queue.median_depth, queue.shallow_frac) == (0, 1.0)


def test_starved_time_is_the_ledgers_host_gc_and_data(tmp_path: Path) -> None:
    # Idle [100, 200) until the launch returns at 180; gc takes [110, 130) of it and stays starved.
    builder, thread, device = one_gpu()
    device.kernel(GEMM, 0, 100, launch=(thread, 0, 0))
    device.kernel(GEMM, 200, 300, launch=(thread, 170, 180))
    thread.range("perfdoc.gc generation=2", 110, 130)
    queue = queue_of(view_of(builder, tmp_path))
    assert queue.starved_ns == 80


@pytest.mark.parametrize("seed", range(8))
def test_depth_is_what_a_count_by_nanosecond_gives(tmp_path: Path, seed: int) -> None:
    view = random_view(seed, tmp_path)
    start, end = view.window.start_ns, view.window.end_ns
    depths = np.array([depth_at(view, t) for t in range(start, end)])
    queue = queue_of(view)
    assert queue.median_depth == sorted(depths)[(len(depths) - 1) // 2]
    assert queue.shallow_frac == np.count_nonzero(depths <= 1) / len(depths)
    # Where nothing runs and nothing is queued, the next activity was not launched: starved, or unknown.
    activity = view.activity
    idle_and_empty = sum(
        depths[t - start] == 0 and activity.busy.covered_within(t, t + 1) == 0 for t in range(start, end)
    )
    if not queue.reason:
        assert idle_and_empty <= queue.starved_ns


def test_without_launches_there_is_no_queue(tmp_path: Path) -> None:
    builder = TimelineBuilder()
    builder.process().device().kernel(GEMM, 0, 10)
    view = view_of(builder, tmp_path)
    queue = launch_queue(view, host_idle(view))
    assert (queue.state, queue.median_depth, queue.starved_ns) == ("not_measured", None, None)
    assert queue.reason


def test_unknown_launches_are_said(tmp_path: Path) -> None:
    builder, thread, device = one_gpu()
    device.kernel(GEMM, 0, 100, launch=(thread, 0, 0))
    device.kernel(GEMM, 100, 200)
    queue = queue_of(view_of(builder, tmp_path))
    assert "1 of 2 activities have no known launch" in queue.reason


def test_what_real_traces_say(shared_traces: Path) -> None:
    def queues(name: str) -> list[LaunchQueue]:
        trace = read_nsys_sqlite(shared_traces / "nsys" / f"{name}.sqlite")
        return [queue_of(v) for v in views_of(trace)]

    # 2.3 % of the time in kernels, and yet not launch-bound: 25 GB of weights come from the host in each
    # device's window, and hundreds of kernels stand queued behind the copies.
    for queue in queues("host_bound_2gpu_h100"):
        assert queue.median_depth is not None
        assert queue.median_depth > 250
    # Launch-bound: the queue is empty for more than half of the time.
    (windows,) = queues("windows_rtx5000")
    assert windows.median_depth == 0
