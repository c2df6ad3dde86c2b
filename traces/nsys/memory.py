"""GPU memory as CUDA allocated it (`--cuda-memory-usage=true`): allocations and frees of an Nsight export."""

from __future__ import annotations

import numpy as np

from perfdoc.traces.damage import IMPOSSIBLE_MEMORY, Damage
from perfdoc.traces.errors import TraceError
from perfdoc.traces.memory import MAX_BYTES
from perfdoc.traces.model import UNKNOWN
from perfdoc.traces.more_tables import MemoryUse
from perfdoc.traces.nsys.ids import Ids
from perfdoc.traces.nsys.source import NULL, NsysSource, read_ints
from perfdoc.traces.table import I64, Bool
from perfdoc.traces.validate import MAX_TIME_NS, MAX_TOTAL_NS

EVENTS = "CUDA_GPU_MEMORY_USAGE_EVENTS"
LACKS = (
    "allocations of CUDA since the recording began: what PyTorch keeps for later counts, what is older or "
    "mapped (expandable segments) does not"
)
_ALLOCATION, _FREE = 0, 1
"""ENUM_CUDA_DEV_MEM_EVENT_OPER."""
_ON_DEVICE = (2, 3, 5)
"""ENUM_CUDA_MEM_KIND: device, array, and static memory of a module. Managed memory moves, pinned is the
host's."""
_POOL = "localMemoryPool"
_COLUMNS = dict.fromkeys(
    ("start", "globalPid", "deviceId", "address", "bytes", "memKind", "memoryOperationType")
    + (f"{_POOL}Address", f"{_POOL}Size"),
    NULL,
)


def read_memory_use(source: NsysSource, ids: Ids, damage: Damage) -> MemoryUse:
    """Of devices that are known already. A free takes what its address was last given; the first event of an
    address, if it is a free, tells of memory that is older than the recording. A pool holds what it says."""
    try:
        c = read_ints(source, EVENTS, _COLUMNS)
    except TraceError:  # no other figure rests on it
        damage.add("memory event", "its table cannot be read", source.count(EVENTS))
        return MemoryUse.empty()
    gpu: I64 = ids.devices_of(c["globalPid"], c["deviceId"], add=False).astype(np.int64)
    mine = (gpu >= 0) & np.isin(c["memKind"], _ON_DEVICE)
    fits = (c["bytes"] >= 0) & (c["bytes"] <= MAX_BYTES) & (c["start"] >= 0) & (c["start"] <= MAX_TIME_NS)
    fits &= np.isin(c["memoryOperationType"], (_ALLOCATION, _FREE))
    if float(c["bytes"][mine & fits].sum(dtype=np.float64)) > MAX_TOTAL_NS:
        fits[:] = False
    damage.add("memory event", IMPOSSIBLE_MEMORY, int(np.count_nonzero(mine & ~fits)))
    rows = np.flatnonzero(mine & fits)
    rows = rows[np.lexsort((c["start"][rows], c["address"][rows], gpu[rows]))]
    gpu, time, address, size, pool, pool_bytes = (
        values[rows]
        for values in (gpu, c["start"], c["address"], c["bytes"], c[f"{_POOL}Address"], c[f"{_POOL}Size"])
    )
    if not len(rows):
        return MemoryUse.empty()
    free = c["memoryOperationType"][rows] == _FREE
    first = ~_same(gpu, address)
    given = np.append(0, np.where(free, 0, size)[:-1])  # to the address, by the event before
    older = np.where(free & first, size, 0)
    change = np.where(free, 0, size) - np.where(first, older, given)
    pooled = (pool > 0) & (pool_bytes >= 0) & (pool_bytes <= MAX_BYTES)
    of = np.flatnonzero(pooled)
    of = of[np.lexsort((time[of], pool[of], gpu[of]))]
    held = change.copy()
    held[of] = np.diff(pool_bytes[of], prepend=0)
    begins = np.flatnonzero(~_same(gpu[of], pool[of]))
    # Before its first event a pool held what is freed of it without having been allocated, at least.
    held[of[begins]] = pool_bytes[of[begins]] - np.add.reduceat(older[of], begins)
    tables = []
    by_time = np.lexsort((time, gpu))
    for index in np.unique(gpu).tolist():
        of = by_time[gpu[by_time] == index]
        reserved = older[of].sum() + np.cumsum(held[of])
        tables.append(
            MemoryUse(
                time_ns=time[of],
                device=gpu[of].astype(np.int32),
                allocated_bytes=older[of].sum() + np.cumsum(change[of]),
                reserved_bytes=reserved if pooled[of].any() else np.full(len(of), UNKNOWN),
            )
        )
    return MemoryUse.joined(tables)


def _same(one: I64, other: I64) -> Bool:
    """Which rows equal the one before them in both columns."""
    return np.append(False, (one[1:] == one[:-1]) & (other[1:] == other[:-1]))[: len(one)]
