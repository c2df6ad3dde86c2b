"""Which CUDA call launched each activity of a device, and which range of the thread was open then."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.base.rows import said_by_names
from perfdoc.records import dataclass
from perfdoc.traces import Trace
from perfdoc.traces.model import UNKNOWN
from perfdoc.traces.table import I32, U64, Bool, distinct, in_order, unique

if TYPE_CHECKING:  # activity asks for enclosing ranges itself
    from perfdoc.analyzers.device.activity import Communication

NONE = -1


def launches_graphs(trace: Trace, calls: I64) -> Bool:
    """For each of these API calls whether it launches a whole graph, whose kernels no operator and no range
    launched."""
    return said_by_names(
        trace.strings, trace.api_calls.name[calls], lambda name: "GraphLaunch" in name, False
    )


def innermost_at_launch(trace: Trace, rows: I64, comm: Communication) -> I64:
    """For each communication the position in `rows` of the innermost of these ranges that was open on the
    launching thread when it was launched; -1 none or launch unknown."""
    at = innermost(
        trace.ranges.start_ns[rows],
        trace.ranges.end_ns[rows],
        trace.ranges.thread[rows].astype(np.int64),
        comm.launch_start_ns,
        comm.launch_thread,
    )
    return np.where(comm.launch_start_ns >= 0, at, NONE)


def innermost(start_ns: I64, end_ns: I64, range_thread: I64, time_ns: I64, thread: I64) -> I64:
    """For each (time, thread), the position of the innermost range of that thread that is open then; -1 none.

    Ranges are half-open; those of one thread are taken to nest (NVTX push/pop, record_function). Where two
    cross, the one that started last and is still open wins.
    """
    found = np.full(len(time_ns), NONE, np.int64)
    for t in unique(thread).tolist():
        asked = np.flatnonzero(thread == t)
        rows = np.flatnonzero(range_thread == t)
        if not len(rows):
            continue
        # Outer before inner where two start together.
        rows = rows[np.lexsort((-end_ns[rows], start_ns[rows]))]
        parent = _parents(start_ns[rows], end_ns[rows])
        time = time_ns[asked]
        at = np.searchsorted(start_ns[rows], time, "right") - 1
        ends = np.append(end_ns[rows], np.iinfo(np.int64).max)  # index -1 is open for ever: no range
        while (closed := ends[at] <= time).any():
            at = np.where(closed, parent[at], at)
        found[asked] = np.where(at >= 0, rows[np.maximum(at, 0)], NONE)
    return found


def _parents(start: I64, end: I64) -> I64:
    """For each range, sorted by start, the last earlier one that is still open when it starts; -1 none."""
    parent = np.full(len(start), NONE, np.int64)
    open_ranges: list[int] = []
    starts, ends = start.tolist(), end.tolist()
    for i, begin in enumerate(starts):
        while open_ranges and ends[open_ranges[-1]] <= begin:
            open_ranges.pop()
        parent[i] = open_ranges[-1] if open_ranges else NONE
        open_ranges.append(i)
    return parent


_MAX_DENSE_ENTRIES_PER_ROW = 16
"""A lookup table of this many entries per API row is still smaller than sorting is slow."""


@dataclass(frozen=True, kw_only=True)
class Launches:
    """Row of Trace.api_calls behind each row of these tables; -1 unknown."""

    kernels: I64
    copies: I64
    graph_launches: I64
    syncs: I64
    sync_sources: I64
    """The record call that a synchronisation names (Kineto)."""
    event_records: I64
    awaited: dict[int, tuple[I64, I64, I64]] = field(default_factory=dict, compare=False)
    """What was found of a device before, for whoever asks again: see communication/blocking.py."""


def find_launches(trace: Trace) -> Launches:
    """Join activities, synchronisations and event records to API calls of their process, by correlation id.

    Several calls may share an id (a runtime call and the driver call inside it): the one that starts
    first is the launch, since the others run inside it.
    """
    of_process: dict[int, list[int]] = {}
    for at, thread in enumerate(trace.threads):
        of_process.setdefault(thread.process, []).append(at)
    of_device = np.array([d.process for d in trace.devices], np.int64)
    syncs, records = trace.syncs, trace.event_records
    wanted: dict[str, _Wanted] = {
        "kernels": _Wanted(of=trace.kernels.device, process_of=of_device, ids=trace.kernels.correlation),
        "copies": _Wanted(of=trace.copies.device, process_of=of_device, ids=trace.copies.correlation),
        "graph_launches": _Wanted(
            of=trace.graph_launches.device, process_of=of_device, ids=trace.graph_launches.correlation
        ),
        "syncs": _Wanted(of=syncs.process, ids=syncs.correlation),
        "sync_sources": _Wanted(of=syncs.process, ids=syncs.source_correlation),
        "event_records": _Wanted(of=records.process, ids=records.correlation),
    }
    found: dict[str, Any] = {name: np.full(len(rows.ids), NONE, np.int64) for name, rows in wanted.items()}
    asked = {name: rows.by_process() for name, rows in wanted.items()}
    for pid in of_process.keys() & {pid for rows in asked.values() for pid in rows}:
        calls = _Calls.of(trace, np.array(of_process[pid], np.int64))
        if calls is None:
            continue
        for name, of in asked.items():
            if (rows := of.get(pid)) is not None:
                found[name][rows] = calls.behind(wanted[name].ids[rows])
    return Launches(**found)


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """Rows of one table, and the correlation ids by which their calls are looked for."""

    of: I64 | I32
    """The process of each, or its device."""
    ids: I64
    process_of: I64 | None = None
    """By device; None where `of` has processes."""

    def by_process(self) -> dict[int, I64]:
        """The rows of each process that have an id, ascending."""
        rows = np.flatnonzero(self.ids >= 0)
        if self.process_of is None:
            pids, code = distinct(self.of[rows].astype(np.int64))
        else:
            pids, of = distinct(self.process_of)
            code = of[self.of[rows]]
        if len(pids) == 1:
            return {int(pids[0]): rows}
        ordered = rows if (code[1:] >= code[:-1]).all() else rows[in_order(code)]
        ends = np.cumsum(np.bincount(code, minlength=len(pids))).tolist()
        return {pid: ordered[a:b] for pid, a, b in zip(pids.tolist(), [0, *ends], ends, strict=False)}


@dataclass(frozen=True, kw_only=True)
class _Calls:
    """Rows of Trace.api_calls of one process, by correlation id."""

    rows: I64
    """By id, NONE for one that no call has; or beside `ids`."""
    ids: I64 | None
    """Ascending, the earliest call of each first; None where `rows` has a place for every id."""

    @classmethod
    def of(cls, trace: Trace, threads: I64) -> _Calls | None:
        """None where no call has an id."""
        api = trace.api_calls
        rows = trace.calls_of(threads)
        rows = rows[api.correlation[rows] >= 0]
        if not len(rows):
            return None
        starts = api.start_ns[rows]
        if (starts[1:] < starts[:-1]).any():
            rows = rows[np.argsort(starts, kind="stable")]
        ids = api.correlation[rows]
        if (places := int(ids.max()) + 1) <= _MAX_DENSE_ENTRIES_PER_ROW * len(rows) + 1_000_000:
            table = np.full(places, NONE, np.int64)
            # Backwards, because the last assignment wins and the earliest call is wanted.
            table[ids[::-1]] = rows[::-1]
            return cls(rows=table, ids=None)
        order = np.argsort(ids, kind="stable")
        return cls(rows=rows[order], ids=ids[order])

    def behind(self, wanted: I64) -> I64:
        """The row of each of these ids; NONE of one that no call has."""
        if self.ids is None:
            return np.where(wanted < len(self.rows), self.rows[np.minimum(wanted, len(self.rows) - 1)], NONE)
        at = np.minimum(np.searchsorted(self.ids, wanted, "left"), len(self.ids) - 1)
        return np.where(self.ids[at] == wanted, self.rows[at], NONE)


def start_of(trace: Trace, api_row: I64) -> I64:
    """Start of the API call of each row; -1 where the row is -1."""
    if not len(trace.api_calls):
        return np.full(len(api_row), -1, np.int64)
    return np.where(api_row >= 0, trace.api_calls.start_ns[np.maximum(api_row, 0)], np.int64(-1))


_ANY = np.iinfo(np.int64).max


def group_sizes(trace: Trace, payload: I64, communicator: U64) -> I64:
    """Ranks of the group by communication; -1 unknown.

    payload: row of Trace.payloads of each communication, -1 none. communicator: NCCL's id of each, 0 unknown.
    A payload that does not say its group's size borrows it from others of the communicator, if they agree.
    """
    if not len(trace.payloads):
        return np.full(len(payload), UNKNOWN, np.int64)
    size = np.where(payload >= 0, trace.payloads.group_size[np.maximum(payload, 0)], UNKNOWN)
    asking = np.flatnonzero((size <= 0) & (communicator > 0))
    said = np.flatnonzero((trace.payloads.group_size > 0) & (trace.payloads.communicator > 0))
    if len(asking) and len(said):
        value, of_value = np.unique(trace.payloads.communicator[said], return_inverse=True)
        least, most = np.full(len(value), _ANY), np.zeros(len(value), np.int64)
        np.minimum.at(least, of_value, trace.payloads.group_size[said])
        np.maximum.at(most, of_value, trace.payloads.group_size[said])
        at = np.minimum(np.searchsorted(value, communicator[asking]), len(value) - 1)
        agreed = (value[at] == communicator[asking]) & (least[at] == most[at])
        size[asking[agreed]] = most[at[agreed]]
    return np.where(size > 0, size, UNKNOWN)
