"""Rows of an Nsight export of a timeline, whatever file they go into: machine, threads, calls."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, TypeAlias

from perfdoc.simulator.captures.device import DEFAULT_STREAM
from perfdoc.simulator.captures.nsys.devices import device_rows
from perfdoc.simulator.captures.nsys.enums import ENUM_ROWS
from perfdoc.simulator.captures.nsys.export import (
    MACHINE,
    ExportOptions,
    Rows,
    Strings,
    contexts,
    global_pid,
    global_tid,
)
from perfdoc.simulator.captures.nsys.nvtx import nvtx_rows
from perfdoc.simulator.captures.nsys.schemas import GENERATIONS, tables
from perfdoc.simulator.captures.timeline import Timeline

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
