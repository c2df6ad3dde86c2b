"""What an analysis of one device may look at."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from perfdoc.analyzers.base.intervals import I64, Intervals
from perfdoc.analyzers.device.activity import Activity
from perfdoc.analyzers.device.frameworks import NOTHING_SHOWN, Program
from perfdoc.analyzers.device.idle import Gaps, IdleInputs, find_gaps, idle_inputs, with_stalls
from perfdoc.analyzers.device.launches import Launches
from perfdoc.analyzers.device.range_names import KnownRanges, named_as, open_on, rows_named, rows_on
from perfdoc.analyzers.device.stalls import Stalls, find_stalls
from perfdoc.analyzers.device.window import StepRanges
from perfdoc.analyzers.kernel_class.classify import KernelKinds
from perfdoc.profiling import vocabulary
from perfdoc.records import dataclass
from perfdoc.results.quality import NO_EVENTS, EventCounts
from perfdoc.results.ranks import Window
from perfdoc.traces import Device, Trace
from perfdoc.traces.job_facts import JobFacts

_OPTIMIZER = named_as("optimizer")


def host_intervals(view: DeviceView) -> dict[str, Intervals]:
    """`gc` and `data`, inferred stalls included; no nanosecond in both."""
    inputs = view.idle_inputs
    return {"gc": inputs.gc, "data": inputs.gc_or_data - inputs.gc}


def optimizer_starts(view: DeviceView) -> I64:
    """When each optimizer range of the rank began on the host, ascending. A name that people gave it counts
    where neither our trainer nor PyTorch named it."""
    trace = view.trace
    own = (vocabulary.OPTIMIZER, "Optimizer.step#")
    names = trace.range_names_like(lambda name: name.startswith(own))
    names = names or trace.range_names_like(_OPTIMIZER.fullmatch)
    rows = rows_named(trace, names)
    rows = rows[np.isin(trace.ranges.thread[rows], _threads(view))]
    return np.sort(trace.ranges.start_ns[rows])


def collective_issues(view: DeviceView) -> Intervals:
    """When the host handed collectives over (the trainer's ranges)."""
    return open_on(view.trace, _rows_of(view, vocabulary.COLLECTIVE_ISSUE), _threads(view))


def collective_waits(view: DeviceView) -> I64:
    """Rows of Trace.ranges in which the host waited for a collective that it had issued."""
    return _rows_of(view, vocabulary.COLLECTIVE_WAIT)


def collective_runs(view: DeviceView) -> I64:
    """Rows of Trace.ranges from the issue of a collective to its completion."""
    return _rows_of(view, vocabulary.COLLECTIVE_RUN)


def _threads(view: DeviceView) -> I64:
    return view.trace.threads_of(view.device.process)


def _rows_of(view: DeviceView, prefix: str) -> I64:
    """Rows of the process's ranges with a prefix of the vocabulary."""
    names = view.trace.range_names_like(lambda name: vocabulary.prefix_of(name) == prefix)
    return rows_on(view.trace, rows_named(view.trace, names), _threads(view))


MAX_LAUNCHING_THREADS = 1_000
"""A program has a few for each device; a damaged or hostile trace may have one for each kernel."""
NO_LAUNCHES = "No activity of this device shares a correlation id with a CUDA call."
ON_HOST = "The rank computes on the CPU: no work is launched to a device."


def launches_missing(view: DeviceView) -> tuple[str, str] | None:
    """Why what rests on CUDA calls cannot be measured on a device, and the remedy; None where it can."""
    if view.activity.on_host:
        return ON_HOST, ""
    for name in ("api_calls", "launch_correlation"):
        capability = view.trace.capabilities[name]
        if not capability.available:
            return capability.reason, capability.remedy
    if not (view.activity.launch_start_ns >= 0).any():
        return NO_LAUNCHES, view.trace.capabilities["launch_correlation"].remedy
    if (count := len(view.activity.launching_threads)) > MAX_LAUNCHING_THREADS:
        return f"{count:,} threads launch this device's work: such a capture is damaged.", "Capture again."
    return None


@dataclass(frozen=True, kw_only=True, eq=False)
class DeviceView:
    """One device of one capture, with what was found out about it before any analysis; equal to none but
    itself.

    An analysis is a pure function of this: `analyse(view) -> frozen result`. It shares the arrays and must
    not write into them.
    """

    trace: Trace
    activity: Activity
    """Everything that ran on the device over the whole capture; communication is attributed."""
    window: Window
    """The stretch that figures are about."""
    step_ranges: StepRanges
    """The window's steps on the host."""
    window_chosen: bool = False
    """Whether the user chose the window."""
    kinds: KernelKinds
    launches: Launches
    known: KnownRanges
    facts: JobFacts
    program: Program = NOTHING_SHOWN
    events: EventCounts = NO_EVENTS
    """What of the events of its process is missing from the file."""

    @property
    def device(self) -> Device:
        """The device and the process that used it."""
        return self.trace.devices[self.activity.device]

    @cached_property
    def gaps(self) -> Gaps:
        """The gaps that reach into the window; several analyses start from them."""
        return find_gaps(self.activity, self.window.start_ns, self.window.end_ns)

    @cached_property
    def idle_inputs(self) -> IdleInputs:
        """What the device's host was doing."""
        named = idle_inputs(self.trace, self.activity, self.known)
        ran, window, steps, known = self.activity, self.window, self.step_ranges.met, self.known
        found = find_stalls(self.trace, ran, window, steps, known, named.gc_or_data)
        # An engine waits for requests, or schedules: no loader feeds it.
        return with_stalls(named, Stalls(pauses=found.pauses) if self.program.serves else found)
