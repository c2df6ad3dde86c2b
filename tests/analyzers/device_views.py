"""What an analysis of one device sees of a trace."""

from __future__ import annotations

from pathlib import Path

from perfdoc.analyzers.communication.calls import CollectiveCalls, collective_calls
from perfdoc.analyzers.communication.dimensions import attribute_dimensions
from perfdoc.analyzers.device.activity import device_activity
from perfdoc.analyzers.device.cpu_rank import cpu_activity
from perfdoc.analyzers.device.launches import find_launches
from perfdoc.analyzers.device.range_names import find_known_ranges
from perfdoc.analyzers.device.ranks import marked_ranks, with_marked_ranks
from perfdoc.analyzers.device.told_by_launch import told_by_launch
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.device.window import WindowRequest, find_window
from perfdoc.analyzers.kernel_class.classify import classify_kernels
from perfdoc.traces import Trace
from perfdoc.traces.job_facts import JobFacts, facts_beside
from perfdoc.traces.load import read_trace
from perfdoc.traces.run_facts import with_run_facts
from tests.analyzers.tiny import trace_of
from tests.captures.timeline import TimelineBuilder


def views_of(trace: Trace, facts: JobFacts | None = None, *, whole: bool = False) -> list[DeviceView]:
    """The view of every rank of a trace that did something, on a GPU or on the CPU; by rank or ordinal."""
    marks = marked_ranks(trace)
    trace = with_marked_ranks(trace, marks)
    on_cpu = {process for process, mark in marks.items() if mark.device == "cpu"}
    launches, known = find_launches(trace), find_known_ranges(trace)
    kinds = told_by_launch(trace, classify_kernels(trace), launches)
    views = []
    for index, device in enumerate(trace.devices):
        activity = device_activity(trace, index, kinds, launches)
        if activity is not None:
            activity = attribute_dimensions(trace, activity, known, launches, facts)
        elif device.process in on_cpu:
            found = cpu_activity(trace, index)
            activity = found[0] if found is not None else None
        if activity is not None:
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
    return sorted(views, key=lambda v: (v.device.rank or 0, v.device.ordinal))


def views_of_file(path: Path) -> list[DeviceView]:
    """The same of a capture, with what stands beside it."""
    return views_of(with_run_facts(read_trace(path)), facts_beside(path))


def calls_of_file(path: Path) -> list[CollectiveCalls]:
    """The communication columns of every rank of a capture."""
    return [collective_calls(view) for view in views_of_file(path)]


def view_of(builder: TimelineBuilder, folder: Path, facts: JobFacts | None = None) -> DeviceView:
    """The only device of a planted timeline, read back from a Nsight file."""
    (view,) = views_of(trace_of(builder, folder), facts)
    return view
