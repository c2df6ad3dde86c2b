"""What the host did in every step: how long it worked, how long it waited, how long it collected garbage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.base.intervals import I64, Intervals, union
from perfdoc.analyzers.device.device_view import DeviceView
from perfdoc.analyzers.device.host_state import Measured, launches_missing
from perfdoc.analyzers.host.host_calls import CallKind, HostCalls, step_at
from perfdoc.analyzers.host.host_pauses import pause_rows

MAX_STEPS = 1_000
"""Steps that are kept; the first ones."""


@dataclass(frozen=True, kw_only=True)
class HostStep:
    """One step range on the host of one rank."""

    name: str
    host_ns: int
    """Length of the range less the waits in it: for the device (synchronising calls), or on a CPU rank for
    communication."""
    waiting_ns: int
    gc_ns: int | None
    """None where the capture would not show a collection."""
    gc_count: int | None
    """Collections that began in the step."""


@dataclass(frozen=True, kw_only=True)
class HostSteps(Measured):
    """The steps of one rank's window on its host, in order."""

    steps: Sequence[HostStep] = ()
    steps_left_out: int = 0


def host_steps(view: DeviceView, calls: HostCalls | None, *, gc_known: bool) -> HostSteps:
    """Sum up the host's steps of one rank. calls: None where the capture has none."""
    if not view.window.steps:
        return HostSteps.missing(
            f"The window is not made of steps ({view.window.reason}).",
            "Mark steps with ranges, or name them with --step-range.",
        )
    missing = None if view.activity.on_host else launches_missing(view)
    if missing is not None or (calls is None and not view.activity.on_host):
        return HostSteps.missing(*(missing or ("The capture has no CUDA API calls.", "")))
    kept = view.window.steps[:MAX_STEPS]
    start = np.array([s.host_start_ns for s in kept], np.int64)
    end = np.array([s.host_end_ns for s in kept], np.int64)
    waiting = _waits(view, calls).covered_within(start, end)
    ranges = view.trace.ranges
    gc = pause_rows(view, view.known.gc, view.trace.threads_of(view.device.process))
    gc_ns = union(ranges.start_ns[gc], ranges.end_ns[gc]).covered_within(start, end)
    gc_step = step_at(view.window, ranges.start_ns[gc])
    gc_count = np.bincount(gc_step[gc_step >= 0], minlength=len(kept))
    columns: list[list[int | None]] = [
        c.tolist() for c in (end - start - waiting, waiting, gc_ns, gc_count[: len(kept)])
    ]
    if not gc_known:
        columns[2:] = [[None] * len(kept)] * 2
    return HostSteps(
        steps=[
            HostStep(name=s.name, host_ns=h, waiting_ns=w, gc_ns=g, gc_count=n)
            for s, h, w, g, n in zip(kept, *columns, strict=True)
        ],
        steps_left_out=len(view.window.steps) - len(kept),
    )


def _waits(view: DeviceView, calls: HostCalls | None) -> Intervals:
    if calls is None:
        return view.activity.comm - view.activity.compute
    rows: I64 = calls.outermost(CallKind.SYNCHRONISING)
    return union(calls.start_ns[rows], calls.end_ns[rows])
