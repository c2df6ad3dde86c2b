"""CPU captures of a job's ranks as captures of GPUs: each operation one row of a device, without ranges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_COMMUNICATION = {"all_reduce": "AllReduce_Sum_f32"} | dict.fromkeys(
    ("send", "recv", "coalesced"), "SendRecv"
)
_FIRST_US = 1000.0


def as_devices(folder: Path, pp: int, dp: int) -> list[Path]:
    """Captures of all ranks, from `cpu<rank>.json`; PyTorch's own marks of steps stay."""
    rows, steps = [], []
    for rank in range(pp * dp):
        events = json.loads((folder / f"cpu{rank}.json").read_text())["traceEvents"]
        spans = [e for e in events if e.get("ph") == "X" and "dur" in e]
        steps.append([e for e in spans if e["name"].startswith("ProfilerStep#")])
        rows.append(_outermost([e for e in spans if _is_work(e)]))
    origin = min(e["ts"] for of in rows for e in of) - _FIRST_US
    files = []
    for rank, (of, marks) in enumerate(zip(rows, steps, strict=True)):
        made: list[dict[str, Any]] = []
        for mark in marks:
            kept = {"name": mark["name"], "ts": mark["ts"] - origin, "dur": mark["dur"]}
            made.append({"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1} | kept)
        for number, event in enumerate(of, start=1):
            made += _launched(event, number, origin, rank, pp, dp)
        content = {
            "schemaVersion": 1,
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": pp * dp},
            "deviceProperties": [{"id": 0, "name": "NVIDIA H100", "totalGlobalMem": 85028110336}],
            "traceEvents": made,
        }
        files.append(folder / f"rank{rank}.pt.trace.json")
        files[-1].write_text(json.dumps(content))
    return files


def _is_work(event: dict[str, Any]) -> bool:
    words = ("aten::", *_COMMUNICATION, "Optimizer", "autograd::", "Layer")
    return event["cat"] in ("cpu_op", "user_annotation") and event["name"].startswith(words)


def _outermost(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found, free_at = [], 0.0
    for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
        if event["ts"] >= free_at:
            free_at = event["ts"] + event["dur"]
            found.append(event)
    return found


def _launched(
    event: dict[str, Any], number: int, origin: float, rank: int, pp: int, dp: int
) -> list[dict[str, Any]]:
    """A row of the device, and the call that started it."""
    start = event["ts"] - origin
    arguments: dict[str, Any] = {"correlation": number, "device": 0, "stream": 7}
    word, *rest = event["name"].split(" ")
    name = f"gemm_{event['name']}"
    if word in _COMMUNICATION:
        name = f"ncclDevKernel_{_COMMUNICATION[word]}_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        stage, replica = rank % pp, rank // pp
        ranks = [s + pp * replica for s in range(pp)]
        if word == "all_reduce":
            ranks = [stage + pp * r for r in range(dp)]
        arguments |= {
            "stream": 22 if word == "all_reduce" else 20,
            "Collective name": word.replace("all_reduce", "allreduce"),
        }
        arguments |= {"Process Group Name": str(1 + stage if word == "all_reduce" else 10 + replica)}
        arguments |= {"Process Group Ranks": str(ranks), "Group size": len(ranks)}
        arguments |= {"dtype": "Float", "In msg nelems": int(rest[1]), "Out msg nelems": int(rest[1])}
        if word in ("send", "recv"):
            arguments["Dst Rank" if word == "send" else "Src Rank"] = int(rest[0])
    call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "dur": 0.25}
    row = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": arguments["stream"], "ts": start}
    return [
        call | {"ts": start - 0.5, "args": {"correlation": number}},
        row | {"dur": event["dur"], "args": arguments},
    ]
