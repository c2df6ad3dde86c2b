"""From a capture to the communication columns of its devices, as the worker process makes them."""

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


def calls_of_file(path: Path) -> list[CollectiveCalls]:
    """The columns of every device of a capture file."""
    return calls_of(with_run_facts(read_trace(path)), facts_beside(path))


def calls_of(trace: Trace, facts: JobFacts | None = None) -> list[CollectiveCalls]:
    """The columns of every device of a trace, in the trace's order."""
    trace = with_marked_ranks(trace, marked_ranks(trace))
    launches, known = find_launches(trace), find_known_ranges(trace)
    kinds = told_by_launch(trace, classify_kernels(trace), launches)
    found = []
    for device in range(len(trace.devices)):
        activity = device_activity(trace, device, kinds, launches)
        if activity is not None:
            activity = attribute_dimensions(trace, activity, known, launches)
        else:
            on_host = cpu_activity(trace, device)
            if on_host is None:
                continue
            activity = on_host[0]
        window, step_ranges = find_window(trace, activity, WindowRequest(), known)
        view = DeviceView(
            trace=trace,
            activity=activity,
            window=window,
            step_ranges=step_ranges,
            kinds=kinds,
            launches=launches,
            known=known,
            facts=facts or JobFacts(),
        )
        found.append(collective_calls(view))
    return found
