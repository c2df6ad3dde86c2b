"""What wrapping adds to one collective, in microseconds: `python tests/profiling/collective_cost.py`.

One gloo rank alone, and the time of the calling thread only, because the latency of the backend's threads
varies by more than the wrapping costs. States take turns; the smallest of each is kept.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time

import torch
import torch.distributed as dist

from perfdoc.profiling import ranges
from perfdoc.profiling.distributed import collectives

COUNT = 3000


def issue_us(one: torch.Tensor) -> float:
    begin = time.thread_time_ns()
    for _ in [None] * COUNT:
        dist.all_reduce(one)
    return (time.thread_time_ns() - begin) / COUNT / 1e3


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=0, world_size=1)
        best: dict[str, float] = {}
        one = torch.ones(1)
        for _ in range(7):
            for state in ("not installed", "off", "nvtx"):
                if state != "not installed":
                    collectives.install()
                if state == "nvtx":
                    ranges.enable(record_function=False)
                best[state] = min(best.get(state, 1e9), issue_us(one))
                ranges.disable()
                collectives.uninstall()
                collectives.drain()
        dist.destroy_process_group()
    added = {state: round(best[state] - best["not installed"], 2) for state in ("off", "nvtx")}
    sys.stdout.write(json.dumps({"all_reduce_us": round(best["not installed"], 2), "added_us": added}) + "\n")


if __name__ == "__main__":
    main()
