"""Writes one rank of a simulated job as a Nsight SQLite: bulk tables straight from columns."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfdoc.profiling.whole_file import whole_file
from perfdoc.simulator.captures.device import DEFAULT_STREAM
from perfdoc.simulator.captures.events import NcclPayload, SyncKind
from perfdoc.simulator.captures.groups import Group
from perfdoc.simulator.captures.nsys.enums import API_VERSIONS, CLASS_RUNTIME
from perfdoc.simulator.captures.nsys.export import DEFAULT_OPTIONS, NO_ID, global_pid, global_tid
from perfdoc.simulator.captures.nsys.files import create_tables, write_rows
from perfdoc.simulator.captures.nsys.rows import export_rows
from perfdoc.simulator.captures.nsys.schemas import tables
from perfdoc.simulator.captures.process import ThreadBuilder
from perfdoc.simulator.captures.timeline import Clock, Timeline, TimelineBuilder
from perfdoc.simulator.engine.graph import I64
from perfdoc.simulator.forward.answer import pause_span
from perfdoc.simulator.forward.hardware import Gpu
from perfdoc.simulator.forward.simulation import SimulatedRank
from perfdoc.simulator.forward.tape import CallKind, HostRange

GENERATION = "2026.3"
FIRST_PID = 41000
UTC_ZERO_NS = 1_750_000_000_000_000_000
"""UTC time of true time 0."""
_DOMAIN = "NCCL"
_CALL_NAMES = {
    CallKind.LAUNCH: "cudaLaunchKernel",
    CallKind.RECORD: "cudaEventRecord",
    CallKind.WAIT: "cudaStreamWaitEvent",
    CallKind.COPY: "cudaMemcpyAsync",
    CallKind.SYNCHRONIZE: "cudaDeviceSynchronize",
}
Columns = dict[str, Any]


def local_times(clock: Clock, true_ns: I64) -> I64:
    """The same as Clock.local, for a column."""
    elapsed = true_ns - clock.session_start_ns
    found: I64 = elapsed + elapsed * clock.drift_ppb // 10**9
    return found


def write_rank(
    simulated: SimulatedRank, gpu: Gpu, world_size: int, path: Path, *, clock: Clock, force: bool = False
) -> Path:
    """Write one rank. CaptureError where it is there, unless `force`."""
    timeline = _frame(simulated, gpu, world_size, clock)
    rows: dict[str, Mapping[str, Any]] = dict(export_rows(timeline, GENERATION, DEFAULT_OPTIONS))
    strings = rows["StringIds"]
    known = dict(zip(strings["value"], strings["id"], strict=True))

    def string(text: str) -> int:
        return int(known.setdefault(text, len(known)))

    rows.update(_bulk(simulated, clock, gpu, string))
    rows["StringIds"] = {"id": list(known.values()), "value": list(known)}
    schema = tables(GENERATION)
    with whole_file(Path(path), replace=force) as part:
        connection = sqlite3.connect(part)
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA journal_mode = OFF")
        try:
            create_tables(connection, GENERATION, [t for t in schema if t in rows])
            for table, columns in rows.items():
                allowed = {c.name for c in schema[table]}
                write_rows(connection, table, {n: v for n, v in columns.items() if n in allowed})
            connection.commit()
        finally:
            connection.close()
    return Path(path)


# What is small: the process, its marks, its ranges.


def _frame(simulated: SimulatedRank, gpu: Gpu, world_size: int, clock: Clock) -> Timeline:
    """A timeline of everything but the bulk, with one kernel on each stream so that streams are known."""
    work = simulated.work
    origin = UTC_ZERO_NS + clock.session_start_ns + clock.utc_error_ns
    builder = TimelineBuilder(utc_origin_ns=origin)
    process = builder.process(pid=FIRST_PID + work.rank, rank=work.rank)
    thread = process.thread()
    device = process.device(
        work.rank % gpu.per_node,
        gpu_name=gpu.name,
        sm_count=gpu.sm_count,
        memory_bytes=gpu.memory_bytes,
        compute_capability=gpu.compute_capability,
    )
    _introduce(thread, simulated, world_size, clock, work.rank % gpu.per_node)
    for step in range(len(simulated.start_ns)):
        _ranges(thread, simulated, step, clock)
    for stream in sorted({op.stream for op in work.tape.ops}):
        device.kernel("x", 0, 1, stream=stream)
    return builder.build()


def _introduce(
    thread: ThreadBuilder, simulated: SimulatedRank, world_size: int, clock: Clock, device: int
) -> None:
    """Communicators made, and the trainer's marks of rank and groups."""
    first = clock.local(int(simulated.segment_ns[0, 0]))
    for number, group in enumerate(simulated.work.groups.values()):
        begin = first - 900_000 + number * 80_000
        payload = NcclPayload(
            communicator=group.communicator,
            ranks=len(group.ranks),
            rank=group.ranks.index(simulated.work.rank),
            device=device,
        )
        thread.range("ncclCommInitRankConfig", begin, begin + 70_000, domain=_DOMAIN, payload=payload)
    thread.mark(f"perfdoc.rank {simulated.work.rank} world={world_size} device=cuda", first - 100_000)
    for group in simulated.work.groups.values():
        thread.mark(group.mark(), first - 100_000)


def _ranges(thread: ThreadBuilder, simulated: SimulatedRank, step: int, clock: Clock) -> None:
    work = simulated.work
    ranges = work.tape.ranges
    places = np.array([(*r.begin, *r.end) for r in ranges], np.int64).reshape(-1, 4)
    begins = local_times(clock, simulated.host_ns(step, places[:, 0], places[:, 1]))
    ends = local_times(clock, simulated.host_ns(step, places[:, 2], places[:, 3]))
    for r, begin, end in zip(ranges, begins.tolist(), ends.tolist(), strict=True):
        if r.group:
            thread.range(
                r.name, begin, end, domain=_DOMAIN, payload=_payload(r, work.groups[r.group], work.rank)
            )
        else:
            thread.range(r.name, begin, end)
    for number, pause in enumerate(work.pauses[step]):
        begin, end = (clock.local(t) for t in pause_span(simulated, step, number))
        thread.range(pause.name, begin, end)
    begin, end = (
        clock.local(int(simulated.segment_ns[step, 0])),
        clock.local(int(simulated.segment_ns[step, -1])),
    )
    thread.range(f"perfdoc.step {step}", begin, end)


def _payload(r: HostRange, group: Group, rank: int) -> NcclPayload | None:
    if r.name in ("ncclGroupStart", "ncclGroupEnd"):
        return None
    if r.name in ("ncclSend", "ncclRecv"):
        place = (group.ranks.index(rank) + r.peer) % len(group.ranks)
        return NcclPayload(communicator=group.communicator, bytes=r.bytes, peer=place)
    return NcclPayload(communicator=group.communicator, bytes=r.bytes, reduction=r.reduction or None)


# What is large.


def _bulk(simulated: SimulatedRank, clock: Clock, gpu: Gpu, string: Any) -> dict[str, Columns]:
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
    starts, ends = local_times(clock, starts), local_times(clock, ends)
    correlation = 1 + np.arange(steps * m)
    pid = FIRST_PID + simulated.work.rank
    names = np.array(
        [string(f"{x}_v{API_VERSIONS[x]}" if x in API_VERSIONS else x) for x in _CALL_NAMES.values()]
    )
    place = {"deviceId": simulated.work.rank % gpu.per_node, "contextId": 1, "globalPid": global_pid(pid)}
    runtime = {
        "start": starts,
        "end": ends,
        "eventClass": CLASS_RUNTIME,
        "globalTid": global_tid(pid, pid),
        "correlationId": correlation,
        "nameId": np.tile(names[call[:, 0]], steps),
        "returnValue": 0,
    }
    start, end = local_times(clock, simulated.start_ns), local_times(clock, simulated.end_ns)
    op_correlation = correlation.reshape(steps, m)[:, of_op]
    return {
        "CUPTI_ACTIVITY_KIND_RUNTIME": runtime,
        **_kernels(simulated, start, end, op_correlation, place, string),
        **_events(simulated, call, starts, ends, correlation, end, place),
    }


def _kernels(
    simulated: SimulatedRank, start: I64, end: I64, correlation: I64, place: Columns, string: Any
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

    constants: Sequence[tuple[str, int | str]] = (
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
        found: I64 = np.concatenate([waits, host_waits])
        return found

    syncs = {
        **place,
        "deviceId": 0,
        "start": both(starts[every], starts[every_host]),
        "end": both(ends[every], ends[every_host]),
        "streamId": both(call[local, 5], nothing),
        "correlationId": both(correlation[every], correlation[every_host]),
        "syncType": both(
            np.full(len(every), int(SyncKind.STREAM_WAIT_EVENT)), np.full(len(host), int(SyncKind.DEVICE))
        ),
        "eventId": both(event, nothing),
        "eventSyncId": both(event, np.zeros(len(host), np.int64)),
    }
    return {"CUPTI_ACTIVITY_KIND_CUDA_EVENT": record_rows, "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": syncs}


__all__ = ["DEFAULT_STREAM", "local_times", "write_rank"]
