"""Which copies move data between ranks.

A copy between GPUs does. So does a copy inside a GPU that NCCL's own call launched: its copy-engine
collectives write through memory that is mapped from the other ranks, which CUPTI may report as one device's.
In a group of one rank such a copy moves nothing between ranks.
"""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.communication.group_size import group_sizes
from perfdoc.analyzers.device.enclosing import innermost
from perfdoc.analyzers.device.launches import Launches
from perfdoc.traces import CopyKind, Trace
from perfdoc.traces.table import Bool


def communicating_copies(trace: Trace, rows: I64, launches: Launches) -> Bool:
    """For each of these rows of Trace.copies, whether it is communication."""
    kind = trace.copies.kind[rows]
    found = np.asarray(kind == CopyKind.PEER_TO_PEER)
    api = launches.copies[rows]
    asked = np.flatnonzero((kind == CopyKind.DEVICE_TO_DEVICE) & (api >= 0))
    calls = np.flatnonzero(trace.payloads.range >= 0)
    if len(calls) and len(asked):
        # NCCL's calls do not say how many ranks take part, the creation of their communicator does.
        size = group_sizes(trace, calls, trace.payloads.communicator[calls])
        calls = calls[size != 1]
    if len(calls) and len(asked):
        ranges = trace.payloads.range[calls]
        inside = innermost(
            trace.ranges.start_ns[ranges],
            trace.ranges.end_ns[ranges],
            trace.ranges.thread[ranges].astype(np.int64),
            trace.api_calls.start_ns[api[asked]],
            trace.api_calls.thread[api[asked]].astype(np.int64),
        )
        found[asked] = inside >= 0
    return found
