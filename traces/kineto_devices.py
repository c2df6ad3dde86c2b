"""Which process drove which GPU: Kineto's device rows name the GPU only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfdoc.traces.kineto_meta import Distributed, Gpu
from perfdoc.traces.model import UNKNOWN, Device, Thread
from perfdoc.traces.table import I64


@dataclass(frozen=True, kw_only=True)
class Launches:
    """API calls by correlation, and the process of each."""

    correlation: I64
    process: I64
    host_processes: tuple[int, ...]
    """Processes with API calls, or with any host row where there are none."""


def launches(threads: Sequence[Thread], thread: I64, correlation: I64) -> Launches:
    """The API calls of a capture (columns of ApiCalls), sorted by correlation for look-up."""
    process_of = np.array([entry.process for entry in threads], dtype=np.int64)
    process = process_of[thread] if len(thread) else np.empty(0, dtype=np.int64)
    hosts = np.unique(process) if len(process) else np.unique(process_of)
    order = np.lexsort((process, correlation))
    keep = order[correlation[order] != UNKNOWN]
    return Launches(
        correlation=correlation[keep], process=process[keep], host_processes=tuple(hosts.tolist())
    )


def launched(calls: Launches, correlation: I64) -> tuple[I64, I64]:
    """For every row: how many calls share its correlation, and the process of the first and only one.

    The process is -1 where no call or calls of several processes share it.
    """
    first = np.searchsorted(calls.correlation, correlation, side="left")
    end = np.searchsorted(calls.correlation, correlation, side="right")
    count = (end - first).astype(np.int64)
    process = np.full(len(correlation), UNKNOWN, dtype=np.int64)
    found = count > 0
    # Sorted by process within a correlation, so equal ends mean that all are equal.
    low, high = calls.process[first[found]], calls.process[end[found] - 1]
    process[found] = np.where(low == high, low, UNKNOWN)
    return count, process


def processes(calls: Launches, ordinal: I64, correlation: I64) -> I64:
    """The process of every device row.

    One host process owns all rows. With several, a GPU that one process alone launched to belongs to
    it; on a shared GPU each row goes by its own correlation, and stays at -1 where that is ambiguous.
    """
    if len(calls.host_processes) <= 1:
        owner = calls.host_processes[0] if calls.host_processes else UNKNOWN
        return np.full(len(ordinal), owner, dtype=np.int64)
    _, process = launched(calls, correlation)
    for gpu in np.unique(ordinal).tolist():
        rows = ordinal == gpu
        owners = np.unique(process[rows & (process != UNKNOWN)])
        if len(owners) == 1:
            process[rows] = owners[0]
    return process


def devices(
    pairs: Sequence[tuple[int, int]], gpus: Mapping[int, Gpu], distributed: Distributed
) -> list[Device]:
    """The Device of each (process, ordinal). A rank is one process: with several, nobody gets it."""
    one_process = len({process for process, _ in pairs}) == 1
    rank = distributed.rank if one_process else None
    unknown = Gpu(name=None, sm_count=None, memory_bytes=None)
    return [
        Device(
            process=process,
            ordinal=ordinal,
            gpu_name=(gpu := gpus.get(ordinal, unknown)).name,
            sm_count=gpu.sm_count,
            memory_bytes=gpu.memory_bytes,
            rank=rank,
            rank_evidence="none" if rank is None else "distributedInfo",
        )
        for process, ordinal in pairs
    ]
