"""Writes one rank of a simulated job as a Nsight SQLite: whole columns, straight from the simulated times."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfdoc.simulator.captures import nsys
from perfdoc.simulator.captures.groups import Group
from perfdoc.simulator.captures.nsys import DEFAULT_STREAM, NO_ID, Clock, global_pid, global_tid
from perfdoc.simulator.engine.graph import I64
from perfdoc.simulator.forward.answer import pause_span
from perfdoc.simulator.forward.hardware import Gpu
from perfdoc.simulator.forward.simulation import SimulatedRank
from perfdoc.simulator.forward.tape import CallKind, HostRange

FIRST_PID = 41000
UTC_ZERO_NS = 1_750_000_000_000_000_000
"""UTC time of true time 0."""
_CALL_NAMES = {
    CallKind.LAUNCH: "cudaLaunchKernel_v7000",
    CallKind.RECORD: "cudaEventRecord_v3020",
    CallKind.WAIT: "cudaStreamWaitEvent_v3020",
    CallKind.COPY: "cudaMemcpyAsync_v3020",
    CallKind.SYNCHRONIZE: "cudaDeviceSynchronize_v3020",
}
"""Nsight appends the CUDA version of the entry point to a call's name."""
Columns = dict[str, Any]
String = Callable[[str], int]
"""Gives a string's id in StringIds."""


def write_rank(simulated: SimulatedRank, gpu: Gpu, world_size: int, path: Path, *, clock: Clock) -> Path:
    """Write one rank. TraceError where it is there."""
    string = nsys.Strings()
    rows: dict[str, Mapping[str, Any]] = {
        "NVTX_EVENTS": _ranges(simulated, gpu, world_size, clock, string),
        **_bulk(simulated, clock, gpu, string),
    }
    end_ns = max(end for end in rows["NVTX_EVENTS"]["end"] if end is not None)
    for table, some in _machine(simulated, gpu, clock, end_ns, string):
        rows[table] = {name: [row[name] for row in some] for name in some[0]}
    rows["META_DATA_EXPORT"] = nsys.export_meta(nsys.PRODUCT_VERSION, nsys.SCHEMA_VERSION)
    rows["StringIds"] = string.columns()
    return nsys.write_export(path, {table: nsys.TABLES[table] for table in rows}, rows)


def _machine(
    simulated: SimulatedRank, gpu: Gpu, clock: Clock, end_ns: int, string: String
) -> list[tuple[str, list[Columns]]]:
    """Table and rows: GPU, context, streams, process, thread and the capture itself."""
    rank = simulated.work.rank
    device, pid = rank % gpu.per_node, FIRST_PID + rank
    origin = UTC_ZERO_NS + clock.session_start_ns + clock.utc_error_ns
    utc = datetime.fromtimestamp(origin // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    uuid = f"00000000-0000-4000-8000-{pid:06x}{device:06x}"
    (major, minor), context = gpu.compute_capability, {"hwId": 0, "vmId": 1, "processId": pid, "contextId": 1}
    info = {
        "vmId": nsys.MACHINE,
        "id": 0,
        "name": gpu.name,
        "busLocation": "0000:00:00.0",
        "isDiscrete": True,
        "totalMemory": gpu.memory_bytes,
        "smCount": gpu.sm_count,
        "pwGpuId": 0,
        "uuid": uuid,
        "cuDevice": device,
        "maxThreadsPerBlock": 1024,
        "threadsPerWarp": 32,
        "computeMajor": major,
        "computeMinor": minor,
        "smMajor": major,
        "smMinor": minor,
    }
    cuda = {"gpuId": 0, "cudaId": device, "pid": pid, "uuid": uuid, "numMultiprocessors": gpu.sm_count}
    null_stream = {"nullStreamId": DEFAULT_STREAM, "deviceId": device, "isGreenContext": False}
    streams = sorted({op.stream for op in simulated.work.tape.ops} - {DEFAULT_STREAM})
    capture = [("CAPTURE_EVENT_TYPE", "NvtxEvents"), ("CAPTURE_EVENT_TYPE", "Cuda"), ("DEVICE_TYPE", "Unix")]
    tables: list[tuple[str, list[Columns]]] = [
        ("TARGET_INFO_GPU", [info]),
        ("TARGET_INFO_CUDA_DEVICE", [cuda]),
        ("TARGET_INFO_CUDA_CONTEXT_INFO", [context | null_stream]),
        ("TARGET_INFO_CUDA_STREAM", [context | {"streamId": s, "priority": 0, "flag": 2} for s in streams]),
        (
            "TARGET_INFO_SESSION_START_TIME",
            [{"utcEpochNs": origin, "utcTime": utc, "localTime": utc, "systemClockNs": 0}],
        ),
        ("PROCESSES", [{"globalPid": global_pid(pid), "pid": pid, "name": "python"}]),
        ("ThreadNames", [{"nameId": string("python"), "priority": 20, "globalTid": global_tid(pid, pid)}]),
        (
            "ANALYSIS_DETAILS",
            [{"globalVid": nsys.MACHINE, "duration": end_ns, "startTime": 0, "stopTime": end_ns}],
        ),
        ("META_DATA_CAPTURE", [{"name": name, "value": value} for name, value in capture]),
    ]
    return [(table, rows) for table, rows in tables if rows]


class _Ranges:
    """NVTX_EVENTS of the one thread: names in NCCL's domain go to StringIds, others stand in the row."""

    def __init__(self, string: String) -> None:
        self.string = string
        self.rows: list[tuple[int, int | None, int, str | None, int | None, int, str | None]] = []

    def add(self, name: str, start_ns: int, end_ns: int | None) -> None:
        """A range of the trainer, or without an end a mark."""
        kind = nsys.NVTX_MARK if end_ns is None else nsys.NVTX_PUSH_POP
        self.rows.append((start_ns, end_ns, kind, name, None, 0, None))

    def add_nccl(self, name: str, start_ns: int, end_ns: int, payload: Mapping[str, object]) -> None:
        """A range of NCCL; payload: by NCCL's names of the fields."""
        if not any(row[2] == nsys.NVTX_DOMAIN for row in self.rows[:1]):
            self.rows.insert(0, (start_ns, None, nsys.NVTX_DOMAIN, "NCCL", None, 1, None))
        text = json.dumps(payload, separators=(",", ":")) if payload else None
        self.rows.append((start_ns, end_ns, nsys.NVTX_PUSH_POP, None, self.string(name), 1, text))

    def columns(self, pid: int) -> Columns:
        """The table's."""
        names = ("start", "end", "eventType", "text", "textId", "domainId", "jsonText")
        return {
            **{name: list(values) for name, values in zip(names, zip(*self.rows, strict=True), strict=True)},
            "globalTid": global_tid(pid, pid),
        }


def _ranges(
    simulated: SimulatedRank, gpu: Gpu, world_size: int, clock: Clock, string: nsys.Strings
) -> Columns:
    """Communicators made, the trainer's marks of rank and groups, and the ranges of every step."""
    work, ranges = simulated.work, _Ranges(string)
    first = clock.local(int(simulated.segment_ns[0, 0]))
    for number, group in enumerate(work.groups.values()):
        begin = first - 900_000 + number * 80_000
        payload = {
            _COMMUNICATOR: group.communicator,
            "No. of ranks": len(group.ranks),
            "Rank": group.ranks.index(work.rank),
            "CUDA device": work.rank % gpu.per_node,
        }
        ranges.add_nccl("ncclCommInitRankConfig", begin, begin + 70_000, payload)
    ranges.add(f"perfdoc.rank {work.rank} world={world_size} device=cuda", first - 100_000, None)
    for group in work.groups.values():
        ranges.add(group.mark(), first - 100_000, None)
    for step in range(len(simulated.start_ns)):
        _ranges_of_step(ranges, simulated, step, clock)
    return ranges.columns(FIRST_PID + work.rank)


def _ranges_of_step(ranges: _Ranges, simulated: SimulatedRank, step: int, clock: Clock) -> None:
    work = simulated.work
    places = np.array([(*r.begin, *r.end) for r in work.tape.ranges], np.int64).reshape(-1, 4)
    begins = clock.local(simulated.host_ns(step, places[:, 0], places[:, 1]))
    ends = clock.local(simulated.host_ns(step, places[:, 2], places[:, 3]))
    for r, begin, end in zip(work.tape.ranges, begins.tolist(), ends.tolist(), strict=True):
        if r.group:
            ranges.add_nccl(r.name, begin, end, _payload(r, work.groups[r.group], work.rank))
        else:
            ranges.add(r.name, begin, end)
    for number, pause in enumerate(work.pauses[step]):
        begin, end = pause_span(simulated, step, number)
        ranges.add(pause.name, clock.local(begin), clock.local(end))
    begin, end = int(simulated.segment_ns[step, 0]), int(simulated.segment_ns[step, -1])
    ranges.add(f"perfdoc.step {step}", clock.local(begin), clock.local(end))


_COMMUNICATOR = "NCCL communicator ID"


def _payload(r: HostRange, group: Group, rank: int) -> dict[str, object]:
    if r.name in ("ncclGroupStart", "ncclGroupEnd"):
        return {}
    payload: dict[str, object] = {_COMMUNICATOR: group.communicator, "Message size [bytes]": r.bytes}
    if r.name in ("ncclSend", "ncclRecv"):
        payload["Peer rank"] = (group.ranks.index(rank) + r.peer) % len(group.ranks)
    elif r.reduction:
        payload["Reduction operation"] = r.reduction
    return payload


def _bulk(simulated: SimulatedRank, clock: Clock, gpu: Gpu, string: String) -> dict[str, Columns]:
    tape, steps = simulated.work.tape, len(simulated.start_ns)
    ops, calls = tape.ops, tape.calls
    n, m = len(ops), len(calls)
    call = np.array([c[:7] for c in calls], np.int64)
    of_op = np.zeros(n, np.int64)
    launching = np.isin(call[:, 0], (CallKind.LAUNCH, CallKind.COPY))
    of_op[call[launching, 4]] = np.flatnonzero(launching)
    starts = np.concatenate([simulated.host_ns(s, call[:, 1], call[:, 2]) for s in range(steps)])
    ends = starts + np.tile(call[:, 3] - call[:, 2], steps)
    synchronizes = np.tile(call[:, 0] == CallKind.SYNCHRONIZE, steps)
    ends[synchronizes] = simulated.segment_ns[:, 1:].ravel()
    starts, ends = clock.local(starts), clock.local(ends)
    correlation = 1 + np.arange(steps * m)
    pid = FIRST_PID + simulated.work.rank
    names = np.array([string(name) for name in _CALL_NAMES.values()])
    place = {"deviceId": simulated.work.rank % gpu.per_node, "contextId": 1, "globalPid": global_pid(pid)}
    runtime = {
        "start": starts,
        "end": ends,
        "eventClass": nsys.CLASS_RUNTIME,
        "globalTid": global_tid(pid, pid),
        "correlationId": correlation,
        "nameId": np.tile(names[call[:, 0]], steps),
        "returnValue": 0,
    }
    start, end = clock.local(simulated.start_ns), clock.local(simulated.end_ns)
    op_correlation = correlation.reshape(steps, m)[:, of_op]
    return {
        "CUPTI_ACTIVITY_KIND_RUNTIME": runtime,
        **_kernels(simulated, start, end, op_correlation, place, string),
        **_events(simulated, call, starts, ends, correlation, end, place),
    }


def _kernels(
    simulated: SimulatedRank, start: I64, end: I64, correlation: I64, place: Columns, string: String
) -> dict[str, Columns]:
    ops, steps = simulated.work.tape.ops, len(start)
    kinds = list(simulated.work.tape.kernels)
    index = np.array([o.kernel for o in ops], np.int64)
    stream = np.array([o.stream for o in ops], np.int64)
    is_kernel = index >= 0
    shape = np.array([(string(k.full_name), string(k.name), k.grid, k.block) for k in kinds], np.int64)
    mine = shape[index[is_kernel]]

    def device(which: NDArray[np.bool_]) -> Columns:
        return {
            **place,
            "start": start[:, which].ravel(),
            "end": end[:, which].ravel(),
            "streamId": np.tile(stream[which], steps),
            "correlationId": correlation[:, which].ravel(),
            "greenContextId": 0,
        }

    constants: tuple[tuple[str, int | str], ...] = (
        *((name, 1) for name in ("gridY", "gridZ", "blockY", "blockZ", "launchType")),
        *((name, 0) for name in ("cacheConfig", "staticSharedMemory", "dynamicSharedMemory")),
        *((name, 0) for name in ("localMemoryPerThread", "localMemoryTotal", "sharedMemoryExecuted")),
        ("sharedMemoryLimitConfig", 0),
        ("registersPerThread", 168),
        ("tensorSizeMinusOneElements", "[]"),
    )
    kernels = device(is_kernel) | dict(constants)
    for column, name in enumerate(("demangledName", "shortName", "gridX", "blockX")):
        kernels[name] = np.tile(mine[:, column], steps)
    kernels["gridId"] = 1 + np.arange(len(kernels["start"]))
    copies = device(~is_kernel)
    copies["bytes"] = np.tile([o.bytes for o in ops if o.kernel < 0], steps)
    copies |= {"copyKind": 1, "copyCount": 1}
    return {"CUPTI_ACTIVITY_KIND_KERNEL": kernels, "CUPTI_ACTIVITY_KIND_MEMCPY": copies}


def _events(
    simulated: SimulatedRank, call: I64, starts: I64, ends: I64, correlation: I64, op_end: I64, place: Columns
) -> dict[str, Columns]:
    """Records, and the waits of streams and of the host."""
    steps, records = len(op_end), simulated.work.tape.records

    def of(kind: CallKind) -> tuple[I64, I64, I64]:
        """(position in the tape's calls, position in all calls, step) of the calls of a kind."""
        local = np.flatnonzero(call[:, 0] == kind)
        every = (np.arange(steps)[:, None] * len(call) + local).ravel()
        return np.tile(local, steps), every, np.repeat(np.arange(steps), len(local))

    local, every, step = of(CallKind.RECORD)
    event = 1 + call[local, 6] + step * records
    record_rows = {
        **place,
        "timestamp": op_end[step, call[local, 4]],
        "streamId": call[local, 5],
        "correlationId": correlation[every],
        "eventId": event,
        "eventSyncId": event,
    }
    local, every, step = of(CallKind.WAIT)
    event = 1 + call[local, 6] + step * records
    host, every_host, _ = of(CallKind.SYNCHRONIZE)
    nothing = np.full(len(host), NO_ID)

    def both(waits: I64, host_waits: I64) -> I64:
        return np.asarray(np.concatenate([waits, host_waits]))

    syncs = {
        **place,
        "deviceId": 0,
        "start": both(starts[every], starts[every_host]),
        "end": both(ends[every], ends[every_host]),
        "streamId": both(call[local, 5], nothing),
        "correlationId": both(correlation[every], correlation[every_host]),
        "syncType": both(
            np.full(len(every), nsys.STREAM_WAITS_FOR_EVENT), np.full(len(host), nsys.DEVICE_WAIT)
        ),
        "eventId": both(event, nothing),
        "eventSyncId": both(event, np.zeros(len(host), np.int64)),
    }
    return {"CUPTI_ACTIVITY_KIND_CUDA_EVENT": record_rows, "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": syncs}
