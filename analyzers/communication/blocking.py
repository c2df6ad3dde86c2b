"""Since when compute provably waited for each communication.

Two things prove it: a record -> wait edge (an event recorded on the communication's stream after it, waited
for by a stream before its next kernel), and stream order (a compute kernel queued behind the communication on
one stream). The compute that waits is the next activity that was launched on the waiting stream after the
wait; it was ready once it had been launched and its stream was free of what came before.

A communication that is exposed but that nothing provably waited for may have cost nothing: the host may
simply have had no work.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.device.activity import Activity
from perfdoc.analyzers.device.launches import Launches, start_of
from perfdoc.records import dataclass
from perfdoc.traces import SyncKind, Trace
from perfdoc.traces.table import Bool, unique

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


def blocked_since(trace: Trace, activity: Activity, launches: Launches) -> I64 | None:
    """For each row of Activity.communication the time since when compute waited for it; NEVER if it did not.

    None where the capture has no edges, so that nothing can be proved or excluded.
    """
    if not trace.capabilities["event_edges"].available:
        return None
    since = np.full(len(activity.comm_rows), NEVER, np.int64)
    lanes = {s: _Lane(activity, s) for s in unique(activity.stream).tolist()}
    position = _positions(activity)
    awaited, waiting = awaited_pairs(trace, activity, launches)
    free = _free_ns(activity, lanes)
    _note(activity, position, since, awaited, waiting, free)
    for lane in lanes.values():
        # Behind each other on one stream: ready as soon as launched.
        _note(activity, position, since, lane.rows[:-1], lane.rows[1:], np.zeros_like(free))
    # Streams run in order: whoever waits for a later communication waits for the earlier ones as well.
    for lane in lanes.values():
        rows = position[lane.rows]
        rows = rows[rows >= 0]
        since[rows] = np.minimum.accumulate(since[rows][::-1])[::-1]
    return since


def awaited_pairs(trace: Trace, activity: Activity, launches: Launches) -> tuple[I64, I64]:
    """Pairs of rows of the activity: (what was awaited, the first that was launched behind the wait).

    Over every record -> wait edge of the device, chains of waits included; -1 where a side is none.
    """
    known = launches.awaited.get(activity.device)
    if known is None or known[0] is not activity.launch_start_ns:
        edges = find_edges(trace, activity.device, launches)
        streams = unique(activity.stream).tolist() if len(edges.wait_ns) else []
        found = _awaited(edges, {s: _Lane(activity, s) for s in streams})
        launches.awaited[activity.device] = known = activity.launch_start_ns, *found
    return known[1:]


def _awaited(edges: Edges, lanes: Mapping[int, _Lane]) -> tuple[I64, I64]:
    """Pairs of activities: (what was awaited, the first one behind the wait).

    A wait of a stream holds for everything recorded on it later too: 20 -> 14 -> 7 makes stream 7 wait for
    stream 20, also where stream 14 runs nothing (ProcessGroupNCCL chains events so).
    """
    own = np.full(len(edges.wait_ns), -1, np.int64)
    behind = np.full(len(edges.wait_ns), -1, np.int64)
    for stream, lane in lanes.items():
        mine = edges.record_stream == stream
        own[mine] = lane.last_before(edges.record_ns[mine])
        mine = edges.wait_stream == stream
        behind[mine] = lane.first_from(edges.wait_ns[mine])

    count = len(own)
    # Records and waits in the host's order; of two at one time the record first.
    order = np.lexsort((np.repeat((0, 1), count), np.concatenate((edges.record_ns, edges.wait_ns))))
    carried: dict[int, dict[int, int]] = {}
    """By stream: the last activity of each other stream that it has waited for."""
    recorded: dict[int, dict[int, int]] = {}
    rows: list[int] = []
    """What was awaited, one wait after the other."""
    waits: list[int] = []
    waited_for: list[int] = []
    """Of each wait how many rows."""
    record_streams, wait_streams = edges.record_stream.tolist(), edges.wait_stream.tolist()
    owns = own.tolist()
    for at in order.tolist():
        if at < count:
            snapshot = dict(carried.get(record_streams[at], {}))
            if owns[at] >= 0:
                snapshot[record_streams[at]] = owns[at]
            recorded[at] = snapshot
            continue
        edge = at - count
        held = carried.setdefault(wait_streams[edge], {})
        snapshot = recorded.pop(edge, {})
        snapshot.pop(wait_streams[edge], None)
        rows += snapshot.values()
        waits.append(edge)
        waited_for.append(len(snapshot))
        for stream, row in snapshot.items():
            if row > held.get(stream, -1):
                held[stream] = row
    return np.array(rows, np.int64), np.repeat(behind[np.array(waits, np.int64)], waited_for)


class _Lane:
    """The activities of one stream in the order of their launches, which is the order in which they run."""

    def __init__(self, activity: Activity, stream: int) -> None:
        rows = np.flatnonzero((activity.stream == stream) & (activity.launch_start_ns >= 0))
        self.rows = rows[np.argsort(activity.launch_start_ns[rows], kind="stable")]
        self.launch_ns = activity.launch_start_ns[self.rows]
        self._rows_or_none = np.append(self.rows, -1)
        """In front of the first row as behind the last one stands none."""

    def last_before(self, time_ns: I64) -> I64:
        """Row of the last activity launched before each time; -1 none."""
        return self._rows_or_none[np.searchsorted(self.launch_ns, time_ns, "left") - 1]

    def first_from(self, time_ns: I64) -> I64:
        """Row of the first activity launched at or after each time; -1 none."""
        return self._rows_or_none[np.searchsorted(self.launch_ns, time_ns, "left")]


def _note(activity: Activity, position: I64, since: I64, awaited: I64, waiting: I64, free_ns: I64) -> None:
    """Lower `since` of awaited communications to the time at which the waiting computes were ready."""
    real = (awaited >= 0) & (waiting >= 0)
    awaited, waiting = awaited[real], waiting[real]
    is_edge: Bool = (
        (position[awaited] >= 0)  # what is awaited communicates
        & activity.is_compute[waiting]  # what waits computes
        & (activity.start_ns[waiting] >= activity.end_ns[awaited])  # and did wait
    )
    awaited, waiting = awaited[is_edge], waiting[is_edge]
    ready = np.maximum(activity.launch_start_ns[waiting], free_ns[waiting])
    np.minimum.at(since, position[awaited], ready)


def _free_ns(activity: Activity, lanes: Mapping[int, _Lane]) -> I64:
    """By activity: when everything launched before it on its stream had ended."""
    free = np.zeros(len(activity.stream), np.int64)
    for lane in lanes.values():
        free[lane.rows[1:]] = np.maximum.accumulate(activity.end_ns[lane.rows])[:-1]
    return free


def _positions(activity: Activity) -> I64:
    """Row of Activity.communication for each activity; -1 for what does not communicate."""
    position = np.full(len(activity.start_ns), -1, np.int64)
    position[activity.comm_rows] = np.arange(len(activity.comm_rows))
    return position


def find_edges(trace: Trace, device: int, launches: Launches) -> Edges:
    """Pair waits with records: by the edge's own id, by the record call's correlation (Kineto), else by the
    last record of the same event handle before the wait (CUDA reuses handles).

    Only records on the device count, since stream ids are only unique there; a wait is on the device of
    its record (the device of a wait's own row is not reliable).
    """
    process = trace.devices[device].process
    s, r = trace.syncs, trace.event_records
    waits = np.flatnonzero((s.process == process) & (s.kind == SyncKind.STREAM_WAIT_EVENT))
    records = np.flatnonzero((r.process == process) & (r.device == device))
    record_ns = start_of(trace, launches.event_records[records])
    records, record_ns = records[record_ns >= 0], record_ns[record_ns >= 0]
    order = np.argsort(record_ns, kind="stable")
    records, record_ns = records[order], record_ns[order]
    wait_ns = start_of(trace, launches.syncs[waits])
    wait_ns = np.where(wait_ns >= 0, wait_ns, s.start_ns[waits])

    stream = s.source_stream[waits].copy()
    time = start_of(trace, launches.sync_sources[waits])
    for key_of_wait, key_of_record in (
        (s.event_sync[waits], r.event_sync[records]),
        (s.event[waits], r.event[records]),
    ):
        missing = np.flatnonzero((time < 0) & (key_of_wait >= 0))
        at = _last_before(key_of_record, record_ns, key_of_wait[missing], wait_ns[missing])
        missing, at = missing[at >= 0], at[at >= 0]
        stream[missing], time[missing] = r.stream[records[at]], record_ns[at]
    paired = (time >= 0) & (stream >= 0)
    return Edges(
        record_stream=stream[paired],
        record_ns=time[paired],
        wait_stream=s.stream[waits][paired],
        wait_ns=wait_ns[paired],
    )


def _last_before(key: I64, time_ns: I64, asked_key: I64, asked_ns: I64) -> I64:
    """Row of the last of one key at or before each time; -1 none."""
    keys, times = np.concatenate((key, asked_key)), np.concatenate((time_ns, asked_ns))
    is_asked = np.arange(len(keys)) >= len(key)
    order = np.lexsort((is_asked, times, keys))
    place = np.maximum.accumulate(np.where(is_asked[order], -1, np.arange(len(order))))
    found = np.where(place >= 0, order[np.maximum(place, 0)], -1)
    found[keys[np.maximum(found, 0)] != keys[order]] = -1
    last = np.empty(len(keys), np.int64)
    last[order] = found
    return last[len(key) :]
