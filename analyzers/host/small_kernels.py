"""Launch-bound kernels shorter than their launch.

Only there does size matter: a short kernel behind a full queue costs its own time and no more.
"""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.base.rows import kept
from perfdoc.analyzers.device.host_ranges import launches_missing
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.host.idle import HostIdle
from perfdoc.analyzers.host.launching import is_from_graph
from perfdoc.analyzers.kernels.totals import sum_by
from perfdoc.results.host import SmallKernelName, SmallKernels
from perfdoc.results.quality import MEASURED
from perfdoc.traces.table import Bool

MAX_NAMES = 15


def small_kernels(view: DeviceView, idle: HostIdle) -> SmallKernels:
    """Compare kernels of one device with their launches."""
    missing = launches_missing(view)
    if missing is not None:
        return SmallKernels.missing(*missing)
    table, api = view.trace.kernels, view.trace.api_calls
    (rows,) = kept(~view.activity.kernel_is_comm, view.activity.kernel_rows)
    start = table.start_ns[rows]
    (rows,) = kept((start >= view.window.start_ns) & (start < view.window.end_ns), rows)
    call = view.launches.kernels[rows]
    rows, call = kept((call >= 0) & ~is_from_graph(view, rows), rows, call)
    if not len(rows):
        return SmallKernels.missing("No compute kernel of the window was launched on its own.")
    start = table.start_ns[rows]
    duration = table.end_ns[rows] - start
    launch = api.end_ns[call] - api.start_ns[call]
    before = _idle_before(idle, start)
    bound = before > 0
    chosen = np.flatnonzero(bound & (duration < launch))
    thread = api.thread[call].astype(np.int64)
    typical = int(np.median(launch[bound] if bound.any() else launch))
    bound_count, small_count = int(np.count_nonzero(bound)), len(chosen)
    return SmallKernels(
        **MEASURED,
        kernels=len(rows),
        launch_bound=bound_count,
        small=small_count,
        small_frac=small_count / bound_count if bound_count else None,
        small_ns=int(duration[chosen].sum()),
        small_launch_ns=int(launch[chosen].sum()),
        idle_before_ns=int(before[chosen].sum()),
        median_kernel_ns=int(np.median(duration)),
        median_launch_ns=typical,
        median_launch_interval_ns=_median_interval(api.start_ns[call], thread, bound),
        below_median_launch_frac=int(np.count_nonzero(duration < typical)) / len(rows),
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


def _median_interval(launch_start: I64, thread: I64, bound: Bool) -> int | None:
    later = (thread[1:] > thread[:-1]) | (
        (thread[1:] == thread[:-1]) & (launch_start[1:] >= launch_start[:-1])
    )
    if not later.all():  # exports mostly are in that order
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
