"""Published jobs of others, as they are and with less in their files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfdoc.analyzers.pipeline.operations import MESSAGE, RankOperations

JOBS = Path(__file__).resolve().parents[3] / "shared" / "traces" / "jobs"


def files_of(job: str) -> list[Path]:
    """One file a rank. Skips where the folder is missing."""
    found = sorted((JOBS / job).glob("*.gz"))
    if not found:
        pytest.skip(f"{JOBS / job} is missing")
    return found


def rewritten(files: Sequence[Path], folder: Path, change: Callable[[dict[str, Any]], None]) -> list[Path]:
    """Copies with each kernel's arguments changed."""
    made = []
    for file in files:
        content = json.loads(gzip.decompress(file.read_bytes()))
        for event in content["traceEvents"]:
            if event.get("cat") == "kernel":
                change(event["args"])
        made.append(folder / file.name)
        made[-1].write_bytes(gzip.compress(json.dumps(content).encode(), 1))
    return made


def written(ranks: Sequence[RankOperations], folder: Path, tp: int, dp: int) -> list[Path]:
    """Planted operations as PyTorch profiler files, one rank of each tensor-parallel group, with groups named
    as Megatron names them."""
    world = len(ranks) * tp
    made = []
    for rank in ranks:
        events: list[dict[str, Any]] = []
        # The longest of all ranks: each step begins on all of them behind the one before.
        periods_us = np.max([r.step_ns for r in ranks], axis=0) / 1e3 + 50
        own = (rank.rank or 0) * tp
        stage, replica = divmod(rank.rank or 0, dp)
        pipe = [(s * dp + replica) * tp for s in range(len(ranks) // dp)]
        replicas = [(stage * dp + r) * tp for r in range(dp)]
        for step in range(len(rank.step_names)):
            begin = 1e6 + float(periods_us[:step].sum())
            lasts_us = float(periods_us[step])
            marked = _event("user_annotation", f"ProfilerStep#{step}", begin - 20, lasts_us, tid=1)
            events.append(marked | {"pid": 1})
            for i, word in enumerate(rank.operation):
                start = begin + float(rank.start_ns[i, step]) / 1e3
                lasts = float(rank.duration_ns[i, step]) / 1e3
                if not word:
                    cut = float(rank.split_ns[i, step]) / 1e3
                    parts = [(start, lasts)] if cut < 0 else [(start, cut), (start + cut, lasts - cut)]
                    for (at, of), names in zip(parts, rank.sides[i], strict=False):
                        events.append(_event("kernel", f"gemm_bf16_{names[0]}", at, of))
                    continue
                group, of = replicas, "DATA_PARALLEL_GROUP_WITH_CP"
                if rank.kind[i] == MESSAGE:
                    group, of = pipe, "PIPELINE_MODEL_PARALLEL_GROUP"
                elif word == "all_reduce":
                    group, of = [pipe[0], pipe[-1]], "EMBEDDING_GROUP"
                arguments: dict[str, Any] = {
                    "Collective name": _WORDS.get(word, word),
                    "Process Group Name": f"{of} {group[0]}",
                    "Process Group Description": of,
                    "Process Group Ranks": str(group),
                    "Group size": len(group),
                    "dtype": "BFloat16",
                    "In msg nelems": 1 << 20,
                    "Out msg nelems": 1 << 20,
                }
                if word in ("send", "recv"):
                    arguments["Dst Rank" if word == "send" else "Src Rank"] = int(rank.peer[i]) * tp
                named = f"ncclDevKernel_{_KERNELS.get(word, 'SendRecv')}(ncclDevKernelArgsStorage<4096ul>)"
                events.append(
                    _event("kernel", named, start, lasts, stream=20 + int(rank.kind[i]), **arguments)
                )
        content = {
            "schemaVersion": 1,
            "distributedInfo": {"backend": "nccl", "rank": own, "world_size": world},
            "deviceProperties": [{"id": 0, "name": "NVIDIA H800", "totalGlobalMem": 85028110336}],
            "traceEvents": _with_launches(events),
        }
        made.append(folder / f"rank{own}.pt.trace.json.gz")
        made[-1].write_bytes(gzip.compress(json.dumps(content).encode(), 1))
    return made


_KERNELS = {
    "all_gather": "AllGather_RING_LL",
    "reduce_scatter": "ReduceScatter_Sum_f32_RING_LL",
    "all_reduce": "AllReduce_Sum_bf16_RING_LL",
}
_WORDS = {
    "all_gather": "_allgather_base",
    "reduce_scatter": "_reduce_scatter_base",
    "all_reduce": "allreduce",
}


def _event(
    kind: str, name: str, start: float, lasts: float, *, tid: int = 7, stream: int = 7, **more: Any
) -> dict[str, Any]:
    times = {"ts": start, "dur": lasts}
    arguments = {"stream": stream, "device": 0, **more} if kind == "kernel" else {}
    return {"ph": "X", "cat": kind, "name": name, "pid": 0, "tid": tid, **times, "args": arguments}


def _with_launches(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    made = []
    for number, event in enumerate(events):
        made.append(event)
        if event["cat"] == "kernel":
            event["args"]["correlation"] = number
            launch = _event("cuda_runtime", "cudaLaunchKernel", event["ts"] - 8, 5, tid=1)
            made.append(launch | {"pid": 1, "args": {"correlation": number}})
    return made
