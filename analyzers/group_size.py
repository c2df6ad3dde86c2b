"""How many ranks take part in each communication."""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.intervals import I64
from perfdoc.traces import Trace
from perfdoc.traces.table import U64

UNKNOWN = -1


def group_sizes(trace: Trace, payload: I64, communicator: U64) -> I64:
    """Ranks of the group by communication; -1 unknown.

    payload: row of Trace.payloads of each communication, -1 none. communicator: NCCL's id of each, 0 unknown.
    A payload that does not say its group's size borrows it from others of the communicator, if they agree.
    """
    if not len(trace.payloads):
        return np.full(len(payload), UNKNOWN, np.int64)
    size = np.where(payload >= 0, trace.payloads.group_size[np.maximum(payload, 0)], UNKNOWN)
    said = trace.payloads.group_size > 0
    for value in np.unique(communicator[(size <= 0) & (communicator > 0)]).tolist():
        sizes = np.unique(trace.payloads.group_size[said & (trace.payloads.communicator == np.uint64(value))])
        if len(sizes) == 1:
            size[(size <= 0) & (communicator == np.uint64(value))] = sizes[0]
    return np.where(size > 0, size, UNKNOWN)
