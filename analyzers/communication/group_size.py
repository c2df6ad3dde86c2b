"""How many ranks take part in each communication."""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.traces import Trace
from perfdoc.traces.table import U64

UNKNOWN = -1
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
