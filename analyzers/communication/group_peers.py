"""The other side of sends and receives that an ncclGroupEnd launched in one kernel."""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.communication.comm_payloads import GROUP_END, GROUP_START, outermost_groups
from perfdoc.analyzers.device.activity import Communication
from perfdoc.traces import Trace

_NOBODY = np.iinfo(np.int64).max


def peers_of_groups(trace: Trace, comm: Communication, rows: I64) -> I64:
    """For each of the rows the one peer of all calls that were queued in the group that launched it; -1 where
    they name several or none, or the group launched more than this kernel."""
    peers = np.full(len(rows), -1, np.int64)
    names = [i for i in trace.range_names.tolist() if trace.strings[i] in (GROUP_START, GROUP_END)]
    edges = np.flatnonzero(np.isin(trace.ranges.name, names))
    calls = np.flatnonzero((trace.payloads.range >= 0) & (trace.payloads.peer >= 0))
    call_range = trace.payloads.range[calls]
    for thread in np.unique(comm.launch_thread[rows]).tolist():
        groups = outermost_groups(trace, edges[trace.ranges.thread[edges] == thread])
        if thread < 0 or not groups:
            continue
        start, end_start, end_end = np.array(groups, np.int64).T
        queued = calls[trace.ranges.thread[call_range] == thread]
        queued_ns = trace.ranges.start_ns[trace.payloads.range[queued]]
        of_call = np.searchsorted(start, queued_ns, "right") - 1
        inside = (of_call >= 0) & (queued_ns < end_start[of_call])
        least, most = np.full(len(start), _NOBODY), np.full(len(start), -1)
        np.minimum.at(least, of_call[inside], trace.payloads.peer[queued[inside]])
        np.maximum.at(most, of_call[inside], trace.payloads.peer[queued[inside]])

        mine = np.flatnonzero(comm.launch_thread[rows] == thread)
        launch_ns = comm.launch_start_ns[rows[mine]]
        of_row = np.searchsorted(end_start, launch_ns, "right") - 1
        launched = (of_row >= 0) & (launch_ns < end_end[of_row])
        kernels = np.bincount(of_row[launched], minlength=len(start))
        known = launched & (least[of_row] == most[of_row]) & (kernels[of_row] == 1)
        peers[mine[known]] = most[of_row[known]]
    return peers
