"""Since when compute provably waited for each communication.

Two things prove it: a record -> wait edge (an event recorded on the communication's stream after it, waited
for by a stream before its next kernel), and stream order (a compute kernel queued behind the communication on
one stream). The compute that waits is the next activity that was launched on the waiting stream after the
wait; it was ready once it had been launched and its stream was free of what came before.

A communication that is exposed but that nothing provably waited for may have cost nothing: the host may
simply have had no work.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.activity import Activity
from perfdoc.analyzers.intervals import I64
from perfdoc.traces import SyncKind, Trace
from perfdoc.traces.table import Bool

NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, kw_only=True)
class Edges:
    """Record -> wait edges of one process, on the host's clock."""

    record_stream: I64
    record_ns: I64
    """When the record was queued."""
    wait_stream: I64
    wait_ns: I64
    """When the wait was queued."""


def blocked_since(trace: Trace, activity: Activity) -> I64 | None:
    """For each row of Activity.communication the time since when compute waited for it; NEVER if it did not.

    None where the capture has no edges, so that nothing can be proved or excluded.
    """
    if not trace.capabilities["event_edges"].available:
        return None
    comm = activity.communication
    since = np.full(len(comm.kernel), NEVER, np.int64)
    lanes = {s: _Lane(activity, s) for s in np.unique(activity.stream).tolist()}
    position = _positions(activity)
    edges = find_edges(trace, trace.devices[activity.device].process)
    for record_stream in np.unique(edges.record_stream).tolist():
        for wait_stream in np.unique(edges.wait_stream[edges.record_stream == record_stream]).tolist():
            source, target = lanes.get(record_stream), lanes.get(wait_stream)
            if source is None or target is None or record_stream == wait_stream:
                continue
            mine = (edges.record_stream == record_stream) & (edges.wait_stream == wait_stream)
            awaited = source.last_before(edges.record_ns[mine])
            waiting = target.first_from(edges.wait_ns[mine])
            _note(activity, position, since, awaited, waiting, target)
    for lane in lanes.values():
        _note(activity, position, since, lane.rows[:-1], lane.rows[1:], lane)
    return since


class _Lane:
    """The activities of one stream in the order of their launches, which is the order in which they run."""

    def __init__(self, activity: Activity, stream: int) -> None:
        rows = np.flatnonzero((activity.stream == stream) & (activity.launch_start_ns >= 0))
        self.rows = rows[np.argsort(activity.launch_start_ns[rows], kind="stable")]
        self.launch_ns = activity.launch_start_ns[self.rows]
        ends = np.maximum.accumulate(activity.end_ns[self.rows])
        free = np.concatenate(([0], ends[:-1])) if len(ends) else ends
        self.free_ns = np.zeros(len(activity.stream), np.int64)
        self.free_ns[self.rows] = free
        """By row: when everything before it on the stream had ended."""

    def last_before(self, time_ns: I64) -> I64:
        """Row of the last activity launched before each time; -1 none."""
        at = np.searchsorted(self.launch_ns, time_ns, "left") - 1
        return (
            np.where(at >= 0, self.rows[np.maximum(at, 0)], -1)
            if len(self.rows)
            else np.full(len(time_ns), -1)
        )

    def first_from(self, time_ns: I64) -> I64:
        """Row of the first activity launched at or after each time; -1 none."""
        at = np.searchsorted(self.launch_ns, time_ns, "left")
        last = len(self.rows) - 1
        return (
            np.where(at <= last, self.rows[np.minimum(at, last)], -1)
            if last >= 0
            else np.full(len(time_ns), -1)
        )


def _note(activity: Activity, position: I64, since: I64, awaited: I64, waiting: I64, lane: _Lane) -> None:
    """Lower `since` of awaited communications to the time at which the waiting computes were ready."""
    real = (awaited >= 0) & (waiting >= 0)
    awaited, waiting = awaited[real], waiting[real]
    is_edge: Bool = (
        (position[awaited] >= 0)  # what is awaited communicates
        & activity.is_compute[waiting]  # what waits computes
        & (activity.start_ns[waiting] >= activity.end_ns[awaited])  # and did wait
    )
    awaited, waiting = awaited[is_edge], waiting[is_edge]
    free = np.where(activity.stream[awaited] == activity.stream[waiting], 0, lane.free_ns[waiting])
    ready = np.maximum(activity.launch_start_ns[waiting], free)
    np.minimum.at(since, position[awaited], ready)


def _positions(activity: Activity) -> I64:
    """Row of Activity.communication for each activity; -1 for what does not communicate."""
    position = np.full(len(activity.start_ns), -1, np.int64)
    position[activity.comm_rows] = np.arange(len(activity.comm_rows))
    return position


def find_edges(trace: Trace, process: int) -> Edges:
    """Pair waits with records: by the edge's own id, by the record call's correlation (Kineto), else by the
    last record of the same event handle before the wait (CUDA reuses handles)."""
    s, r = trace.syncs, trace.event_records
    call_ns = _call_times(trace, process)
    waits = np.flatnonzero((s.process == process) & (s.kind == SyncKind.STREAM_WAIT_EVENT))
    records = np.flatnonzero(r.process == process)
    record_ns = _look_up(call_ns, r.correlation[records])
    records, record_ns = records[record_ns >= 0], record_ns[record_ns >= 0]
    order = np.argsort(record_ns, kind="stable")
    records, record_ns = records[order], record_ns[order]
    wait_ns = _look_up(call_ns, s.correlation[waits])
    wait_ns = np.where(wait_ns >= 0, wait_ns, s.start_ns[waits])

    stream = s.source_stream[waits].copy()
    time = _look_up(call_ns, s.source_correlation[waits])
    for key_of_wait, key_of_record in (
        (s.event_sync[waits], r.event_sync[records]),
        (s.event[waits], r.event[records]),
    ):
        missing = np.flatnonzero((time < 0) & (key_of_wait >= 0))
        by_key = np.lexsort((record_ns, key_of_record))
        keys, times = key_of_record[by_key], record_ns[by_key]
        for i in missing.tolist():
            low, high = (
                np.searchsorted(keys, key_of_wait[i], "left"),
                np.searchsorted(keys, key_of_wait[i], "right"),
            )
            at = low + int(np.searchsorted(times[low:high], wait_ns[i], "right")) - 1
            if at >= low:
                stream[i], time[i] = r.stream[records[by_key[at]]], times[at]
    paired = (time >= 0) & (stream >= 0)
    return Edges(
        record_stream=stream[paired],
        record_ns=time[paired],
        wait_stream=s.stream[waits][paired],
        wait_ns=wait_ns[paired],
    )


def _call_times(trace: Trace, process: int) -> tuple[I64, I64]:
    """Correlation ids of a process, sorted, and the start of the earliest call of each."""
    threads = np.array([t.process == process for t in trace.threads], bool)
    api = trace.api_calls
    rows = np.flatnonzero((api.thread >= 0) & (api.correlation >= 0))
    rows = rows[threads[api.thread[rows]]] if len(threads) else rows[:0]
    order = np.lexsort((api.start_ns[rows], api.correlation[rows]))
    return api.correlation[rows][order], api.start_ns[rows][order]


def _look_up(call_ns: tuple[I64, I64], correlation: I64) -> I64:
    """Start of the call of each correlation id; -1 unknown."""
    keys, times = call_ns
    if not len(keys):
        return np.full(len(correlation), -1, np.int64)
    at = np.minimum(np.searchsorted(keys, correlation, "left"), len(keys) - 1)
    return np.where((correlation >= 0) & (keys[at] == correlation), times[at], -1)
