"""idle.host outside of CUDA calls by the state of the launching thread: computing, waiting, or unknown.

Where another thread launched what ran before, the launching one may wait for that one: then both must wait
for the time to count as waiting, and either that computes makes it computing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from perfdoc.analyzers.base.intervals import EMPTY, Intervals, union
from perfdoc.analyzers.device.threads import ThreadTimes, WaitKind, thread_times
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.host.calls import HostCalls
from perfdoc.analyzers.host.idle import BLOCKING, HostIdle, ThreadIdle
from perfdoc.results.host import ThreadWait

MAX_WAITS = 12
_MAX_PAIRS = 1_000
"""Of the thread that launched before and the one that launched after: a program has a few."""


@dataclass(frozen=True, kw_only=True)
class PythonSplit:
    """Parts of HostSplit.python_ns, as it has them."""

    computing_ns: int | None
    waiting_ns: int | None
    between_steps_ns: int | None
    waits: list[ThreadWait]


def python_split(
    view: DeviceView, idle: HostIdle, calls: HostCalls, threads: Sequence[ThreadIdle]
) -> PythonSplit:
    """Divide what of a device's idle.host lies in no CUDA call."""
    between = view.idle_inputs.stalls.pauses if view.window.steps > 1 else None
    traced = view.trace.capabilities["thread_states"].available
    if not traced and between is None:
        return PythonSplit(computing_ns=None, waiting_ns=None, between_steps_ns=None, waits=[])

    @cache
    def times_of(thread: int) -> ThreadTimes:
        return thread_times(view.trace, view.known, thread)

    scheduled = known = computing_ns = waiting_ns = between_ns = 0
    waits: dict[tuple[WaitKind, str | None], int] = defaultdict(int)
    for thread, before, outside in _outside_calls(idle, calls, threads):
        waiting = EMPTY
        if traced:
            own, other = times_of(thread), times_of(thread if before < 0 else before)
            scheduled += any(t.scheduled for t in (own, other))
            known += any(t.scheduled or len(t.waiting) for t in (own, other))
            computing = own.computing | other.computing
            waiting = _inside(outside, own.waiting) if own is other else _both(outside, own, other)
            waiting = waiting - computing
            computing_ns += computing.overlap_ns(outside)
            waiting_ns += waiting.total_ns
            rest = waiting
            for call, kind, in_call in own.calls:
                waits[kind, call] += in_call.overlap_ns(waiting)
                rest = rest - in_call
            waits["other", None] += rest.total_ns
        if between is not None:
            between_ns += between.overlap_ns(outside - waiting)
    ranked = sorted(waits.items(), key=lambda w: (-w[1], w[0][1] or ""))
    return PythonSplit(
        computing_ns=computing_ns if scheduled else None,
        waiting_ns=waiting_ns if known else None,
        between_steps_ns=None if between is None else between_ns,
        waits=[ThreadWait(kind=k, call=c, idle_ns=ns) for (k, c), ns in ranked[:MAX_WAITS] if ns],
    )


def _outside_calls(
    idle: HostIdle, calls: HostCalls, threads: Sequence[ThreadIdle]
) -> Iterator[tuple[int, int, Intervals]]:
    """Idle in no CUDA call, as HostSplit.python_ns counts it, by the thread that launched what ended the gap
    and the one that launched what ran before."""
    inside: dict[int, Intervals] = {}
    blocked = EMPTY
    for thread in threads:
        mine = calls.of_thread(thread.thread)
        start, end, kind = calls.start_ns[mine], calls.end_ns[mine], calls.kind[mine]
        inside[thread.thread] = union(start, end)
        blocking = np.isin(kind, BLOCKING)
        blocked = blocked | _inside(thread.handed, union(start[blocking], end[blocking]))
    pairs = np.stack((idle.thread[idle.piece_gap], idle.before_thread[idle.piece_gap]))
    distinct, of = np.unique(pairs, axis=1, return_inverse=True)
    if distinct.shape[1] > _MAX_PAIRS:
        return
    for i, (thread_at, before_at) in enumerate(distinct.T.tolist()):
        rows = np.flatnonzero(of.ravel() == i)
        pieces = union(idle.piece_start_ns[rows], idle.piece_end_ns[rows])
        yield thread_at, before_at, pieces - blocked - inside.get(thread_at, EMPTY)


def _both(times: Intervals, one: ThreadTimes, other: ThreadTimes) -> Intervals:
    return _inside(_inside(times, one.waiting), other.waiting)


def _inside(times: Intervals, of: Intervals) -> Intervals:
    return times - (times - of)
