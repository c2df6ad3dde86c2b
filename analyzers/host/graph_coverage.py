"""How much of a device's kernel work CUDA graphs launched."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.device.device_view import DeviceView
from perfdoc.analyzers.device.host_state import ON_HOST, Measured
from perfdoc.analyzers.host.host_calls import is_graph_launch
from perfdoc.traces.table import Bool

_WHOLE = "Graphs were traced as a whole: how many kernels they hold is not known."


@dataclass(frozen=True, kw_only=True)
class GraphCoverage(Measured):
    """CUDA graphs in the window. A kernel is a graph's if its row names a graph node, or if a graph launch
    launched it; a graph that was traced as a whole has time and no kernels."""

    time_frac: float | None = None
    """Time of graph kernels and whole graphs, as a share of that of all kernels and whole graphs."""
    kernel_frac: float | None = None
    """Share of kernels, by count; None where graphs were traced as a whole, their kernels unseen."""
    kernels: int | None = None
    graph_kernels: int | None = None
    whole_graphs: int | None = None
    """Graph executions traced as one row each."""
    kernel_ns: int | None = None
    """Sum of durations inside the window; concurrent kernels count twice."""
    graph_ns: int | None = None
    """What of it graphs launched, whole graphs included."""


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
