"""How work is launched: how far the host runs ahead of the device, and how much CUDA graphs launch.

Depth at an instant is the number of activities on streams that compute whose launching call has returned and
that have not started. It shows a host that is late before the device runs dry: a depth of 0 or 1 means that
the next hiccup of the host becomes idle time.
"""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.base.rows import kept
from perfdoc.analyzers.device.activity import Activity
from perfdoc.analyzers.device.host_ranges import ON_HOST, launches_missing
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.host.calls import is_graph_launch
from perfdoc.analyzers.host.idle import HostIdle
from perfdoc.analyzers.kernels.totals import sum_by
from perfdoc.results.host import GraphCoverage, LaunchQueue
from perfdoc.traces.arrow import distinct
from perfdoc.traces.table import Bool

MAX_BINS = 200
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
    bins = min(MAX_BINS, end - start)
    edges = np.array([start + i * (end - start) // bins for i in range(bins + 1)], np.int64)
    time, depth = _depth_steps(queued, started, edges[:-1])
    length = np.diff(np.append(time, end))
    by_depth = sum_by(depth, length, int(depth.max()) + 1)
    covered = np.cumsum(by_depth)
    first = np.searchsorted(time, edges[:-1], "left")
    integral = np.add.reduceat(depth.astype(np.float64) * length, first)
    mean = integral / np.diff(edges)
    low, high = np.minimum.reduceat(depth, first), np.maximum.reduceat(depth, first)
    return LaunchQueue(
        state="measured",
        reason=f"{unknown:,} of {count:,} activities have no known launch; they are not counted."
        if unknown
        else "",
        remedy="",
        median_depth=int(np.searchsorted(2 * covered, end - start, "left")),
        mean_depth=float(integral.sum() / (end - start)),
        max_depth=int(np.flatnonzero(by_depth).max()),
        shallow_frac=int(by_depth[: SHALLOW + 1].sum()) / (end - start),
        starved_ns=idle.starved_ns,
        starved_frac=idle.starved_ns / (end - start),
        unknown_launches=unknown,
        bin_min=low.tolist(),
        bin_mean=mean.round(3).tolist(),
        bin_max=high.tolist(),
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
    # One that started before its call returned was never seen waiting.
    joined, left = kept(known & (returned < started) & (returned < end), returned, started)
    joined = np.maximum(joined, start)
    unknown, count = (int(np.count_nonzero(rows)) for rows in (inside & ~known, inside))
    return np.sort(joined, kind="stable"), left[left < end], unknown, count


def _depth_steps(joined: I64, left: I64, edges: I64) -> tuple[I64, I64]:
    """The depth as a step function: times, ascending and distinct, and the depth from each on."""
    time = np.concatenate((edges, joined, left))
    change = np.repeat(np.array([0, 1, -1]), (len(edges), len(joined), len(left)))
    order = np.argsort(time, kind="stable")  # three sorted runs: merged in linear time
    time, depth = time[order], np.cumsum(change[order])
    last = np.append(time[1:] > time[:-1], True)
    return time[last], depth[last]


_WHOLE = "Graphs were traced as a whole: how many kernels they hold is not known."


def is_from_graph(view: DeviceView, rows: I64) -> Bool:
    """Whether these rows of Trace.kernels came from a CUDA graph."""
    found: Bool = view.trace.kernels.graph_node[rows] >= 0
    of_graph = _launches_graph(view)
    if of_graph.any():
        call = view.launches.kernels[rows]
        launched = np.flatnonzero(call >= 0)
        found[launched] |= of_graph[view.trace.api_calls.name[call[launched]]]
    return found


def graph_coverage(view: DeviceView) -> GraphCoverage:
    """Measure the share of one device's kernels that graphs launched."""
    if view.activity.on_host:
        return GraphCoverage.missing(ON_HOST)
    table, graphs, window = view.trace.kernels, view.trace.graph_launches, view.window
    rows = view.activity.kernel_rows
    kernel_ns = _inside(table.start_ns[rows], table.end_ns[rows], window.start_ns, window.end_ns)
    rows, kernel_ns = rows[kernel_ns > 0], kernel_ns[kernel_ns > 0]
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
    inside: I64 = np.maximum(np.minimum(end, high) - np.maximum(start, low), 0)
    return inside
