"""Rows of an Nsight export of a timeline, whatever file they go into: machine, threads, calls."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from perfdoc.simulator.captures.nsys import (
    CLASS_DRIVER,
    CLASS_GRAPH_NODE,
    CLASS_RUNTIME,
    DEFAULT_STREAM,
    MACHINE,
    NO_ID,
    Columns,
    Strings,
    export_meta,
    global_pid,
    global_tid,
)
from tests.captures import events as ev
from tests.captures.nsys_nvtx import Row, Rows, nvtx_rows
from tests.captures.nsys_schemas import GENERATIONS, ExportOptions, tables
from tests.captures.timeline import Timeline

EARLY_SYNC_CODES = {4: 0, 1: 1, 3: 2, 2: 3}
"""CUPTI's synchronisation type -> the code that exports before 2026 wrote.

Seen in real files: a device wait is 0 in 2024.6.2's syncType, and 0, 1, 2 are device, event and stream
waits in 2025.1.3's deprecatedSyncType (whose syncType is 0 throughout), whatever ENUM_CUPTI_SYNC_TYPE
of the same file says. 3 for a stream's wait on an event is inferred: the one value left.
"""

API_VERSIONS = {
    "cudaLaunchKernel": "7000",
    "cudaLaunchKernelExC": "11060",
    "cudaMemcpyAsync": "3020",
    "cudaMemsetAsync": "3020",
    "cudaMalloc": "3020",
    "cudaFree": "3020",
    "cudaHostAlloc": "3020",
    "cudaEventRecord": "3020",
    "cudaEventRecordWithFlags": "11010",
    "cudaEventQuery": "3020",
    "cudaEventSynchronize": "3020",
    "cudaStreamWaitEvent": "3020",
    "cudaStreamSynchronize": "3020",
    "cudaDeviceSynchronize": "3020",
    "cudaGraphLaunch": "10000",
    "cudaStreamIsCapturing": "10000",
}
"""Nsight appends `_v` and the CUDA version of the entry point to a runtime call's name."""


def _entry_point(call: str) -> str:
    version = API_VERSIONS.get(call)
    return call if version is None else f"{call}_v{version}"


def _memory_kinds(copy: ev.Copy) -> Row:
    """ENUM_CUDA_MEM_KIND at both ends, where the planted copy says what its host memory is."""
    host, device = (None, None) if copy.pinned is None else (int(copy.pinned), 2)
    ends = (device, host) if copy.kind is ev.CopyKind.DEVICE_TO_HOST else (host, device)
    return dict(zip(("srcKind", "dstKind"), ends, strict=True))


def contexts(timeline: Timeline) -> dict[tuple[int, int], int]:
    """Context id of each (pid, device): 1 for a process's first device, then 2, ..."""
    numbers: dict[tuple[int, int], int] = {}
    for device in timeline.devices:
        numbers[device.pid, device.ordinal] = sum(pid == device.pid for pid, _ in numbers) + 1
    return numbers


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
        place(c)
        | {"bytes": c.bytes, "copyKind": int(c.kind), "graphNodeId": c.graph_node, "copyCount": 1}
        | _memory_kinds(c)
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
            "eventClass": CLASS_GRAPH_NODE,
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
            "eventClass": CLASS_RUNTIME if a.name.startswith("cuda") else CLASS_DRIVER,
            "globalTid": global_tid(a.pid, a.tid),
            "correlationId": a.correlation,
            "nameId": strings(_entry_point(a.name)),
            "returnValue": 0,
        }
        for a in timeline.api_calls
    ]
    syncs = []
    for s in timeline.synchronizations:
        early = None if version >= (2026,) else EARLY_SYNC_CODES[s.kind]
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


_CLASS_OS_RUNTIME = 27


def scheduling_rows(timeline: Timeline, strings: Strings) -> dict[str, Rows]:
    """Table -> rows."""
    return {
        "SCHED_EVENTS": [
            {
                **{"start": e.at_ns, "cpu": 0, "isSchedIn": e.on_cpu},
                **{"globalTid": global_tid(e.pid, e.tid), "threadState": None if e.on_cpu else 0},
            }
            for e in timeline.scheduling
        ],
        "OSRT_API": [
            {
                **{"start": c.start_ns, "end": c.end_ns, "eventClass": _CLASS_OS_RUNTIME},
                **{"globalTid": global_tid(c.pid, c.tid), "nameId": strings(c.name)},
                **{"returnValue": 0, "nestingLevel": 0, "callchainId": 0, "argumentsId": 0},
            }
            for c in timeline.os_calls
        ],
    }


def target_rows(timeline: Timeline, strings: Strings) -> dict[str, Rows]:
    """Table -> rows for GPUs, contexts, streams, processes, threads and meta data."""
    context = contexts(timeline)
    gpus: dict[str, int] = {}
    for device in timeline.devices:
        gpus.setdefault(device.uuid, len(gpus))
    first = {uuid: next(d for d in timeline.devices if d.uuid == uuid) for uuid in gpus}
    gpu_rows = [
        {
            "vmId": MACHINE,
            "id": number,
            "name": d.gpu_name,
            "busLocation": f"0000:{number:02x}:00.0",
            "isDiscrete": True,
            "totalMemory": d.memory_bytes,
            "smCount": d.sm_count,
            "pwGpuId": number,
            "uuid": d.uuid,
            "cuDevice": d.ordinal,
            "maxThreadsPerBlock": 1024,
            "threadsPerWarp": 32,
            "computeMajor": d.compute_capability[0],
            "computeMinor": d.compute_capability[1],
            "smMajor": d.compute_capability[0],
            "smMinor": d.compute_capability[1],
        }
        for number, d in ((gpus[uuid], device) for uuid, device in first.items())
    ]
    devices = [
        {
            "gpuId": gpus[d.uuid],
            "cudaId": d.ordinal,
            "pid": d.pid,
            "uuid": d.uuid,
            "numMultiprocessors": d.sm_count,
        }
        for d in timeline.devices
    ]
    context_rows = [
        {
            **{"streamId": DEFAULT_STREAM, "nullStreamId": DEFAULT_STREAM, "hwId": 0, "vmId": 1},
            **{"processId": pid, "deviceId": ordinal, "contextId": number, "isGreenContext": False},
        }
        for (pid, ordinal), number in context.items()
    ]
    used = {(r.pid, r.device, r.stream) for r in timeline.work}
    streams = sorted(key for key in used if key[2] != DEFAULT_STREAM)
    stream_rows = [
        {
            **{"streamId": stream, "hwId": 0, "vmId": 1, "processId": pid},
            **{"contextId": context[pid, device], "priority": 0, "flag": 2},
        }
        for pid, device, stream in streams
    ]
    origin = timeline.utc_origin_ns
    utc = "" if origin is None else datetime.fromtimestamp(origin // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    capture = [("CAPTURE_EVENT_TYPE", "NvtxEvents"), ("CAPTURE_EVENT_TYPE", "Cuda"), ("DEVICE_TYPE", "Unix")]
    return {
        "TARGET_INFO_GPU": gpu_rows,
        "TARGET_INFO_CUDA_DEVICE": devices,
        "TARGET_INFO_CUDA_CONTEXT_INFO": context_rows,
        "TARGET_INFO_CUDA_NULL_STREAM": context_rows,
        "TARGET_INFO_CUDA_STREAM": stream_rows,
        "TARGET_INFO_SESSION_START_TIME": []
        if origin is None
        else [{"utcEpochNs": origin, "utcTime": utc, "localTime": utc, "systemClockNs": 0}],
        "PROCESSES": [
            {"globalPid": global_pid(p.pid), "pid": p.pid, "name": p.name} for p in timeline.processes
        ],
        "ThreadNames": [
            {"nameId": strings(t.name), "priority": 20, "globalTid": global_tid(t.pid, t.tid)}
            for t in timeline.threads
        ],
        "ANALYSIS_DETAILS": [
            {"globalVid": MACHINE, "duration": timeline.end_ns, "startTime": 0, "stopTime": timeline.end_ns}
        ],
        "DIAGNOSTIC_EVENT": [
            {"timestamp": d.at_ns, "timestampType": 1, "source": 3, "severity": d.severity, "text": d.text}
            for d in timeline.diagnostics
        ],
        "META_DATA_CAPTURE": [{"name": name, "value": value} for name, value in capture],
    }


def export_rows(timeline: Timeline, generation: str, options: ExportOptions) -> dict[str, Columns]:
    """All rows of an export, table by table; a table without rows is absent.

    Columns that a generation lacks are left out; a column that is absent here is NULL in the file.
    ValueError where the timeline holds what the generation cannot.
    """
    schema, version = tables(generation), GENERATIONS[generation]
    strings = Strings()
    found: dict[str, Rows] = {
        **device_rows(timeline, generation, strings, options),
        **nvtx_rows(timeline, generation, options, strings),
        **target_rows(timeline, strings),
        **scheduling_rows(timeline, strings),
    }
    columns: dict[str, Mapping[str, Any]] = {
        table: {key: [row[key] for row in rows] for key in rows[0]} for table, rows in found.items() if rows
    }
    meta = export_meta(version.product, version.schema)
    columns |= {"META_DATA_EXPORT": meta, "EXPORT_META_DATA": meta}
    columns["StringIds"] = strings.columns()
    lost = [t for t in ("CUPTI_ACTIVITY_KIND_GRAPH_TRACE",) if t in columns and t not in schema]
    if lost:
        raise ValueError(f"generation {generation} has no table {lost[0]}")
    return {
        table: {c.name: have[c.name] for c in schema[table] if c.name in have}
        for table, have in columns.items()
        if table in schema and any(len(values) for values in have.values())
    }
