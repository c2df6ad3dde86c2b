"""A window without steps in its parts: start-up is left out where most work comes after it."""

from __future__ import annotations

from dataclasses import replace

from perfdoc.analyzers.device.activity import Activity
from perfdoc.analyzers.device.period import find_period
from perfdoc.analyzers.device.proposed_ranges import proposed_ranges
from perfdoc.analyzers.device.start_up import find_start_up
from perfdoc.analyzers.device.window import Window
from perfdoc.analyzers.kernel_class.classify import KernelKinds
from perfdoc.traces import Trace

MAX_START_UP_WORK_FRAC = 0.5
"""Of what runs on the device: with more of it in start-up, what is left is hardly the job."""


def in_parts(trace: Trace, activity: Activity, kinds: KernelKinds, window: Window) -> Window:
    """The same window, told in parts; another one where start-up is left out.

    Only of a window that fell back to the whole capture: what the user gave stays as it is.
    """
    if window.kind != "capture" or window.given or activity.on_host:
        return window
    found = find_start_up(trace, activity)
    steady_ns = window.start_ns if found is None else found.end_ns
    stays = found is None or found.work_frac > MAX_START_UP_WORK_FRAC
    parts = replace(
        window,
        start_up=found,
        period=find_period(trace, activity, kinds, steady_ns),
        proposals=proposed_ranges(trace, activity, window.start_ns if stays else steady_ns),
    )
    if found is None or stays:
        return parts
    after = activity.start_ns[activity.start_ns >= found.end_ns]
    return replace(
        parts,
        start_ns=int(after[0]),
        start_up=replace(found, left_out=True),
        reason=f"{window.reason}; begins after start-up",
    )
