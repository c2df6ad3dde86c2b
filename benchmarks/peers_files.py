"""The traces of benchmarks/peers.py: real ones, a simulated job and a large generated one.

    python benchmarks/peers_files.py --traces ../shared/traces --folder FOLDER --kernels 200000

Prints a JSON list of cases. What is there already is not made again. `perfdoc simulate` and generate.py
write Nsight SQLite; the same rows are also written as Kineto's JSON, a file for each process: kernels,
copies, calls, ranges, ProfilerStep#N for the steps, times in microseconds with three decimals.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sqlite3
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
NSYS = ("ddp_2gpu_rtx3090", "sp_2gpu_before", "host_bound_2gpu_h100")
KINETO = {
    "dlrm_8gpu_v100": "dlrm_8gpu_v100_rank{}.pt.trace.json.gz",
    "ddp_nccl_metadata_a100": "ddp_nccl_metadata_a100_rank0of2.json.gz",
    "dlrm_layernorm_a100": "dlrm_layernorm_a100_rank3of8.json.gz",
    "vllm_moe_tp8_b200": "vllm_moe_tp8_b200_rank0.json.gz",
}
JOB = ("llama3-8b", "--layout", "tp=2,pp=2,dp=2,seq=4096", "--steps", "3", "--fault", "late_rank=3")
_STEP = re.compile(r"(?:perfdoc\.)?step (\d+)$")
_COPIES = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}


def real(traces: Path) -> Iterator[dict[str, Any]]:
    for name in NSYS:
        yield {"name": name, "kind": "nsys", "files": [str(traces / "nsys" / f"{name}.sqlite")]}
    for name, pattern in KINETO.items():
        files = [traces / "kineto" / pattern.format(rank) for rank in range(8 if "{}" in pattern else 1)]
        yield {"name": name, "kind": "kineto", "files": [str(f) for f in files]}


def simulated(folder: Path) -> list[Path]:
    """`perfdoc simulate`: eight ranks, one of them slow, a file each."""
    job = folder / "simulated"
    if not job.exists():
        command = [sys.executable, "-m", "perfdoc", "simulate", *JOB, "-o", str(job)]
        subprocess.run(command, check=True, stdout=sys.stderr)
    return sorted((job / "traces").glob("*.sqlite"))


def generated(folder: Path, kernels: int) -> Path:
    command = [sys.executable, str(HERE / "generate.py"), f"--kernels={kernels}", f"--folder={folder}"]
    return Path(
        subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1]
    )


def as_kineto(path: Path, folder: Path, first_rank: int, ranks: int) -> list[Path]:
    """The rows of an Nsight SQLite as traces of PyTorch's profiler, one a process that ran kernels."""
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    names = dict(connection.execute("SELECT id, value FROM StringIds"))
    found = connection.execute("SELECT DISTINCT globalPid FROM CUPTI_ACTIVITY_KIND_KERNEL ORDER BY 1")
    pids = [row[0] for row in found]
    files = [folder / f"rank{first_rank + i}.json.gz" for i in range(len(pids))]
    if all(file.exists() for file in files):
        return files
    events: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for pid, event in _events(connection, names):
        events[pid].append(event)
    base = min(event["start"] for found_events in events.values() for event in found_events)
    folder.mkdir(parents=True, exist_ok=True)
    for number, (pid, file) in enumerate(zip(pids, files, strict=True)):
        head = {
            "schemaVersion": 1,
            "baseTimeNanoseconds": base,
            "distributedInfo": {"backend": "nccl", "rank": first_rank + number, "world_size": ranks},
        }
        rows = [_timed(event, base) for event in events[pid]]
        with gzip.open(file, "wt", compresslevel=6) as out:
            json.dump({**head, "traceEvents": rows}, out)
    return files


def _timed(event: dict[str, Any], base: int) -> dict[str, Any]:
    start, end = event.pop("start"), event.pop("end")
    return {"ph": "X", **event, "ts": (start - base) / 1000, "dur": (end - start) / 1000}


def _events(connection: sqlite3.Connection, names: dict[int, str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Events with their globalPid; NCCL's own ranges are left out."""
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
    places = "globalPid, start, end, deviceId, streamId, correlationId"
    for table, column in (("KERNEL", "demangledName"), ("MEMCPY", "copyKind"), ("MEMSET", "bytes")):
        if f"CUPTI_ACTIVITY_KIND_{table}" not in tables:
            continue
        for pid, start, end, device, stream, correlation, value in connection.execute(
            f"SELECT {places}, {column} FROM CUPTI_ACTIVITY_KIND_{table}"
        ):
            name = {"KERNEL": names.get(value), "MEMCPY": f"Memcpy {_COPIES.get(value, 'Unknown')}"}
            yield (
                pid,
                {
                    "cat": {"KERNEL": "kernel", "MEMCPY": "gpu_memcpy"}.get(table, "gpu_memset"),
                    "name": name.get(table, "Memset (Device)"),
                    **{"pid": device, "tid": stream, "start": start, "end": end},
                    "args": {"device": device, "stream": stream, "correlation": correlation},
                },
            )
    for tid, start, end, correlation, name in connection.execute(
        "SELECT globalTid, start, end, correlationId, nameId FROM CUPTI_ACTIVITY_KIND_RUNTIME"
    ):
        call = {"cat": "cuda_runtime", "name": names[name].partition("_v")[0], "start": start, "end": end}
        yield tid & ~0xFFFFFF, {**call, **_thread(tid), "args": {"correlation": correlation}}
    for tid, start, end, text, text_id in connection.execute(
        "SELECT globalTid, start, end, text, textId FROM NVTX_EVENTS WHERE eventType = 59 AND end IS NOT NULL"
    ):
        name = text or names.get(text_id, "")
        step = _STEP.match(name)
        if name and not name.startswith("nccl"):
            shown = f"ProfilerStep#{step[1]}" if step else name
            row = {"cat": "user_annotation", "name": shown, "start": start, "end": end}
            yield tid & ~0xFFFFFF, {**row, **_thread(tid), "args": {}}


def _thread(global_tid: int) -> dict[str, int]:
    return {"pid": global_tid >> 24 & 0xFFFFFF, "tid": global_tid & 0xFFFFFF}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--kernels", type=int, required=True)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    cases = list(real(given.traces))
    ranks = simulated(given.folder)
    large = generated(given.folder, given.kernels)
    kineto = [f for i, rank in enumerate(ranks) for f in as_kineto(rank, given.folder / "job", i, len(ranks))]
    parts = as_kineto(large, given.folder / f"large-{given.kernels}", 0, 8)
    for name, files, made in (
        ("simulated job, 8 ranks", ranks, kineto),
        (f"generated, {given.kernels:,} kernels, 8 devices", [large], parts),
    ):
        cases.append({"name": name, "kind": "nsys", "files": [str(f) for f in files]})
        cases.append({"name": name, "kind": "kineto", "files": [str(f) for f in made]})
    print(json.dumps(cases))


if __name__ == "__main__":
    main()
