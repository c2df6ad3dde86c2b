"""Writes one process of a timeline as the JSON file that PyTorch's profiler (Kineto) makes.

What Kineto cannot hold is not written: ranges of named NVTX domains, marks, ranges that never closed,
NCCL payloads (Kineto has them on kernels: `collective=`), event records (waits name them).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfdoc.profiling.whole_file import whole_file
from tests.captures import events as ev
from tests.captures.events import CopyKind, RangeKind, SyncKind
from tests.captures.timeline import Timeline

_OLD_CATEGORIES = {
    "cpu_op": "Operator",
    "user_annotation": "Operator",
    "cuda_runtime": "Runtime",
    "cuda_driver": "Runtime",
    "kernel": "Kernel",
    "gpu_memcpy": "Memcpy",
    "gpu_memset": "Memset",
    "ac2g": "async",
}
_COPY_NAMES = {
    CopyKind.UNKNOWN: "Memcpy Unknown",
    CopyKind.HOST_TO_DEVICE: "Memcpy HtoD (Pinned -> Device)",
    CopyKind.DEVICE_TO_HOST: "Memcpy DtoH (Device -> Pinned)",
    CopyKind.DEVICE_TO_DEVICE: "Memcpy DtoD (Device -> Device)",
    CopyKind.HOST_TO_HOST: "Memcpy HtoH (Pinned -> Pinned)",
    CopyKind.PEER_TO_PEER: "Memcpy PtoP (Device -> Device)",
}
_SYNC_NAMES = {
    SyncKind.EVENT: "Event Sync",
    SyncKind.STREAM_WAIT_EVENT: "Stream Wait Event",
    SyncKind.STREAM: "Stream Sync",
    SyncKind.DEVICE: "Context Sync",
}


@dataclass(frozen=True, kw_only=True)
class _Clock:
    """Turns the timeline's ns into Kineto's µs: exact to the ns after a base, or whole µs since 1970."""

    origin_ns: int
    absolute_us: bool

    def span(self, start_ns: int, end_ns: int) -> dict[str, float]:
        if self.absolute_us:
            start, end = (self.origin_ns + start_ns) // 1000, (self.origin_ns + end_ns) // 1000
            return {"ts": start, "dur": end - start}
        return {"ts": start_ns / 1000, "dur": (end_ns - start_ns) / 1000}


def write_kineto(
    timeline: Timeline,
    path: Path,
    pid: int,
    *,
    old_categories: bool = False,
    absolute_us: bool = False,
    flows: bool = True,
    compress: bool | None = None,
    force: bool = False,
) -> Path:
    """Write the trace of process `pid` and return the path.

    old_categories: the names of 2021 (Kernel, Runtime, Operator, "stream 7") and no header.
    absolute_us: whole microseconds since 1970 and no baseTimeNanoseconds, as before 2024: a row's start
        and end are each rounded down.
    flows: the ac2g arrows from calls to work.
    compress: gzip; None goes by the name's ending.
    Errors: ValueError for an unknown pid or a graph launch (Kineto has no row for one);
    TraceError where it is there, unless `force`.
    """
    process = next((p for p in timeline.processes if p.pid == pid), None)
    if process is None:
        raise ValueError(f"write_kineto: no process {pid!r} on the timeline")
    if any(g.pid == pid for g in timeline.graph_launches):
        raise ValueError("write_kineto: Kineto has no row for a graph launch; lay its kernels instead")
    clock = _Clock(origin_ns=timeline.utc_origin_ns or 0, absolute_us=absolute_us)
    head = {"schemaVersion": 1} if old_categories else _head(timeline, process, absolute_us)
    rows = [*_host(timeline, pid, clock), *_device(timeline, pid, clock)]
    if flows:
        rows += _flows(rows)
    rows.append(
        {"name": "process_name", "ph": "M", "ts": 0, "pid": pid, "tid": 0, "args": {"name": process.name}}
    )
    if old_categories:
        for row in rows:
            if "cat" not in row:
                continue
            row["cat"] = _OLD_CATEGORIES.get(row["cat"], row["cat"])
            if row["cat"] in ("Kernel", "Memcpy", "Memset"):
                row["tid"] = f"stream {row['tid']}"
    data = json.dumps({**head, "traceEvents": rows}).encode()
    with whole_file(Path(path), replace=force) as part:
        packed = str(path).endswith(".gz") if compress is None else compress
        part.write_bytes(gzip.compress(data, 6, mtime=0) if packed else data)
    return Path(path)


def _head(timeline: Timeline, process: ev.ProcessInfo, absolute_us: bool) -> dict[str, Any]:
    head: dict[str, Any] = {
        "schemaVersion": 1,
        "deviceProperties": [
            {
                "id": d.ordinal,
                "name": d.gpu_name,
                "totalGlobalMem": d.memory_bytes,
                "computeMajor": d.compute_capability[0],
                "computeMinor": d.compute_capability[1],
                "numSms": d.sm_count,
            }
            for d in timeline.devices
            if d.pid == process.pid
        ],
        "displayTimeUnit": "ms",
    }
    if not absolute_us:
        head["baseTimeNanoseconds"] = timeline.utc_origin_ns or 0
    if process.rank is not None:
        groups = [g for g in timeline.groups if g.pid == process.pid]
        head["distributedInfo"] = {
            "backend": "nccl",
            "rank": process.rank,
            "world_size": sum(p.rank is not None for p in timeline.processes),
            "pg_count": len(groups),
            "pg_config": [
                {
                    "pg_name": g.name,
                    "pg_desc": g.description,
                    "backend_config": "cuda:nccl",
                    "pg_size": len(g.ranks),
                    "ranks": list(g.ranks),
                }
                for g in groups
            ],
        }
    return head


def _row(cat: str, name: str, pid: int, tid: int, span: dict[str, float], **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, **span, "args": args}


def _host(timeline: Timeline, pid: int, clock: _Clock) -> Iterator[dict[str, Any]]:
    for op in timeline.operators:
        if op.pid == pid:
            yield _row("cpu_op", op.name, pid, op.tid, clock.span(op.start_ns, op.end_ns))
    for r in timeline.ranges:
        if r.pid == pid and not r.domain and r.end_ns is not None and r.kind is not RangeKind.MARK:
            yield _row("user_annotation", r.name, pid, r.tid, clock.span(r.start_ns, r.end_ns))
    for a in timeline.api_calls:
        if a.pid == pid:
            cat = "cuda_runtime" if a.name.startswith("cuda") else "cuda_driver"
            yield _row(cat, a.name, pid, a.tid, clock.span(a.start_ns, a.end_ns), correlation=a.correlation)


def _device(timeline: Timeline, pid: int, clock: _Clock) -> Iterator[dict[str, Any]]:
    def place(r: ev.Kernel | ev.Copy | ev.MemorySet) -> dict[str, Any]:
        args = {"device": r.device, "context": 1, "stream": r.stream, "correlation": r.correlation}
        return args if r.graph_node is None else args | {"graph node id": r.graph_node}

    for k in timeline.kernels:
        if k.pid == pid:
            more = {"grid": list(k.grid), "block": list(k.block)} | _collective_args(k.collective)
            span = clock.span(k.start_ns, k.end_ns)
            yield _row("kernel", k.full_name, k.device, k.stream, span, **place(k), **more)
    for c in timeline.copies:
        if c.pid == pid:
            span = clock.span(c.start_ns, c.end_ns)
            name = _COPY_NAMES[c.kind]
            if c.pinned is False:
                name = name.replace("Pinned", "Pageable")
            yield _row("gpu_memcpy", name, c.device, c.stream, span, **place(c), bytes=c.bytes)
    for m in timeline.memory_sets:
        if m.pid == pid:
            span = clock.span(m.start_ns, m.end_ns)
            yield _row("gpu_memset", "Memset (Device)", m.device, m.stream, span, **place(m), bytes=m.bytes)
    for s in timeline.synchronizations:
        if s.pid == pid:
            stream = -1 if s.stream is None else s.stream
            args = {"cuda_sync_kind": _SYNC_NAMES[s.kind], "stream": stream, "device": s.device}
            if s.record is not None:
                args |= {
                    "wait_on_stream": s.record.stream,
                    "wait_on_cuda_event_record_corr_id": s.record.correlation,
                    "wait_on_cuda_event_id": s.record.event,
                }
            args |= {"correlation": s.correlation, "context": 1}
            span = clock.span(s.start_ns, s.end_ns)
            yield _row("cuda_sync", _SYNC_NAMES[s.kind], s.device, stream, span, **args)


def _collective_args(collective: ev.Collective | None) -> dict[str, Any]:
    if collective is None:
        return {}
    c = collective
    args: dict[str, Any] = {
        "Collective name": c.operation,
        "dtype": c.dtype,
        "In msg nelems": c.in_elements,
        "Out msg nelems": c.out_elements,
        "Group size": len(c.ranks) or None,
        "Process Group Name": c.group_name or None,
        "Process Group Description": c.group_description or None,
        # Kineto writes lists as text.
        "Process Group Ranks": str(list(c.ranks)) if c.ranks else None,
        "Src Rank": c.source_rank,
        "Dst Rank": c.destination_rank,
        "Seq": c.sequence,
    }
    return {name: value for name, value in args.items() if value is not None}


def _flows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """An arrow from every call to every piece of work with its correlation."""
    calls = {r["args"]["correlation"]: r for r in rows if r["cat"] in ("cuda_runtime", "cuda_driver")}
    arrows = []
    for row in rows:
        call = calls.get(row["args"].get("correlation"))
        if call is None or row["cat"] not in ("kernel", "gpu_memcpy", "gpu_memset"):
            continue
        flow = {"id": row["args"]["correlation"], "cat": "ac2g", "name": "ac2g"}
        arrows.append({"ph": "s", **flow, **{key: call[key] for key in ("pid", "tid", "ts")}})
        arrows.append({"ph": "f", **flow, **{key: row[key] for key in ("pid", "tid", "ts")}, "bp": "e"})
    return arrows
