"""What ran on the devices: kernels, copies and CUDA-graph launches of an Nsight export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from perfdoc.traces.model import UNKNOWN, Copies, CopyKind, GraphLaunches, Kernels, Note
from perfdoc.traces.nsys.ids import Ids
from perfdoc.traces.nsys.source import NULL, NsysSource, read_ints
from perfdoc.traces.table import I8, I64
from perfdoc.traces.validate import known_correlations, times_fit

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPH_TRACE = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"

_ACTIVITY = {
    "start": 0,
    "end": NULL,
    "deviceId": 0,
    "streamId": NULL,
    "correlationId": NULL,
    "globalPid": NULL,
}

KERNEL_COLUMNS = {
    **_ACTIVITY,
    "shortName": NULL,
    "demangledName": NULL,
    "graphNodeId": NULL,
    **dict.fromkeys(("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"), NULL),
}
"""What is read of the kernel table, and what stands for NULL in it."""

_COPY_KINDS = np.array(
    [
        *(CopyKind.OTHER, *(CopyKind.HOST_TO_DEVICE, CopyKind.DEVICE_TO_HOST) * 2),
        *(*[CopyKind.DEVICE_TO_DEVICE] * 4, CopyKind.HOST_TO_HOST, CopyKind.PEER_TO_PEER),
        *(CopyKind.HOST_TO_DEVICE, CopyKind.DEVICE_TO_HOST, CopyKind.DEVICE_TO_DEVICE),
    ],
    np.int8,
)
"""By ENUM_CUDA_MEMCPY_OPER; arrays count as device memory."""


def _activity(c: Mapping[str, I64], ids: Ids) -> dict[str, Any]:
    """Of a row on a device: when, where and by which call."""
    where = {"device": ids.devices_of(c["globalPid"], c["deviceId"]), "stream": c["streamId"]}
    correlation = known_correlations(c["correlationId"])
    return {"start_ns": c["start"], "end_ns": c["end"], **where, "correlation": correlation}


def read_kernels(source: NsysSource, ids: Ids) -> Kernels:
    """Rows of the kernel table; empty where the export has none."""
    c = read_ints(source, KERNEL, KERNEL_COLUMNS)
    name, full_name = ids.either_of(c["shortName"], c["demangledName"])
    return Kernels(
        **_activity(c, ids),
        name=name,
        full_name=full_name,
        grid_blocks=_volume(c["gridX"], c["gridY"], c["gridZ"]),
        block_threads=_volume(c["blockX"], c["blockY"], c["blockZ"]),
        graph_node=_zero_is_none(c["graphNodeId"]),
    )


def read_copies(source: NsysSource, ids: Ids) -> Copies:
    """Memory copies, then memory sets."""
    parts = []
    for table, kind_column in ((MEMCPY, "copyKind"), (MEMSET, None)):
        wanted = {**_ACTIVITY, "bytes": UNKNOWN, "graphNodeId": NULL}
        if kind_column:
            wanted |= {kind_column: 0, "srcDeviceId": NULL, "dstDeviceId": NULL}
            wanted |= {"srcKind": UNKNOWN, "dstKind": UNKNOWN}
        c = read_ints(source, table, wanted)
        parts.append(
            Copies(
                **_activity(c, ids),
                kind=_copy_kind(c[kind_column], c["srcDeviceId"], c["dstDeviceId"])
                if kind_column
                else np.full(len(c["start"]), CopyKind.MEMSET, np.int8),
                bytes=c["bytes"],
                pinned=_pinned(c["srcKind"], c["dstKind"])
                if kind_column
                else np.full(len(c["start"]), UNKNOWN, np.int8),
                graph_node=_zero_is_none(c["graphNodeId"]),
            )
        )
    return Copies(**{n: np.concatenate([getattr(p, n) for p in parts]) for n in Copies.column_names()})


_MANAGED, _MANY_FRAC = (11, 12), 0.01
"""ENUM_CUDA_MEMCPY_OPER of pages of managed memory that move; the time for it that counts, of kernels'."""
HOST_FAULTS, _HOST_FAULT_NS = "CUDA_UM_CPU_PAGE_FAULT_EVENTS", 10_000
"""A row a fault of the host (--cuda-um-cpu-page-faults=true), with no length: so much each takes at least."""
PAGE_FAULTS = "CUDA_UM_GPU_PAGE_FAULT_EVENTS"
"""A row a group of faults, with how long it took (nsys --cuda-um-gpu-page-faults=true)."""


def migrations(source: NsysSource, kernels_ns: int, names: Sequence[str]) -> list[Note]:
    """Told where pages move on demand: a kernel that waits for them looks as if it computed. names: of calls
    too. What a program prefetches itself (cause 1) does not; where it does and no cause is given, any may."""
    c = read_ints(source, MEMCPY, {"start": 0, "end": 0, "bytes": 0, "copyKind": 0, "migrationCause": 0})
    moved = np.isin(c["copyKind"], _MANAGED) & (c["migrationCause"] != 1)
    if moved.any() and any("MemPrefetch" in name for name in names):
        moved &= c["migrationCause"] > 0
    f = read_ints(source, PAGE_FAULTS, {"start": 0, "end": 0, "numberOfPageFaults": 1})
    fit = times_fit(f["start"], f["end"])
    touched = read_ints(source, HOST_FAULTS, {"start": 0})["start"]
    notes = []
    if len(touched) * _HOST_FAULT_NS > _MANY_FRAC * kernels_ns:
        said = f"The CPU faulted {len(touched):,} times on pages of managed memory that were on the GPU: each"
        do = "Copy what the host reads at once (cudaMemPrefetchAsync to the CPU), or keep it there."
        notes = [Note(code="host-page-faults", message=f"{said} time it waits.", remedy=do)]
    faults_ns, count = (int(x[fit].sum()) for x in (f["end"] - f["start"], f["numberOfPageFaults"]))
    if max(int((c["end"] - c["start"])[moved].sum()), faults_ns) <= _MANY_FRAC * kernels_ns:
        return notes
    times = f"{int(moved.sum()):,} times, {int(np.maximum(c['bytes'][moved], 0).sum()) >> 20:,} MiB"
    which = f"Pages of managed memory moved {times}"
    if faults_ns:
        of = f"{faults_ns / 1e6:,.1f} of {kernels_ns / 1e6:,.1f} ms in which kernels run"
        which = f"{count:,} page faults of the GPU, in managed memory, take {of}"
    said = f"{which}: a kernel that waits for a page counts as compute."
    remedy = "Prefetch what kernels touch (cudaMemPrefetchAsync), or keep it on the device where it fits."
    return [*notes, Note(code="managed-memory", message=said, remedy=remedy)]


def read_graph_launches(source: NsysSource, ids: Ids) -> GraphLaunches:
    """CUDA graphs traced as a whole (`--cuda-graph-trace=graph`, nsys's default)."""
    c = read_ints(source, GRAPH_TRACE, {**_ACTIVITY, "graphExecId": NULL})
    return GraphLaunches(**_activity(c, ids), graph=c["graphExecId"])


_PAGEABLE, _PINNED = 0, 1
"""ENUM_CUDA_MEM_KIND."""


def _pinned(source_kind: I64, target_kind: I64) -> I8:
    """By the kinds of memory at both ends: pageable at either end is staged."""
    pageable = (source_kind == _PAGEABLE) | (target_kind == _PAGEABLE)
    pinned = (source_kind == _PINNED) | (target_kind == _PINNED)
    return np.where(pageable, np.int8(0), np.where(pinned, np.int8(1), np.int8(UNKNOWN)))


def _copy_kind(copy_kind: I64, source_device: I64, target_device: I64) -> I8:
    known = (copy_kind >= 0) & (copy_kind < len(_COPY_KINDS))
    kind = _COPY_KINDS[np.where(known, copy_kind, 0)]
    # A copy between two devices is a peer copy whatever kind CUPTI gave it.
    peer = (source_device != NULL) & (target_device != NULL) & (source_device != target_device)
    return np.where(peer, np.int8(CopyKind.PEER_TO_PEER), kind)


def _volume(x: I64, y: I64, z: I64) -> I64:
    if len(x) and min(x.min(), y.min(), z.min()) > 0 and x.max() < 2**31 and max(y.max(), z.max()) < 2**16:
        return x * y * z  # as nearly always, in a third of the time
    known = (x > 0) & (y > 0) & (z > 0)
    # CUDA's limits (2^31-1 x 65535 x 65535) fit in 63 bits; anything larger is not a launch.
    fits = known & (x < 2**31) & (y < 2**16) & (z < 2**16)
    return np.where(fits, np.where(fits, x, 0) * np.where(fits, y, 0) * np.where(fits, z, 0), UNKNOWN)


def _zero_is_none(node: I64) -> I64:
    """Graph node ids are never 0; some generations write 0 for a kernel launched by itself."""
    none = node == 0
    return np.where(none, UNKNOWN, node) if none.any() else node
