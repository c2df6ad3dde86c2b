"""Why nothing ran: every gap of a device split by cause.

For each gap, the activity that ends it (the next one) and the call that launched it decide:

- launched after the device ran dry: `host` up to the launch, and while the launching call itself runs;
- of that host time, what lies in garbage-collection ranges is `gc`, in data-loading ranges, or in stalls
  where steps meet (see stalls), `data`;
- the rest, with the work already queued: `launch_latency` where it is short, or `dependency` where it is
  short and another stream was the last to run, so that this one waited for it;
- longer than that, or without a known launch: `unexplained`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfdoc.analyzers.base.intervals import I64, Intervals
from perfdoc.analyzers.device.activity import Activity
from perfdoc.analyzers.device.range_names import KnownRanges, open_on
from perfdoc.analyzers.device.stalls import NO_STALLS, Stalls
from perfdoc.records import dataclass
from perfdoc.results import ranks
from perfdoc.traces import Trace
from perfdoc.traces.table import Bool

IDLE_CAUSES = ranks.IDLE_CAUSES

LAUNCH_LATENCY_MAX_NS = 20_000
"""Queued work starts within a few microseconds of the device being free; a CUDA graph's first kernel, or
one under the profiler, within about twenty (cuda_graph_a100: 15 to 18 us between graphs)."""


@dataclass(frozen=True, kw_only=True)
class IdleInputs:
    """What the host of one device was doing."""

    gc: Intervals
    gc_or_data: Intervals
    """Stalls that no range names included."""
    stalls: Stalls = NO_STALLS


def with_stalls(inputs: IdleInputs, stalls: Stalls) -> IdleInputs:
    """Waits for data that no range names, added."""
    return replace(inputs, gc_or_data=inputs.gc_or_data | stalls.both, stalls=stalls)


def idle_inputs(trace: Trace, activity: Activity, known: KnownRanges) -> IdleInputs:
    """Collect the known host ranges of a device's process: what ranges name, without inferred stalls."""
    mine = trace.threads_of(trace.devices[activity.device].process)
    # Collection holds the interpreter lock, so any thread's counts; loading only where it holds up launches.
    gc = open_on(trace, known.gc, mine)
    data = open_on(trace, known.data, activity.launching_threads)
    return IdleInputs(gc=gc, gc_or_data=gc | data)


@dataclass(frozen=True, kw_only=True)
class Gaps:
    """Stretches in which nothing ran, by time and in full length, and how the time in each divides.

    [start, host_end) is the host's: the launch had not been made, or had not returned, by then. The rest,
    [host_end, end), is the device's.
    """

    start_ns: I64
    host_end_ns: I64
    end_ns: I64
    following: I64
    """Index into the activity's columns of what ended the gap (the last one where nothing did)."""
    short: Bool
    """The work was queued and the rest is no longer than a launch takes."""
    waited: Bool
    """The same, and another stream was the last to run."""


def find_gaps(activity: Activity, start_ns: int, end_ns: int) -> Gaps:
    """The gaps that reach into [start, end), in full length."""
    gap_start, gap_end = _gaps(activity, start_ns, end_ns)
    following = np.searchsorted(activity.start_ns, gap_end, "left")
    exists = following < len(activity.start_ns)
    following = np.minimum(following, len(activity.start_ns) - 1)
    launched = activity.launch_start_ns.take(following)
    returned = np.maximum(launched, activity.launch_end_ns.take(following))
    known = exists & (launched >= 0)
    host_end = np.where(known, np.clip(returned, gap_start, gap_end), gap_start)
    if activity.on_host:
        host_end = gap_end  # the host is the device: nothing is queued for it
    short = known & (gap_end - host_end <= LAUNCH_LATENCY_MAX_NS)
    waited = short & (host_end == gap_start)
    queued = np.flatnonzero(waited)
    waited[queued] = _waited_for_other_stream(activity, following.take(queued))
    return Gaps(
        start_ns=gap_start,
        host_end_ns=host_end,
        end_ns=gap_end,
        following=following,
        short=short,
        waited=waited,
    )


def idle_by_cause(gaps: Gaps, start_ns: int, end_ns: int, inputs: IdleInputs) -> dict[str, int]:
    """Idle nanoseconds of [start, end) by cause; they sum to the window less what was busy.

    gaps: as find_gaps has them for the same bounds.
    """
    begin, host_end, end = (
        clipped(column, start_ns, end_ns) for column in (gaps.start_ns, gaps.host_end_ns, gaps.end_ns)
    )
    rest = end - host_end
    gc = int(inputs.gc.covered_within(begin, host_end).sum())
    gc_or_data = int(inputs.gc_or_data.covered_within(begin, host_end).sum())
    dependency, short = int(rest[gaps.waited].sum()), int(rest[gaps.short].sum())  # who waited is short too
    return {
        "host": int((host_end - begin).sum()) - gc_or_data,
        "gc": gc,
        "data": gc_or_data - gc,
        "dependency": dependency,
        "launch_latency": short - dependency,
        "unexplained": int(rest.sum()) - short,
    }


def clipped(times_ns: I64, start_ns: int, end_ns: int) -> I64:
    """Ascending times, none outside of [start, end]; most are inside, and not looked at."""
    first, last = np.searchsorted(times_ns, (start_ns, end_ns))
    inside: I64 = times_ns.copy()
    inside[:first], inside[last:] = start_ns, end_ns
    return inside


def _gaps(activity: Activity, start_ns: int, end_ns: int) -> tuple[I64, I64]:
    """Gaps that reach into [start, end), in full length: a cut gap would lose what ended it.

    A gap at either end of the capture is cut at the window, since nothing bounds it.
    """
    busy = activity.busy
    first = min(start_ns, int(busy.start_ns[0])) if len(busy) else start_ns
    last = max(end_ns, int(busy.end_ns[-1])) if len(busy) else end_ns
    gaps = busy.gaps(first, last)
    reach = slice(np.searchsorted(gaps.end_ns, start_ns, "right"), np.searchsorted(gaps.start_ns, end_ns))
    return gaps.start_ns[reach], gaps.end_ns[reach]


def _waited_for_other_stream(activity: Activity, following: I64) -> Bool:
    """Whether the activity that ran last before each gap was on another stream than the one after it.

    The stream of the one after it had then been free before the device ran dry.
    """
    reach = np.maximum.accumulate(activity.end_ns)
    last = np.maximum.accumulate(np.where(activity.end_ns == reach, np.arange(len(reach)), 0))
    before = last[np.maximum(following - 1, 0)]
    other: Bool = (following > 0) & (activity.stream[before] != activity.stream[following])
    return other
