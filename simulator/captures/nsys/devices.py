"""Rows of an Nsight export about work on devices, and the calls and waits around it."""

from __future__ import annotations

from typing import Any

from perfdoc.simulator.captures.nsys import enums
from perfdoc.simulator.captures.nsys.export import (
    NO_ID,
    ExportOptions,
    Row,
    Rows,
    Strings,
    contexts,
    global_pid,
    global_tid,
)
from perfdoc.simulator.captures.nsys.schemas import GENERATIONS
from perfdoc.simulator.captures.timeline import Timeline


def _entry_point(call: str) -> str:
    version = enums.API_VERSIONS.get(call)
    return call if version is None else f"{call}_v{version}"


def device_rows(
    timeline: Timeline, generation: str, strings: Strings, options: ExportOptions
) -> dict[str, Rows]:
    """Table -> rows for kernels, copies, sets, graphs, API calls, event records and waits."""
    version = GENERATIONS[generation].version
    context = contexts(timeline)

    def place(row: Any) -> Row:
        return {
            "start": row.start_ns,
            "end": row.end_ns,
            "deviceId": row.device,
            "contextId": context[row.pid, row.device],
            "greenContextId": 0 if version >= (2026, 3) else None,
            "streamId": row.stream,
            "correlationId": row.correlation,
            "globalPid": global_pid(row.pid),
        }

    kernels = [
        place(k)
        | dict(
            zip(("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"), (*k.grid, *k.block), strict=True)
        )
        | {
            "demangledName": strings(k.full_name),
            "shortName": strings(k.name),
            "launchType": 1,
            "cacheConfig": 0,
            "registersPerThread": 32,
            "staticSharedMemory": 0,
            "dynamicSharedMemory": 0,
            "localMemoryPerThread": 0,
            "localMemoryTotal": 0,
            "gridId": number,
            "sharedMemoryExecuted": 0,
            "graphNodeId": k.graph_node,
            "sharedMemoryLimitConfig": 0,
            "tensorSizeMinusOneElements": "[]",
        }
        for number, k in enumerate(timeline.kernels, start=1)
    ]
    copies = [
        place(c) | {"bytes": c.bytes, "copyKind": int(c.kind), "graphNodeId": c.graph_node, "copyCount": 1}
        for c in timeline.copies
    ]
    sets = [
        place(m) | {"value": 0, "bytes": m.bytes, "graphNodeId": m.graph_node, "memKind": 2}
        for m in timeline.memory_sets
    ]
    graphs = [place(g) | {"graphId": g.graph, "graphExecId": g.graph} for g in timeline.graph_launches]
    nodes = [
        {
            "start": n.start_ns,
            "end": n.start_ns,
            "eventClass": enums.CLASS_GRAPH_NODE,
            "globalTid": global_tid(n.pid, n.tid),
            "nameId": strings("CUDA Graph Node Creation"),
            "graphNodeId": n.node,
            "originalGraphNodeId": n.original,
        }
        for n in timeline.graph_nodes
    ]
    calls = [
        {
            "start": a.start_ns,
            "end": a.end_ns,
            "eventClass": enums.CLASS_RUNTIME if a.name.startswith("cuda") else enums.CLASS_DRIVER,
            "globalTid": global_tid(a.pid, a.tid),
            "correlationId": a.correlation,
            "nameId": strings(_entry_point(a.name)),
            "returnValue": 0,
        }
        for a in timeline.api_calls
    ]
    syncs = []
    for s in timeline.synchronizations:
        early = None if version >= (2026,) else enums.EARLY_SYNC_CODES[s.kind]
        row = {
            "start": s.start_ns,
            "end": s.end_ns,
            # Nsight writes device 0 and the first context here, whatever the stream's device is.
            "deviceId": 0,
            "contextId": 1,
            "streamId": NO_ID if s.stream is None else s.stream,
            "correlationId": s.correlation,
            "globalPid": global_pid(s.pid),
            "deprecatedSyncType": early,
            "syncType": int(s.kind) if early is None else 0 if version >= (2025,) else early,
            "eventId": NO_ID if s.record is None else s.record.event,
            "eventSyncId": 0 if s.record is None else s.record.event_sync,
        }
        syncs.append(row)
    records = [
        {
            "timestamp": r.done_ns or 0,
            "deviceId": r.device,
            "contextId": context[r.pid, r.device],
            "streamId": r.stream,
            "correlationId": r.correlation,
            "globalPid": global_pid(r.pid),
            "eventId": r.event,
            "eventSyncId": r.event_sync,
        }
        for r in timeline.event_records
    ]
    return {
        "CUPTI_ACTIVITY_KIND_KERNEL": kernels,
        "CUPTI_ACTIVITY_KIND_MEMCPY": copies,
        "CUPTI_ACTIVITY_KIND_MEMSET": sets,
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": graphs,
        "CUDA_GRAPH_NODE_EVENTS" if version >= (2024, 2) else "CUDA_GRAPH_EVENTS": nodes,
        "CUPTI_ACTIVITY_KIND_RUNTIME": calls if options.api_calls else [],
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": syncs,
        "CUPTI_ACTIVITY_KIND_CUDA_EVENT": records if options.event_records else [],
    }
