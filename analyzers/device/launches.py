"""Which CUDA call launched each activity of a device, and which range of the thread was open then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.base.names import said_by_names
from perfdoc.traces import Copies, GraphLaunches, Kernels, Trace
from perfdoc.traces.table import Bool

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
    for t in np.unique(thread).tolist():
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


def find_launches(trace: Trace) -> Launches:
    """Join activities, synchronisations and event records to API calls by (process, correlation id).

    Several calls may share an id (a runtime call and the driver call inside it): the one that starts
    first is the launch, since the others run inside it.
    """
    api = trace.api_calls
    processes = {
        p: i for i, p in enumerate({d.process for d in trace.devices} | {t.process for t in trace.threads})
    }
    thread_process = np.array([processes[t.process] for t in trace.threads], np.int64)
    device_process = np.array([processes[d.process] for d in trace.devices], np.int64)

    def on_device(table: Kernels | Copies | GraphLaunches) -> tuple[I64, I64]:
        return device_process[table.device], table.correlation

    def of_process(process: I64, correlation: I64) -> tuple[I64, I64]:
        index = np.zeros(len(process), np.int64)
        known = np.zeros(len(process), bool)
        for pid in np.unique(process).tolist():
            if pid in processes:
                index[process == pid] = processes[pid]
                known |= process == pid
        return index, np.where(known, correlation, -1)

    wanted = {
        "kernels": on_device(trace.kernels),
        "copies": on_device(trace.copies),
        "graph_launches": on_device(trace.graph_launches),
        "syncs": of_process(trace.syncs.process, trace.syncs.correlation),
        "sync_sources": of_process(trace.syncs.process, trace.syncs.source_correlation),
        "event_records": of_process(trace.event_records.process, trace.event_records.correlation),
    }
    rows = np.flatnonzero((api.correlation >= 0) & (api.thread >= 0))
    if not len(rows):
        return Launches(**{name: np.full(len(ids), -1, np.int64) for name, (_, ids) in wanted.items()})
    starts = api.start_ns[rows]
    if (starts[1:] < starts[:-1]).any():
        rows = rows[np.argsort(starts, kind="stable")]
    all_ids = (api.correlation, *(ids for _, ids in wanted.values()))
    stride = 1 + max(int(ids.max(initial=0)) for ids in all_ids)
    key = thread_process[api.thread[rows]] * stride + api.correlation[rows]
    keys = {name: process * stride + ids for name, (process, ids) in wanted.items()}
    if stride * len(processes) <= _MAX_DENSE_ENTRIES_PER_ROW * len(rows) + 1_000_000:
        table = np.full(stride * len(processes), -1, np.int64)
        # Backwards, because the last assignment wins and the earliest call is wanted.
        table[key[::-1]] = rows[::-1]
        found = {name: table[np.maximum(k, 0)] for name, k in keys.items()}
    else:
        order = np.argsort(key, kind="stable")
        key, rows = key[order], rows[order]
        found = {}
        for name, k in keys.items():
            at = np.minimum(np.searchsorted(key, k, "left"), len(key) - 1)
            found[name] = np.where(key[at] == k, rows[at], -1)
    return Launches(**{name: np.where(wanted[name][1] >= 0, row, -1) for name, row in found.items()})


def start_of(trace: Trace, api_row: I64) -> I64:
    """Start of the API call of each row; -1 where the row is -1."""
    if not len(trace.api_calls):
        return np.full(len(api_row), -1, np.int64)
    return np.where(api_row >= 0, trace.api_calls.start_ns[np.maximum(api_row, 0)], np.int64(-1))
