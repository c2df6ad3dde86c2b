"""What an analysis of one device may look at."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from perfdoc.analyzers.device.activity import Activity
from perfdoc.analyzers.device.idle import Gaps, IdleInputs, find_gaps, idle_inputs, with_stalls
from perfdoc.analyzers.device.launches import Launches
from perfdoc.analyzers.device.range_names import KnownRanges
from perfdoc.analyzers.device.stalls import find_stalls
from perfdoc.analyzers.device.window import StepRanges
from perfdoc.analyzers.kernel_class.classify import KernelKinds
from perfdoc.results.quality import NO_EVENTS, EventCounts
from perfdoc.results.ranks import Window
from perfdoc.traces import Device, Trace
from perfdoc.traces.job_facts import JobFacts


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
    table_patterns: tuple[re.Pattern[str], ...] = ()
    """Names of ranges that the user wants a table of."""
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
        return with_stalls(
            named,
            find_stalls(
                self.trace, self.activity, self.window, self.step_ranges, self.known, named.gc_or_data
            ),
        )
