"""The host's side of a rank: calls of the threads that feed a device, one after the other.

A process trains on several threads in turn (forward on one, backward on autograd's), and one that waits for
another makes no call. So a call follows whichever call ended last before it, on any of these threads; what
lay between the two is the host's own work. Where two threads call at the same time, each follows its own.

A call that waits for the device is two tasks: it begins, and it returns once the device is done.
"""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.host.calls import CallKind, HostCalls
from perfdoc.records import dataclass
from perfdoc.simulator.engine.graph import I64, NONE
from perfdoc.traces.table import I8, I32, Bool


@dataclass(frozen=True, kw_only=True)
class HostTasks:
    """Outermost calls by start."""

    start_ns: I64
    end_ns: I64
    thread: I32
    kind: I8
    """CallKind."""
    waits: Bool
    """Whether the call waits for the device."""
    previous: I64
    """The call that it follows; -1 none."""

    def at(self, thread: I32, time_ns: I64) -> I64:
        """The call of a thread that runs at a time; -1 none."""
        found = np.full(len(time_ns), NONE, np.int64)
        calls = _by_thread(self.thread)
        for t, asked in _by_thread(thread).items():
            if (mine := calls.get(t)) is not None:
                at = np.searchsorted(self.start_ns[mine], time_ns[asked], "right") - 1
                row = mine[np.maximum(at, 0)]
                inside = (at >= 0) & (self.end_ns[row] >= time_ns[asked])
                found[asked] = np.where(inside, row, NONE)
        return found


def host_tasks(calls: HostCalls, from_ns: int, to_ns: int) -> HostTasks:
    """The outermost calls that start in [from_ns, to_ns)."""
    outer = _outermost(calls)
    outer = outer[(calls.start_ns[outer] >= from_ns) & (calls.start_ns[outer] < to_ns)]
    outer = outer[np.argsort(calls.start_ns[outer], kind="stable")]
    start, end, thread = calls.start_ns[outer], calls.end_ns[outer], calls.thread[outer]
    return HostTasks(
        start_ns=start,
        end_ns=end,
        thread=thread,
        kind=calls.kind[outer],
        # One that took no time waited for nothing.
        waits=_waits(calls, outer) & (end > start),
        previous=_previous(start, end, thread),
    )


def _outermost(calls: HostCalls) -> I64:
    """Rows that lie in no other call of their thread."""
    keep = np.ones(len(calls.start_ns), bool)
    for thread in calls.threads:
        rows = calls.of_thread(thread)
        reach = np.maximum.accumulate(calls.end_ns[rows])
        keep[rows][1:] = calls.end_ns[rows][1:] > reach[:-1]
    return np.flatnonzero(keep)


def _waits(calls: HostCalls, outer: I64) -> Bool:
    """Whether an outermost call (by start) is, or holds, one that synchronises."""
    waiting = np.flatnonzero(calls.kind == CallKind.SYNCHRONISING)
    found = np.zeros(len(outer), bool)
    outermost = _by_thread(calls.thread[outer])
    for thread, rows in _by_thread(calls.thread[waiting]).items():
        mine, times = outermost.get(thread, rows[:0]), calls.start_ns[waiting[rows]]
        at = np.searchsorted(calls.start_ns[outer[mine]], times, "right") - 1
        at, times = at[at >= 0], times[at >= 0]
        found[mine[at[times < calls.end_ns[outer[mine[at]]]]]] = True  # it may begin after the last of them
    return found


def _previous(start: I64, end: I64, thread: I32) -> I64:
    """The earlier call that ended last, if it ended before this one; else the thread's own previous one, or
    for a thread's first call the one that ended last before it."""
    count = len(start)
    if not count:
        return np.empty(0, np.int64)
    reach = np.maximum.accumulate(end)
    # The row that holds the running maximum: the last one that raised it.
    raised = np.concatenate(([True], end[1:] > reach[:-1]))
    holder = np.maximum.accumulate(np.where(raised, np.arange(count), 0))
    last = np.concatenate(([NONE], holder[:-1]))
    own = np.full(count, NONE, np.int64)
    for mine in _by_thread(thread).values():
        own[mine[1:]] = mine[:-1]
    ended = (last >= 0) & (end[np.maximum(last, 0)] <= start)
    found = np.where(ended, last, own)
    # A thread that begins while another one's call runs goes on from whichever call ended last before.
    begins = np.flatnonzero(found < 0)
    by_end = np.argsort(end, kind="stable")
    at = np.searchsorted(end[by_end], start[begins], "right") - 1
    earlier = np.where(at >= 0, by_end[np.maximum(at, 0)], NONE)
    found[begins] = np.where(earlier == begins, NONE, earlier)
    return found


def _by_thread(thread: I32) -> dict[int, I64]:
    """Rows of each thread, in their order. One sort for all: a capture may have thousands of threads."""
    if not len(thread):
        return {}
    lowest, highest = int(thread.min()), int(thread.max())
    if lowest == highest:
        return {lowest: np.arange(len(thread))}
    if highest - lowest < 1 << 16:
        thread = (thread - lowest).astype(np.uint16)  # numpy sorts two bytes in linear time
    else:
        lowest = 0
    order = np.argsort(thread, kind="stable")
    of = thread[order]
    parts = np.split(order, np.flatnonzero(of[1:] != of[:-1]) + 1)
    return {int(thread[rows[0]]) + lowest: rows for rows in parts}
