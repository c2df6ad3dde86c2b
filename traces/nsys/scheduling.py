"""Scheduling of threads and calls into the OS runtime, of an Nsight export that traced them.

Of no thread but those that the capture knows from CUDA calls and ranges: a system-wide trace has thousands.
"""

from __future__ import annotations

import numpy as np

from perfdoc.traces.errors import TraceError
from perfdoc.traces.model import Note
from perfdoc.traces.nsys.ids import Ids
from perfdoc.traces.nsys.source import NULL, NsysSource, read_ints
from perfdoc.traces.os_tables import OsCalls, ThreadStates
from perfdoc.traces.table import I64
from perfdoc.traces.validate import times_fit

SCHEDULING = "SCHED_EVENTS"
OS_CALLS = "OSRT_API"
_NO_TIME = -(2**63)
"""Stands for a NULL time, which no row may have."""


def read_scheduling(source: NsysSource, ids: Ids) -> tuple[ThreadStates, OsCalls, list[Note]]:
    """Both tables, as far as they are there. To be called once all other threads are known.

    A table that cannot be read is left out with a note: no other figure rests on it.
    """
    states, calls, notes = ThreadStates.empty(), OsCalls.empty(), []
    try:
        states = _thread_states(source, ids)
    except TraceError as error:
        notes.append(_unreadable(SCHEDULING, error))
    try:
        calls = _os_calls(source, ids)
    except TraceError as error:
        notes.append(_unreadable(OS_CALLS, error))
    return states, calls, notes


def _unreadable(table: str, error: TraceError) -> Note:
    return Note(
        code="unreadable-table",
        message=f"The table {table} is left out: {error.what}",
        remedy="Export the report again.",
    )


def _thread_states(source: NsysSource, ids: Ids) -> ThreadStates:
    """Each event begins a stretch, which the thread's next one ends.

    Two events of one kind in a row mean that one is lost: the state between them is unknown. Before its first
    event a thread was in the other state, after its last one it stays; as far as any thread has events.
    """
    c = read_ints(source, SCHEDULING, {"start": _NO_TIME, "isSchedIn": NULL, "globalTid": NULL})
    time, came_in = c["start"], c["isSchedIn"]
    kept = times_fit(time, time) & (came_in != NULL)
    if not kept.any():
        return ThreadStates.empty()
    first, last = int(time[kept].min()), int(time[kept].max())
    rows = np.flatnonzero(kept & ids.known_threads(c["globalTid"]))
    thread = ids.threads_of(c["globalTid"][rows]).astype(np.int64)
    order = np.lexsort((time[rows], thread))
    time, on_cpu, thread = time[rows[order]], came_in[rows[order]] != 0, thread[order]
    if not len(time):
        return ThreadStates.empty()
    same = thread[1:] == thread[:-1]
    between = np.flatnonzero(same & (on_cpu[1:] != on_cpu[:-1]))
    heads = np.flatnonzero(np.append(True, ~same))
    tails = np.append(heads[1:], len(time)) - 1
    begin = np.concatenate((np.full(len(heads), first), time[between], time[tails]))
    end = np.concatenate((time[heads], time[between + 1], np.full(len(tails), last)))
    of = np.concatenate((thread[heads], thread[between], thread[tails]))
    state = np.concatenate((~on_cpu[heads], on_cpu[between], on_cpu[tails]))
    order = np.lexsort((begin, of))
    order = order[end[order] > begin[order]]
    return ThreadStates(
        start_ns=begin[order], end_ns=end[order], thread=of[order].astype(np.int32), on_cpu=state[order]
    )


def _os_calls(source: NsysSource, ids: Ids) -> OsCalls:
    c = read_ints(source, OS_CALLS, {"start": _NO_TIME, "end": _NO_TIME, "globalTid": NULL, "nameId": NULL})
    kept = times_fit(c["start"], c["end"]) & (c["end"] > c["start"])
    rows: I64 = np.flatnonzero(kept & ids.known_threads(c["globalTid"]))
    thread = ids.threads_of(c["globalTid"][rows])
    order = np.lexsort((c["start"][rows], thread))
    rows = rows[order]
    return OsCalls(
        start_ns=c["start"][rows],
        end_ns=c["end"][rows],
        thread=thread[order],
        name=ids.names_of(c["nameId"][rows]),
    )
