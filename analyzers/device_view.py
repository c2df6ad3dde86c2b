"""What an analysis of one device may look at."""

from __future__ import annotations

from dataclasses import dataclass

from perfdoc.analyzers.activity import Activity
from perfdoc.analyzers.kernel_class import KernelKinds
from perfdoc.analyzers.known_ranges import KnownRanges
from perfdoc.analyzers.launches import Launches
from perfdoc.analyzers.window import Window
from perfdoc.traces import Device, Trace
from perfdoc.traces.job_facts import JobFacts


@dataclass(frozen=True, kw_only=True)
class DeviceView:
    """One device of one capture, with what was found out about it before any analysis.

    An analysis is a pure function of this: `analyse(view) -> frozen result`. It shares the arrays and must
    not write into them.
    """

    trace: Trace
    activity: Activity
    """Everything that ran on the device over the whole capture; communication is attributed."""
    window: Window
    """The stretch that figures are about."""
    kinds: KernelKinds
    launches: Launches
    known: KnownRanges
    facts: JobFacts

    @property
    def device(self) -> Device:
        """The device and the process that used it."""
        return self.trace.devices[self.activity.device]
