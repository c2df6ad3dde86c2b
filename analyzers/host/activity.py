"""What the host did to one device: every part of the host analysis, measured together.

Each part has a state of its own. The parts share one look at the CUDA calls and at the gaps.
"""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.base.rows import ascends, kept, picked, sum_by
from perfdoc.analyzers.device.activity import Activity
from perfdoc.analyzers.device.event_counts import REMEDY
from perfdoc.analyzers.device.view import ON_HOST, DeviceView, launches_missing
from perfdoc.analyzers.host.blocking_calls import alloc_calls, sync_calls
from perfdoc.analyzers.host.calls import host_calls, is_graph_launch
from perfdoc.analyzers.host.idle import HostIdle, by_thread, host_idle
from perfdoc.analyzers.host.split import split_host_idle
from perfdoc.analyzers.host.steps import HostSteps, data_pauses, gc_pauses, host_steps
from perfdoc.results.host import (
    AllocCalls,
    DataPauses,
    GraphCoverage,
    HostActivity,
    HostPauses,
    HostSplit,
    LaunchQueue,
    SmallKernelName,
    SmallKernels,
    SyncCalls,
)
from perfdoc.results.quality import MEASURED
from perfdoc.traces.table import I32, Bool, distinct

SHALLOW = 1
"""Largest depth that counts as shallow."""


def launch_queue(view: DeviceView, idle: HostIdle) -> LaunchQueue:
    """Follow the queue through the window of one device."""
    missing = launches_missing(view)
    if missing is not None:
        return LaunchQueue.missing(*missing)
    start, end = view.window.start_ns, view.window.end_ns
    if end <= start:
        return LaunchQueue.missing("The window is empty.")
    queued, started, unknown, count = _queued(view.activity, start, end)
    by_depth = _at_depths(queued, started, start, end)
    return LaunchQueue(
        state="measured",
        reason=f"{unknown:,} of {count:,} activities have no known launch; they are not counted."
        if unknown
        else "",
        remedy="",
        median_depth=int(np.searchsorted(2 * np.cumsum(by_depth), end - start, "left")),
        shallow_frac=int(by_depth[: SHALLOW + 1].sum()) / (end - start),
        starved_ns=idle.starved_ns,
    )


def _queued(activity: Activity, start: int, end: int) -> tuple[I64, I64, int, int]:
    """When activities on compute streams joined and left the queue, inside the window; each ascending.

    Then: how many that started inside the window have no known launch, of how many.
    """
    reach = (activity.start_ns < end) & (activity.end_ns > start)
    streams, stream = distinct(activity.stream)
    computes = np.bincount(stream[activity.is_compute & reach], minlength=len(streams)) > 0
    rows = np.flatnonzero((activity.start_ns >= start) & computes[stream])
    launched, started = activity.launch_start_ns[rows], activity.start_ns[rows]
    returned = np.maximum(launched, activity.launch_end_ns[rows])
    known = launched >= 0
    inside = started < end
    # One that started before its call returned, or as the window does, was never seen waiting.
    joined, left = kept(known & (np.maximum(returned, start) < started) & (returned < end), returned, started)
    joined = np.maximum(joined, start)
    unknown, count = (int(np.count_nonzero(rows)) for rows in (inside & ~known, inside))
    return np.sort(joined, kind="stable"), left[left < end], unknown, count


def _at_depths(joined: I64, left: I64, start: int, end: int) -> I64:
    """How long so many waited, by how many. Both ascend; each leaves later than it joined."""
    events = np.concatenate((2 * joined + 1, 2 * left))
    events.sort(kind="stable")  # the last bit tells which: two runs in order are merged
    depth = np.cumsum(np.append(np.int8(0), 2 * (events & 1).astype(np.int8) - 1))
    events >>= 1
    return sum_by(depth, np.diff(events, prepend=start, append=end), 1)


_WHOLE = "Graphs were traced as a whole: how many kernels they hold is not known."


def is_from_graph(view: DeviceView, rows: I64) -> Bool:
    """Whether these rows of Trace.kernels came from a CUDA graph."""
    found: Bool = picked(view.trace.kernels.graph_node, rows) >= 0
    of_graph = _launches_graph(view)
    if of_graph.any():
        call = picked(view.launches.kernels, rows)
        launched = np.flatnonzero(call >= 0)
        found[launched] |= of_graph[view.trace.api_calls.name[call[launched]]]
    return found


def graph_coverage(view: DeviceView) -> GraphCoverage:
    """Measure the share of one device's kernels that graphs launched."""
    if view.activity.on_host:
        return GraphCoverage.missing(ON_HOST)
    table, graphs, window = view.trace.kernels, view.trace.graph_launches, view.window
    rows = view.activity.kernel_rows
    times = picked(table.start_ns, rows), picked(table.end_ns, rows)
    kernel_ns = _inside(*times, window.start_ns, window.end_ns)
    rows, kernel_ns = kept(kernel_ns > 0, rows, kernel_ns)
    whole = np.flatnonzero(graphs.device == view.activity.device)
    whole_ns = _inside(graphs.start_ns[whole], graphs.end_ns[whole], window.start_ns, window.end_ns)
    whole_ns = whole_ns[whole_ns > 0]
    from_graph = is_from_graph(view, rows)
    total = int(kernel_ns.sum()) + int(whole_ns.sum())
    if total == 0:
        return GraphCoverage.missing("No kernel ran in the window.")
    capability = view.trace.capabilities["graph_nodes"]
    unseen = not from_graph.any() and not len(whole_ns) and not capability.available
    if unseen and (
        not view.trace.capabilities["launch_correlation"].available or _launches_graph(view).any()
    ):
        return GraphCoverage.missing(capability.reason, capability.remedy)
    graph_ns = int(kernel_ns[from_graph].sum()) + int(whole_ns.sum())
    count = int(np.count_nonzero(from_graph))
    return GraphCoverage(
        state="measured",
        reason=_WHOLE if len(whole_ns) else "",
        remedy="Capture with nsys profile --cuda-graph-trace=node." if len(whole_ns) else "",
        time_frac=graph_ns / total,
        kernel_frac=None if len(whole_ns) else count / len(rows),
        kernels=len(rows),
        graph_kernels=count,
        whole_graphs=len(whole_ns),
        kernel_ns=total,
        graph_ns=graph_ns,
    )


def _launches_graph(view: DeviceView) -> Bool:
    """By index into Trace.strings: whether it names a call of the capture that launches a graph."""
    strings = view.trace.strings
    found = np.zeros(len(strings), bool)
    found[[i for i in view.trace.call_names.tolist() if is_graph_launch(strings[i])]] = True
    return found


def _inside(start: I64, end: I64, low: int, high: int) -> I64:
    return np.asarray(np.maximum(np.minimum(end, high) - np.maximum(start, low), 0))


MAX_NAMES = 15


def small_kernels(view: DeviceView, idle: HostIdle) -> SmallKernels:
    """Compare kernels of one device with their launches."""
    missing = launches_missing(view)
    if missing is not None:
        return SmallKernels.missing(*missing)
    table, api = view.trace.kernels, view.trace.api_calls
    (rows,) = kept(~view.activity.kernel_is_comm, view.activity.kernel_rows)
    start = table.start_ns.take(rows)
    (rows,) = kept((start >= view.window.start_ns) & (start < view.window.end_ns), rows)
    call = view.launches.kernels.take(rows)
    rows, call = kept((call >= 0) & ~is_from_graph(view, rows), rows, call)
    if not len(rows):
        return SmallKernels.missing("No compute kernel of the window was launched on its own.")
    start, launched = table.start_ns.take(rows), api.start_ns.take(call)
    duration, launch = table.end_ns.take(rows) - start, api.end_ns.take(call) - launched
    before = _idle_before(idle, start)
    bound = before > 0
    chosen = np.flatnonzero(bound & (duration < launch))
    thread = api.thread.take(call)
    return SmallKernels(
        **MEASURED,
        kernels=len(rows),
        small=len(chosen),
        small_ns=int(duration[chosen].sum()),
        idle_before_ns=int(before[chosen].sum()),
        median_kernel_ns=int(np.median(duration)),
        median_launch_interval_ns=_median_interval(launched, thread, bound),
        names=_names(view, rows[chosen], duration[chosen], launch[chosen], before[chosen]),
    )


def _idle_before(idle: HostIdle, start: I64) -> I64:
    """Host idle of the gap that each of these starts ended; of several at once the first has it."""
    found = np.zeros(len(start), np.int64)
    if not len(idle.gap_end_ns) or not len(start):
        return found
    order = None if (start[1:] >= start[:-1]).all() else np.argsort(start, kind="stable")
    ordered = start if order is None else start[order]
    first = np.minimum(np.searchsorted(ordered, idle.gap_end_ns), len(ordered) - 1)
    ended = np.flatnonzero(ordered[first] == idle.gap_end_ns)
    rows = first[ended] if order is None else order[first[ended]]
    found[rows] = idle.host_ns[ended]
    return found


def _median_interval(launch_start: I64, thread: I32, bound: Bool) -> int | None:
    if not ascends(thread, launch_start):  # exports mostly are in that order
        order = np.lexsort((launch_start, thread))
        launch_start, thread, bound = launch_start[order], thread[order], bound[order]
    interval = np.diff(launch_start)
    wanted = bound[1:] & (thread[1:] == thread[:-1])
    return int(np.median(interval[wanted])) if wanted.any() else None


def _names(view: DeviceView, rows: I64, duration: I64, launch: I64, before: I64) -> list[SmallKernelName]:
    names, code = np.unique(view.trace.kernels.name[rows], return_inverse=True)
    count = np.bincount(code, minlength=len(names))
    total, launched, idled = (sum_by(code, v, len(names)) for v in (duration, launch, before))
    order = np.lexsort((names, -idled))[:MAX_NAMES]
    return [
        SmallKernelName(
            name=view.trace.strings[names[i]],
            count=int(count[i]),
            total_ns=int(total[i]),
            launch_ns=int(launched[i]),
            idle_before_ns=int(idled[i]),
        )
        for i in order.tolist()
    ]


def host_activity(view: DeviceView) -> tuple[HostActivity, HostSteps]:
    """What the capture shows of the host of one device; and its steps, for comparing ranks."""
    idle = host_idle(view)
    gc, data = gc_pauses(view, idle), data_pauses(view, idle)
    if view.events.partial:
        gc = HostPauses.missing(view.events.partial, REMEDY)
        data = DataPauses.missing(view.events.partial, REMEDY)
    gc_known = gc.state == "measured"
    queue, small, graphs = launch_queue(view, idle), small_kernels(view, idle), graph_coverage(view)
    missing = launches_missing(view)
    if missing is not None:
        nothing = {gc.state, data.state, graphs.state} == {"not_measured"}
        found = HostActivity(
            state="not_measured" if nothing else "measured",
            reason=missing[0] if nothing else "",
            remedy=missing[1] if nothing else "",
            launch_queue=queue,
            idle_split=HostSplit.missing(*missing),
            sync_calls=SyncCalls.missing(*missing),
            alloc_calls=AllocCalls.missing(*missing),
            gc=gc,
            data=data,
            small_kernels=small,
            graphs=graphs,
        )
        return found, host_steps(view, None, gc_known=gc_known)
    calls = host_calls(view)
    threads = list(by_thread(idle, calls))
    found = HostActivity(
        **MEASURED,
        launch_queue=queue,
        idle_split=split_host_idle(view, idle, calls, threads),
        sync_calls=sync_calls(view, idle, calls, threads),
        alloc_calls=alloc_calls(view, calls, threads),
        gc=gc,
        data=data,
        small_kernels=small,
        graphs=graphs,
    )
    return found, host_steps(view, calls, gc_known=gc_known)
