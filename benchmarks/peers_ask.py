"""Asks one tool the questions of benchmarks/peers.py, as its documentation says to, and writes its answers.

    PYTHON peers_ask.py nsys-ai|hta|hta_all|perfdoc OUT.json FILE...

Runs under the Python that has the tool, so nothing but the standard library and that tool is imported. Times
are converted to nanoseconds; what a tool rounds stays rounded. For perfdoc the first FILE is the
diagnosis.json that the command wrote, the others are what it read.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

TOP = 5
MS, US = 1e6, 1e3


def nsys_ai(paths: list[str]) -> dict[str, Any]:
    """Skills `overlap_breakdown`, `gpu_idle_gaps` and `top_kernels`, by the registry's run_skill.

    One process for all. A command for each skill and device (`nsys-ai skill run NAME FILE -p device=N`) gives
    the same rows and starts Python each time.
    """
    profile = importlib.import_module("nsys_ai.profile")
    run_skill = importlib.import_module("nsys_ai.skills.registry").run_skill
    devices: dict[str, dict[str, Any]] = {}
    gaps: dict[str, float] = {}
    totals: dict[str, float] = defaultdict(float)
    for number, path in enumerate(paths):
        with profile.open(path) as opened:
            connection = opened.query_conn()
            for device in opened.meta.devices:
                [found] = run_skill("overlap_breakdown", connection, raw=True, device=device)
                parts = [found[f"{name}_ms"] for name in ("compute_only", "nccl_only", "overlap")]
                devices[f"{number}/{device}"] = {
                    "busy_ns": sum(parts) * MS,
                    "exposed_ns": found["nccl_only_ms"] * MS,
                    "idle_ns": found["idle_ms"] * MS,
                    "hidden_frac": found["overlap_pct"] / 100 if found["nccl_kernels"] else None,
                }
                summary = run_skill("gpu_idle_gaps", connection, raw=True, device=device)[-1]
                gaps[f"{number}/{device}"] = summary["total_idle_ms"] * MS
            for row in run_skill("top_kernels", connection, raw=True, limit=1000):
                totals[row["kernel_name"]] += row["total_ms"] * MS
    return {"devices": devices, "stream_idle_ns": gaps, "top": longest(totals)}


def hta(paths: list[str], *, last_step: bool) -> dict[str, Any]:
    """get_temporal_breakdown, get_comm_comp_overlap, get_gpu_kernel_breakdown, get_idle_time_breakdown."""
    analysis = importlib.import_module("hta.trace_analysis").TraceAnalysis
    asked = analysis(trace_files=dict(enumerate(paths)), include_last_profiler_step=last_step)
    parts = asked.get_temporal_breakdown(visualize=False).set_index("rank")
    overlap = asked.get_comm_comp_overlap(visualize=False).set_index("rank")["comp_comm_overlap_pctg"]
    kinds, kernels = asked.get_gpu_kernel_breakdown(
        visualize=False, num_kernels=10_000, include_memory_kernels=False
    )
    idle, _ = asked.get_idle_time_breakdown(ranks=list(range(len(paths))), visualize=False)
    alone = kinds[kinds["kernel_type"] == "COMMUNICATION"]["sum"]
    hidden = overlap.where(overlap.notna(), None).to_dict()
    return {
        "devices": {
            str(rank): {
                "busy_ns": float(row["compute_time(us)"] + row["non_compute_time(us)"]) * US,
                "idle_ns": float(row["idle_time(us)"]) * US,
                "hidden_frac": None if hidden[rank] is None else float(hidden[rank]) / 100,
            }
            for rank, row in parts.iterrows()
        },
        "exposed_ns": float(alone.sum()) * US,
        "stream_idle_ns": {
            str(rank): float(ns) * US for rank, ns in idle.groupby("rank")["idle_time"].sum().items()
        },
        "top": longest({n: float(us) * US for n, us in kernels.groupby("name")["sum (us)"].sum().items()}),
    }


def perfdoc(paths: list[str]) -> dict[str, Any]:
    """From the fields of diagnosis.json that count kernels of the whole capture."""
    diagnosis = json.loads(Path(paths[0]).read_text())
    place = {Path(path).name: number for number, path in enumerate(paths[1:])}
    numbers = [place[Path(given["path"]).name] for given in diagnosis["inputs"]]
    devices: dict[str, dict[str, Any]] = {}
    for rank in diagnosis["ranks"]:
        found, number = rank["kernels_only_capture"], numbers[rank["input"]]
        is_nsys = diagnosis["inputs"][rank["input"]]["format"].startswith("nsys")
        key = f"{number}/{rank['device']}" if is_nsys else str(number)
        devices[key] = {
            "busy_ns": found["busy_ns"],
            "exposed_ns": found["exposed_ns"],
            "idle_ns": found["idle_ns"],
            "hidden_frac": found["hidden_ns"] / found["comm_ns"] if found["comm_ns"] else None,
        }
    top = diagnosis["analyses"]["kernels"]["top"]
    return {"devices": devices, "top": longest({k["name"]: k["total_ns"] for k in top})}


def longest(totals: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(totals.items(), key=lambda item: -item[1])[:TOP]


def main() -> None:
    tool, out, *paths = sys.argv[1:]
    if tool == "nsys-ai":
        answers = nsys_ai(paths)
    elif tool == "perfdoc":
        answers = perfdoc(paths)
    else:
        answers = hta(paths, last_step=tool == "hta_all")
    Path(out).write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
