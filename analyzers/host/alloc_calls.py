"""Calls that allocate or free memory through CUDA. A caching allocator makes none in a steady step.

cudaMalloc and cudaFree may wait for the device; cudaMallocAsync and cudaFreeAsync take their turn on a stream
and are counted apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.device.device_view import DeviceView
from perfdoc.analyzers.device.host_state import Measured
from perfdoc.analyzers.host.host_call_groups import CallGroup, group_calls
from perfdoc.analyzers.host.host_calls import CallKind, HostCalls, step_at
from perfdoc.analyzers.host.host_idle import ThreadIdle
from perfdoc.analyzers.host.sync_calls import inside_ns


@dataclass(frozen=True, kw_only=True)
class AllocCalls(Measured):
    """Allocation calls of launching threads; inside steps where the window has them, else in the window."""

    count: int | None = None
    host_ns: int | None = None
    idle_inside_ns: int | None = None
    """idle.host while the launching thread was inside of them."""
    steps: int | None = None
    """Steps of the window; None where it has none, and the calls are those of the whole window."""
    steps_with_calls: int | None = None
    last_step_count: int | None = None
    """Calls in the last step: 0 in a job whose allocator has settled."""
    stream_ordered_count: int | None = None
    """cudaMallocAsync, cudaFreeAsync and their kin, in none of the other figures: they wait for nothing."""
    stream_ordered_host_ns: int | None = None
    stream_ordered_idle_ns: int | None = None
    """idle.host while the launching thread was inside of them."""
    groups: Sequence[CallGroup] = ()
    """By function, range and operator; most idle first."""
    groups_left_out: int = 0


def alloc_calls(view: DeviceView, calls: HostCalls, threads: Sequence[ThreadIdle]) -> AllocCalls:
    """Find the allocation calls of one device's launching threads."""
    steps = len(view.window.steps)
    rows, step = _in_steps(view, calls, calls.outermost(CallKind.ALLOCATION))
    ordered, _ = _in_steps(view, calls, calls.outermost(CallKind.STREAM_ALLOCATION))
    inside = inside_ns(calls, rows, threads)
    groups, left_out = group_calls(view.trace, calls, rows, inside, inside)
    by_step = np.bincount(step, minlength=steps) if steps else None
    return AllocCalls(
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
    step = step_at(view.window, calls.start_ns[rows])
    return (rows[step >= 0], step[step >= 0]) if view.window.steps else (rows, step)
