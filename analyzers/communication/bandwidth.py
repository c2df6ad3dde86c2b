"""How many ranks take part in each communication, and the bus bandwidth that it reaches.

Factors as nccl-tests defines them (doc/PERFORMANCE.md), for sizes as docs/units.md counts them: the whole
buffer for all-reduce and broadcast, one rank's part for all-gather and reduce-scatter, one peer's for
all-to-all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from perfdoc.analyzers.base.intervals import I64, exact_sum
from perfdoc.traces import Trace
from perfdoc.traces.model import UNKNOWN
from perfdoc.traces.table import U64

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


_FACTORS: Mapping[str, Callable[[float], float]] = MappingProxyType(
    {
        "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
        "all_gather": lambda ranks: ranks - 1,
        "reduce_scatter": lambda ranks: ranks - 1,
        "all_to_all": lambda ranks: ranks - 1,
        "broadcast": lambda ranks: 1.0,
        "reduce": lambda ranks: 1.0,
    }
)


def bus_bandwidth_gbps(collective: str, size_bytes: I64, group_size: I64, duration_ns: I64) -> float | None:
    """10^9 bytes a second over the operations' own durations, waiting for late ranks included.

    None unless size and group of every one are known, the group has others in it, and the collective has a
    factor. 8 ranks all-reduce 1 GB in 10 ms: 1 GB x 2 x 7/8 / 10 ms = 175 GB/s.
    """
    factor = _FACTORS.get(collective)
    total_ns = exact_sum(duration_ns)
    if factor is None or total_ns <= 0 or (size_bytes < 0).any() or (group_size < 2).any():
        return None
    moved = sum(
        factor(float(ranks)) * exact_sum(size_bytes[group_size == ranks])
        for ranks in np.unique(group_size).tolist()
    )
    return moved / total_ns
