"""The host's idle time counted nanosecond by nanosecond, and random timelines to count on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.host.calls import CallKind, call_kind
from tests.analyzers.device_views import views_of
from tests.analyzers.tiny import GEMM, trace_of
from tests.captures.timeline import TimelineBuilder

NAMES = ("cudaMalloc", "cudaStreamSynchronize", "cuLibraryLoadData", "cudaMemcpyAsync", "cudaEventRecord")
KERNELS = 12
END = 700


def random_timeline(seed: int) -> TimelineBuilder:
    """Two threads that launch kernels on two streams, and make calls that overlap and nest at will."""
    rng = np.random.default_rng(seed)
    builder = TimelineBuilder()
    process = builder.process()
    threads, device = [process.thread(), process.thread()], process.device()
    start = 0
    for _ in range(KERNELS):
        start += int(rng.integers(1, 60))
        end = start + int(rng.integers(1, 40))
        made = int(rng.integers(max(0, start - 50), start + 1))
        returned = int(rng.integers(made, start + 20))
        thread = threads[int(rng.integers(2))]
        launch = None if rng.random() < 0.1 else (thread, made, returned)
        device.kernel(GEMM, start, end, stream=7 + int(rng.integers(2)), launch=launch)
    for _ in range(30):
        begin = int(rng.integers(0, END))
        name = NAMES[int(rng.integers(len(NAMES)))]
        threads[int(rng.integers(2))].api(name, begin, begin + int(rng.integers(0, 40)))
    threads[0].range("perfdoc.gc generation=2", 100, 130)
    threads[1].range("perfdoc.data", 120, 160)
    return builder


def random_view(seed: int, folder: Path) -> DeviceView:
    """The device of a random timeline, the capture as its window."""
    (view,) = views_of(trace_of(random_timeline(seed), folder))
    return view


def host_idle_by_kind(view: DeviceView) -> Counter[str]:
    """Nanoseconds of idle.host by CallKind, `python` for no call, `gc_or_data` for what those ranges take."""
    activity, api, ranges = view.activity, view.trace.api_calls, view.trace.ranges
    names = view.trace.names(api.name)
    calls = list(zip(api.start_ns, api.end_ns, api.thread, map(call_kind, names), strict=True))
    launching = set(activity.launch_thread.tolist())
    taken = {
        t
        for a, b, thread, name in zip(
            ranges.start_ns, ranges.end_ns, ranges.thread, view.trace.names(ranges.name), strict=True
        )
        if name.startswith("perfdoc.gc") or thread in launching
        for t in range(a, b)
    }
    busy = {t for a, b in zip(activity.start_ns, activity.end_ns, strict=True) for t in range(a, b)}

    def of_thread(thread: int, t: int) -> list[CallKind]:
        return [kind for a, b, own, kind in calls if own == thread and a <= t < b]

    found: Counter[str] = Counter()
    for t in range(view.window.start_ns, view.window.end_ns):
        if t in busy:
            continue
        following = next(i for i, start in enumerate(activity.start_ns) if start > t)
        launched = int(activity.launch_start_ns[following])
        if launched < 0 or t >= max(launched, int(activity.launch_end_ns[following])):
            continue
        if t in taken:
            found["gc_or_data"] += 1
            continue
        kinds = of_thread(int(activity.launch_thread[following]), t)
        before = int(activity.launch_thread[following - 1]) if following else -1
        if not kinds:
            kinds = [k for k in of_thread(before, t) if k <= CallKind.MODULE_LOAD]
        found[min(kinds).name if kinds else "python"] += 1
    return found


def depth_at(view: DeviceView, t: int) -> int:
    """Activities that had been launched and had not started at an instant."""
    activity = view.activity
    returned = np.maximum(activity.launch_start_ns, activity.launch_end_ns)
    return int(np.count_nonzero((activity.launch_start_ns >= 0) & (returned <= t) & (t < activity.start_ns)))
