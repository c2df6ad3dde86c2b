"""Calls that hold the host up: those that wait for the device, and those that allocate or free its memory.

A wait drains the launch queue: the device runs dry while the host is still inside the call (or its last
microseconds), and stands still until the host, back in Python, has launched something new. So the cost of a
wait is not the time inside of it, in which the device mostly runs, but the gap that begins in it.

cudaMalloc and cudaFree may wait for the device; cudaMallocAsync and cudaFreeAsync take their turn on a stream
and are counted apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.host.call_groups import costliest_site, group_calls
from perfdoc.analyzers.host.calls import CallKind, HostCalls, step_at
from perfdoc.analyzers.host.idle import HostIdle, ThreadIdle, by_thread
from perfdoc.analyzers.kernels.totals import sum_by
from perfdoc.results.host import AllocCalls, SyncCalls
from perfdoc.results.quality import MEASURED


def sync_calls(
    view: DeviceView, idle: HostIdle, calls: HostCalls, threads: Sequence[ThreadIdle]
) -> SyncCalls:
    """Find the synchronising calls of one device and the idle that each causes."""
    rows = calls.outermost(CallKind.SYNCHRONISING)
    inside = inside_ns(calls, rows, threads)
    at = _wait_at_start(idle, calls, rows)
    found = at >= 0
    caused = sum_by(at[found], idle.host_ns[found], len(rows))
    elsewhere = ~found[idle.piece_gap]
    others = replace(
        idle,
        piece_start_ns=idle.piece_start_ns[elsewhere],
        piece_end_ns=idle.piece_end_ns[elsewhere],
        piece_gap=idle.piece_gap[elsewhere],
    )
    caused = caused + inside_ns(calls, rows, list(by_thread(others, calls)))
    groups, left_out = group_calls(view.trace, calls, rows, inside, caused)
    site, site_reason = costliest_site(view.trace, groups)
    return SyncCalls(
        **MEASURED,
        call_site=site,
        call_site_reason=site_reason,
        count=len(rows),
        host_ns=int((calls.end_ns[rows] - calls.start_ns[rows]).sum()),
        idle_inside_ns=int(inside.sum()),
        idle_caused_ns=int(caused.sum()),
        groups=groups,
        groups_left_out=left_out,
    )


def inside_ns(calls: HostCalls, rows: I64, threads: Sequence[ThreadIdle]) -> I64:
    """Idle that passed while the launching thread was inside each of these calls (sorted, not nested)."""
    found = np.zeros(len(rows), np.int64)
    thread = calls.thread[rows]
    for t in threads:
        first, last = np.searchsorted(thread, (t.thread, t.thread + 1))
        mine = rows[first:last]
        found[first:last] = t.inside_ns(calls.start_ns[mine], calls.end_ns[mine])
    return found


def _wait_at_start(idle: HostIdle, calls: HostCalls, rows: I64) -> I64:
    """For each gap the position in `rows` of the wait in which it begins; -1 none.

    The thread that launched next goes before the one that launched what ran before.
    """
    found = np.full(len(idle.gap_start_ns), -1, np.int64)
    thread, start, end = calls.thread[rows], calls.start_ns[rows], calls.end_ns[rows]
    for of_gap in (idle.thread, idle.before_thread):
        order = np.argsort(of_gap, kind="stable")
        ordered = of_gap[order]
        for t in np.unique(thread).tolist():
            first, last = np.searchsorted(thread, (t, t + 1))
            a, b = np.searchsorted(ordered, (t, t + 1))
            gaps = order[a:b]
            gaps = gaps[found[gaps] < 0]
            at = np.searchsorted(start[first:last], idle.gap_start_ns[gaps], "right") - 1 + first
            open_then = (at >= first) & (end[np.maximum(at, first)] >= idle.gap_start_ns[gaps])
            found[gaps[open_then]] = at[open_then]
    return found


def alloc_calls(view: DeviceView, calls: HostCalls, threads: Sequence[ThreadIdle]) -> AllocCalls:
    """Find the allocation calls of one device's launching threads."""
    steps = view.window.steps
    rows, step = _in_steps(view, calls, calls.outermost(CallKind.ALLOCATION))
    ordered, _ = _in_steps(view, calls, calls.outermost(CallKind.STREAM_ALLOCATION))
    inside = inside_ns(calls, rows, threads)
    groups, left_out = group_calls(view.trace, calls, rows, inside, inside)
    by_step = np.bincount(step, minlength=steps) if steps else None
    return AllocCalls(
        **MEASURED,
        count=len(rows),
        host_ns=int((calls.end_ns[rows] - calls.start_ns[rows]).sum()),
        idle_inside_ns=int(inside.sum()),
        steps=steps if by_step is not None else None,
        steps_with_calls=None if by_step is None else int(np.count_nonzero(by_step)),
        last_step_count=None if by_step is None else int(by_step[-1]),
        stream_ordered_count=len(ordered),
        stream_ordered_host_ns=int((calls.end_ns[ordered] - calls.start_ns[ordered]).sum()),
        stream_ordered_idle_ns=int(inside_ns(calls, ordered, threads).sum()),
        groups=groups,
        groups_left_out=left_out,
    )


def _in_steps(view: DeviceView, calls: HostCalls, rows: I64) -> tuple[I64, I64]:
    """Calls that lie in steps, where the window has steps, and the step of each."""
    step = step_at(view, calls.start_ns[rows])
    return (rows[step >= 0], step[step >= 0]) if view.window.steps else (rows, step)
