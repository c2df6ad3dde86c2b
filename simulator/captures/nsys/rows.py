"""Rows of an Nsight export of a timeline, whatever file they go into: machine, threads, calls."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, TypeAlias

from perfdoc.simulator.captures.device import DEFAULT_STREAM
from perfdoc.simulator.captures.nsys import enums
from perfdoc.simulator.captures.nsys.enums import ENUM_ROWS
from perfdoc.simulator.captures.nsys.export import (
    MACHINE,
    NO_ID,
    ExportOptions,
    Row,
    Rows,
    Strings,
    contexts,
    global_pid,
    global_tid,
)
from perfdoc.simulator.captures.nsys.nvtx import nvtx_rows
from perfdoc.simulator.captures.nsys.schemas import GENERATIONS, tables
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


def target_rows(timeline: Timeline, generation: str, strings: Strings) -> dict[str, Rows]:
    """Table -> rows for GPUs, contexts, streams, processes, threads and meta data."""
    version = GENERATIONS[generation]
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
    meta = {
        "EXPORT_PRODUCT_NAME": "NVIDIA Nsight Systems",
        "EXPORT_PRODUCT_VERSION": version.product,
        "EXPORT_PRODUCT_DATE": ".".join(version.product.split(".")[:2]),
    }
    if version.schema:
        parts = zip(("MAJOR", "MINOR", "MICRO"), version.schema.split("."), strict=True)
        meta |= {"EXPORT_SCHEMA_VERSION": version.schema} | {
            f"EXPORT_SCHEMA_VERSION_{k}": v for k, v in parts
        }
    meta |= {"EXPORT_PLATFORM": "linux-desktop", "EXPORT_ARCH": "x64"}
    meta_rows = [{"name": name, "value": value} for name, value in meta.items()]
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
        "META_DATA_EXPORT": meta_rows,
        "EXPORT_META_DATA": meta_rows,
    }


Columns: TypeAlias = dict[str, list[Any]]


def _columns(rows: Rows) -> Columns:
    """Rows with equal keys turned into columns."""
    return {key: [row[key] for row in rows] for key in rows[0]} if rows else {}


def export_rows(timeline: Timeline, generation: str, options: ExportOptions) -> dict[str, Columns]:
    """All rows of an export, table by table; a table without rows is absent.

    Columns that a generation lacks are left out; a column that is absent here is NULL in the file.
    ValueError where the timeline holds what the generation cannot.
    """
    schema = tables(generation)
    strings = Strings()
    found: dict[str, Rows] = {
        **device_rows(timeline, generation, strings, options),
        **nvtx_rows(timeline, generation, options, strings),
        **target_rows(timeline, generation, strings),
        **scheduling_rows(timeline, strings),
    }
    found["StringIds"] = [{"id": i, "value": text} for text, i in strings.ids.items()]
    for table, values in ENUM_ROWS.items():
        found[table] = [{"id": i, "name": name, "label": label} for i, name, label in values]
    result: dict[str, Columns] = {}
    for table, rows in found.items():
        if rows and table in schema:
            have = _columns(rows)
            result[table] = {c.name: have[c.name] for c in schema[table] if c.name in have}
    lost = [t for t in ("CUPTI_ACTIVITY_KIND_GRAPH_TRACE",) if found.get(t) and t not in schema]
    if lost:
        raise ValueError(f"generation {generation} has no table {lost[0]}")
    return result
