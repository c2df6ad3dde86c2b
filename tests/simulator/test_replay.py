"""A rank's window rebuilt as tasks: what waits for what, and what the path is made of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.device.window import WindowRequest, find_window
from perfdoc.simulator.engine import schedule
from perfdoc.simulator.replay.rank_tasks import rank_tasks
from perfdoc.simulator.replay.rebuilt import rebuild_rank
from perfdoc.simulator.replay.unedited import replay
from perfdoc.traces.load import read_trace
from tests.amount import some
from tests.analyzers.device_views import view_of, views_of
from tests.analyzers.tiny import ALL_REDUCE, GEMM
from tests.captures.timeline import TimelineBuilder, one_gpu

US = 1_000


def parts_of(view: DeviceView) -> dict[str, int]:
    return replay(rebuild_rank(view)).critical_path


def test_a_launch_bound_chain_is_the_hosts(tmp_path: Path) -> None:
    """Three launches of 10 µs each, 50 µs of Python between them; each kernel starts 8 µs after its call
    began and runs for 5. The path: launch, Python, launch, Python, launch (8 of its 10 µs), kernel; of the
    window, which begins with the first kernel at 8 µs, 120 + 8 - 8 + 5 = 125 µs remain."""
    builder, thread, device = one_gpu()
    for i in range(3):
        at = i * 60 * US
        launch = (thread, at, at + 10 * US)
        device.kernel(GEMM, at + 8 * US, at + 13 * US, stream=7, launch=launch)
    view = view_of(builder, tmp_path)
    tasks = rank_tasks(view)
    assert schedule(tasks.graph).start_ns.tolist() == tasks.start_ns.tolist()
    assert tasks.unexplained_by_step_ns.sum() == 0
    assert parts_of(view) == {"host": 100 * US, "host_call": 28 * US, "compute": 5 * US, "before": -8 * US}


def test_work_that_is_queued_waits_for_its_stream(tmp_path: Path) -> None:
    """Launched at 0, 10 and 20 µs; each runs for 100, one after the other, 2 µs apart: the path is the first
    call's 5 µs until the kernel starts, three kernels and two gaps."""
    builder, thread, device = one_gpu()
    for i in range(3):
        launch = (thread, i * 10 * US, (i * 10 + 6) * US)
        start = 5 * US + i * 102 * US
        device.kernel(GEMM, start, start + 100 * US, stream=7, launch=launch)
    view = view_of(builder, tmp_path)
    parts = parts_of(view)
    assert parts == {"compute": 300 * US, "launch_latency": 4 * US, "host_call": 5 * US, "before": -5 * US}
    tasks = rank_tasks(view)
    duration = tasks.graph.duration_ns.copy()
    duration[tasks.activity_task] = 50 * US
    shorter = schedule(replace(tasks.graph, duration_ns=duration))
    # Three of 50 µs and two gaps of 2: 154 µs after the first start at 5.
    assert int(shorter.end_ns.max()) == 5 * US + 154 * US


def test_an_event_makes_compute_wait_for_communication(tmp_path: Path) -> None:
    """An all-reduce [10,200) µs on stream 20; stream 7 waits for it and computes [203,300)."""
    builder, thread, device = one_gpu()
    device.kernel(ALL_REDUCE, 10 * US, 200 * US, stream=20, launch=(thread, 0, 5 * US))
    record = device.record_event(20, launch=(thread, 6 * US, 7 * US))
    device.wait_event(7, record, launch=(thread, 8 * US, 9 * US))
    device.kernel(GEMM, 203 * US, 300 * US, stream=7, launch=(thread, 10 * US, 15 * US))
    parts = parts_of(view_of(builder, tmp_path))
    assert parts["dependency"] == 3 * US
    assert parts["communication.unknown"] == 190 * US
    assert parts["compute"] == 97 * US


def test_a_host_that_waits_for_the_device_goes_on_when_it_is_done(tmp_path: Path) -> None:
    """A kernel [8,500) µs; the host waits from 20 to 510; 30 µs of Python later it launches the next,
    which starts 8 µs after its call. With the first kernel 392 µs shorter everything behind it is 392 µs
    earlier."""
    builder, thread, device = one_gpu()
    device.kernel(GEMM, 8 * US, 500 * US, stream=7, launch=(thread, 0, 10 * US))
    thread.api("cudaStreamSynchronize", 20 * US, 510 * US)
    device.kernel(GEMM, 548 * US, 600 * US, stream=7, launch=(thread, 540 * US, 550 * US))
    view = view_of(builder, tmp_path)
    tasks = rank_tasks(view)
    assert int(schedule(tasks.graph).end_ns.max()) == 600 * US
    duration = tasks.graph.duration_ns.copy()
    duration[tasks.activity_task[0]] = 100 * US
    edited = schedule(replace(tasks.graph, duration_ns=duration))
    assert int(edited.end_ns.max()) == 208 * US
    assert parts_of(view)["host_return"] == 10 * US


def test_backward_runs_on_another_thread_and_forward_goes_on_after_it(tmp_path: Path) -> None:
    """Thread 1 launches at 0, thread 2 at 100 and 200, thread 1 again at 300 µs. If thread 2's first launch
    took 40 µs less, thread 1's last would come 40 µs earlier."""
    builder = TimelineBuilder()
    process = builder.process()
    one, two, device = process.thread(), process.thread(), process.device()
    for thread, at, length in ((one, 0, 10), (two, 100, 50), (two, 200, 10), (one, 300, 10)):
        start = (at + 8) * US
        device.kernel(GEMM, start, start + US, stream=7, launch=(thread, at * US, (at + length) * US))
    tasks = rank_tasks(view_of(builder, tmp_path))
    call = int(np.flatnonzero(tasks.start_ns == 100 * US)[0])
    duration = tasks.graph.duration_ns.copy()
    duration[call] -= 40 * US
    before, after = schedule(tasks.graph), schedule(replace(tasks.graph, duration_ns=duration))
    assert int(before.end_ns.max()) - int(after.end_ns.max()) == 40 * US


REAL = (
    *("nsys/ddp_2gpu_rtx3090.sqlite", "nsys/sp_2gpu_before.sqlite", "nsys/windows_rtx5000.sqlite"),
    *("nsys/gpt_small_full_step_a100.sqlite", "kineto/dlrm_8gpu_v100_rank1.pt.trace.json.gz"),
)
MORE = (
    *("nsys/gpt_fwd_bwd_rtx3070ti_sched.sqlite", "nsys/sp_2gpu_after.sqlite"),
    *("nsys/host_bound_2gpu_h100.sqlite", "kineto/dlrm_layernorm_a100_rank3of8.json.gz"),
    "kineto/resnet50_num_workers_0_v100.pt.trace.json.gz",
)


@pytest.mark.parametrize("name", some([*REAL, *MORE], lambda name: name in REAL and "gpt_small" not in name))
def test_the_unedited_replay_of_a_real_window_is_within_the_bar(shared_traces: Path, name: str) -> None:
    """5 %. The path's parts sum to the replayed length."""
    views = views_of(read_trace(shared_traces / name))
    assert views
    for view in views:
        found = replay(rebuild_rank(view))
        assert found.error_frac == pytest.approx(0, abs=0.05)
        assert sum(found.critical_path.values()) == found.replayed_ns


def test_an_end_that_nothing_in_the_capture_moves_withholds_predictions(tmp_path: Path) -> None:
    """Two kernels of two streams without launches, [0, 10) and [900, 1000): the replay is exact, and nothing
    before 900 could change its end."""
    builder = TimelineBuilder()
    device = builder.process().device()
    device.kernel(GEMM, 0, 10 * US, stream=7)
    device.kernel(GEMM, 900 * US, 1000 * US, stream=8)
    found = replay(rebuild_rank(view_of(builder, tmp_path)))
    assert found.error_frac == 0
    assert found.critical_path == {"before": 900 * US, "compute": 100 * US}
    assert not found.predicts
    assert "90 % into the window" in found.withheld


def test_a_replay_that_ends_where_the_window_begins_predicts_nothing(tmp_path: Path) -> None:
    """Launched its own length before it ran, and nothing says what it waited for."""
    builder, thread, device = one_gpu()
    device.kernel(GEMM, 100 * US, 200 * US, launch=(thread, 0, 5))
    found = replay(rebuild_rank(view_of(builder, tmp_path)))
    assert (found.replayed_ns, found.predicts) == (0, False)


def test_a_wait_that_returns_as_the_next_call_begins_still_holds_it_up(tmp_path: Path) -> None:
    """Captures in whole microseconds: a kernel [8, 500), a wait [20, 510), the next launch at 510. With the
    kernel 392 us shorter everything behind it is 392 us earlier."""
    builder, thread, device = one_gpu()
    device.kernel(GEMM, 8 * US, 500 * US, stream=7, launch=(thread, 0, 10 * US))
    thread.api("cudaStreamSynchronize", 20 * US, 510 * US)
    device.kernel(GEMM, 518 * US, 600 * US, stream=7, launch=(thread, 510 * US, 520 * US))
    tasks = rank_tasks(view_of(builder, tmp_path))
    assert tasks.impossible_edges == 0
    duration = tasks.graph.duration_ns.copy()
    duration[tasks.activity_task[0]] = 100 * US
    assert int(schedule(replace(tasks.graph, duration_ns=duration)).end_ns.max()) == 208 * US


@pytest.mark.parametrize(
    ("window", "measured"),
    [((20, 40), False), ((21, 509), False), ((508, 509), False), ((0, 9), True), ((505, 600), True)],
)
def test_any_window_is_replayed_or_said_not_to_be(
    window: tuple[int, int], measured: bool, tmp_path: Path
) -> None:
    """A kernel [8, 500), a wait [20, 510), a kernel [518, 600), in us; windows that hold a call and no
    kernel, neither, half of both."""
    builder, thread, device = one_gpu()
    device.kernel(GEMM, 8 * US, 500 * US, stream=7, launch=(thread, 0, 10 * US))
    thread.api("cudaStreamSynchronize", 20 * US, 510 * US)
    device.kernel(GEMM, 518 * US, 600 * US, stream=7, launch=(thread, 511 * US, 520 * US))
    view = view_of(builder, tmp_path)
    start, end = (at * US for at in window)
    request = WindowRequest(bounds_ns=(start, end))
    asked, _ = find_window(view.trace, view.activity, request, view.known)
    found = replay(rebuild_rank(replace(view, window=asked)))
    assert (found.state == "measured") == measured
    assert found.reason if not measured else sum(found.critical_path.values()) == found.replayed_ns
