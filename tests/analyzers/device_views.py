"""What an analysis of one device sees of a trace."""

from __future__ import annotations

from pathlib import Path

from perfdoc.analyzers.communication.dimensions import attribute_dimensions
from perfdoc.analyzers.device.activity import device_activity
from perfdoc.analyzers.device.launches import find_launches
from perfdoc.analyzers.device.range_names import find_known_ranges
from perfdoc.analyzers.device.told_by_launch import told_by_launch
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.device.window import WindowRequest, find_window
from perfdoc.analyzers.kernel_class.classify import classify_kernels
from perfdoc.traces import Trace
from perfdoc.traces.job_facts import JobFacts
from tests.analyzers.tiny import trace_of
from tests.captures.timeline import TimelineBuilder


def views_of(trace: Trace, facts: JobFacts | None = None, *, whole: bool = False) -> list[DeviceView]:
    """The view of every device that ran something, by ordinal."""
    launches, known = find_launches(trace), find_known_ranges(trace)
    kinds = told_by_launch(trace, classify_kernels(trace), launches)
    views = []
    for index in sorted(range(len(trace.devices)), key=lambda i: trace.devices[i].ordinal):
        activity = device_activity(trace, index, kinds, launches)
        if activity is not None:
            activity = attribute_dimensions(trace, activity, known, launches)
            window, step_ranges = find_window(trace, activity, WindowRequest(whole_capture=whole), known)
            views.append(
                DeviceView(
                    trace=trace,
                    activity=activity,
                    window=window,
                    step_ranges=step_ranges,
                    kinds=kinds,
                    launches=launches,
                    known=known,
                    facts=facts or JobFacts(),
                )
            )
    return views


def view_of(builder: TimelineBuilder, folder: Path, facts: JobFacts | None = None) -> DeviceView:
    """The only device of a planted timeline, read back from a Nsight file."""
    (view,) = views_of(trace_of(builder, folder), facts)
    return view
