"""How far the host runs ahead of the device: work launched and not yet started, over time.

Depth at an instant is the number of activities on streams that compute whose launching call has returned and
that have not started. It shows a host that is late before the device runs dry: a depth of 0 or 1 means that
the next hiccup of the host becomes idle time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.base.kept import kept
from perfdoc.analyzers.device.activity import Activity
from perfdoc.analyzers.device.device_view import DeviceView
from perfdoc.analyzers.device.host_state import Measured, launches_missing
from perfdoc.analyzers.host.host_idle import HostIdle
from perfdoc.analyzers.kernels.kernels import sum_by
from perfdoc.traces.arrow import distinct

MAX_BINS = 200
SHALLOW = 1
"""Largest depth that counts as shallow."""


@dataclass(frozen=True, kw_only=True)
class LaunchQueue(Measured):
    """Depth of the launch queue inside the window."""

    median_depth: int | None = None
    """The smallest depth that holds for at least half of the window, together with the lower ones."""
    mean_depth: float | None = None
    max_depth: int | None = None
    shallow_frac: float | None = None
    """Share of the window with a depth of 0 or 1."""
    starved_ns: int | None = None
    """Time in which nothing ran and what ran next had not been launched: idle.host + gc + data of the
    ledger."""
    starved_frac: float | None = None
    unknown_launches: int | None = None
    """Activities of the window on those streams whose launch the capture does not show; not in the depth."""
    bin_min: Sequence[int] = ()
    """The depth over time in n equal bins, at most MAX_BINS: bin i is [start + i * d // n,
    start + (i + 1) * d // n) of a window of d nanoseconds."""
    bin_mean: Sequence[float] = ()
    """Time-weighted, to three decimals."""
    bin_max: Sequence[int] = ()


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
        reason=f"{unknown:,} of {count:,} activities have no known launch; they are not counted."
        if unknown
        else "",
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
