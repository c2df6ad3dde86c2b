from __future__ import annotations

from pathlib import Path

from perfdoc.analyzers.device.idle import (
    IDLE_CAUSES,
    LAUNCH_LATENCY_MAX_NS,
    find_gaps,
    idle_by_cause,
    idle_inputs,
)
from perfdoc.analyzers.device.range_names import find_known_ranges
from tests.analyzers.tiny import ALL_GATHER, GEMM, activity_of, trace_of
from tests.captures.timeline import TimelineBuilder, one_gpu

US = 1000


def causes(builder: TimelineBuilder, folder: Path, start: int, end: int) -> dict[str, int]:
    trace = trace_of(builder, folder)
    activity = activity_of(trace)
    gaps = find_gaps(activity, start, end)
    found = idle_by_cause(gaps, start, end, idle_inputs(trace, activity, find_known_ranges(trace)))
    assert list(found) == list(IDLE_CAUSES)
    return {cause: ns for cause, ns in found.items() if ns}


def test_a_gap_splits_at_the_return_of_the_late_launch(tmp_path: Path) -> None:
    # Idle [100us, 200us). The call that launches the next kernel runs [180us, 190us): up to 190us the host
    # is late (90 us), then the kernel takes 10 us to start.
    builder, thread, device = one_gpu()
    device.kernel(GEMM, 0, 100 * US, launch=(thread, 0, 0))
    device.kernel(GEMM, 200 * US, 300 * US, launch=(thread, 180 * US, 190 * US))
    assert causes(builder, tmp_path, 0, 300 * US) == {"host": 90 * US, "launch_latency": 10 * US}


def test_collection_and_loading_are_taken_out_of_host_time(tmp_path: Path) -> None:
    # Host gap [100us, 200us). gc [110, 140), data [130, 170): gc 30, data what gc leaves of it 30, host 40.
    builder = TimelineBuilder()
    process = builder.process()
    thread, other, device = process.thread(), process.thread(tid=2000), process.device()
    device.kernel(GEMM, 0, 100 * US, launch=(thread, 0, 0))
    device.kernel(GEMM, 200 * US, 210 * US, launch=(thread, 195 * US, 200 * US))
    thread.range("perfdoc.gc", 110 * US, 140 * US)
    thread.range("perfdoc.data", 130 * US, 170 * US)
    # A loader's own thread that holds up nobody does not count.
    other.range("perfdoc.data", 100 * US, 200 * US)
    expected = {"host": 40 * US, "gc": 30 * US, "data": 30 * US}
    assert causes(builder, tmp_path, 0, 210 * US) == expected


def test_queued_work_waits_for_its_own_stream_or_for_another(tmp_path: Path) -> None:
    # Everything is queued at 0. 3 us between kernels of stream 7 are launch latency; then stream 20 runs,
    # and stream 7, free since long, starts 5 us after it: a dependency.
    builder, thread, device = one_gpu()
    for i, (start, end, stream) in enumerate(((10, 20, 7), (23, 30, 7), (30, 60, 20), (65, 70, 7))):
        name = ALL_GATHER if stream == 20 else GEMM
        device.kernel(name, start * US, end * US, stream=stream, launch=(thread, i, i + 1))
    expected = {"launch_latency": 3 * US, "dependency": 5 * US}
    assert causes(builder, tmp_path, 10 * US, 70 * US) == expected


def test_a_wait_for_communication_is_not_host_time(tmp_path: Path) -> None:
    # The compute stream stands still for 4 ms while an all-gather runs; the next gemm was launched 10 us
    # into that wait, long before the gather ended. The device was never idle, and the host was not late.
    builder, thread, device = one_gpu()
    device.kernel(GEMM, 0, 100 * US, launch=(thread, 0, 10))
    device.kernel(ALL_GATHER, 100 * US, 4100 * US, stream=20, launch=(thread, 20, 30))
    device.kernel(GEMM, 4102 * US, 4200 * US, launch=(thread, 110 * US, 115 * US))
    assert causes(builder, tmp_path, 0, 4200 * US) == {"dependency": 2 * US}


def test_what_the_capture_does_not_show_stays_unexplained(tmp_path: Path) -> None:
    # First gap: the next kernel has no launch. Second: queued work that starts later than latency allows.
    late = LAUNCH_LATENCY_MAX_NS + 1
    builder, thread, device = one_gpu()
    device.kernel(GEMM, 0, 10, launch=(thread, 0, 5))
    device.kernel(GEMM, 110, 120)
    device.kernel(GEMM, 120 + late, 130 + late, launch=(thread, 6, 8))
    assert causes(builder, tmp_path, 0, 130 + late) == {"unexplained": 100 + late}


def test_another_process_collects_its_own_garbage(tmp_path: Path) -> None:
    builder, thread, device = one_gpu()
    device.kernel(GEMM, 0, 10 * US, launch=(thread, 0, 1))
    device.kernel(GEMM, 50 * US, 60 * US, launch=(thread, 50 * US - 1, 50 * US))
    builder.process(pid=2).thread().range("perfdoc.gc", 10 * US, 50 * US)
    assert causes(builder, tmp_path, 0, 60 * US) == {"host": 40 * US}
