"""Overhead of one range in microseconds: `python -m perfdoc.profiling.range_cost`.

Run it under `nsys profile` too for the cost with a tool attached. Every state is timed in turn, several
times over, and the smallest is kept, because whatever else the machine does only adds.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from perfdoc.profiling import ranges


def cost_us(count: int, repeats: int = 7) -> float:
    """Microseconds that one `with range(name)` takes in the present state, loop overhead taken off."""
    name = "perfdoc.forward layer=1 module=mlp"

    def with_range() -> None:
        for _ in [None] * count:
            with ranges.range(name):
                pass

    def empty() -> None:
        for _ in [None] * count:
            pass

    return (_fastest_ns(with_range, repeats) - _fastest_ns(empty, repeats)) / count / 1e3


def measure(count: int = 20_000) -> dict[str, float | None]:
    """Cost by state: off, nvtx, torch_profiler, nvtx_and_torch_profiler. None where it cannot be had."""
    ranges.disable()
    costs: dict[str, float | None] = {"off": cost_us(count)}
    has_nvtx = bool(ranges.enable(record_function=False))
    costs["nvtx"] = cost_us(count) if has_nvtx else None
    has_torch = bool(ranges.enable(nvtx=False))
    # Fewer under a profiler: it keeps every event in memory.
    costs["torch_profiler"] = _under_profiler(count // 20) if has_torch else None
    ranges.enable()
    costs["nvtx_and_torch_profiler"] = _under_profiler(count // 20) if has_torch and has_nvtx else None
    ranges.disable()
    return costs


def _under_profiler(count: int) -> float:
    profiler: Any = importlib.import_module("torch.profiler")
    with profiler.profile(activities=[profiler.ProfilerActivity.CPU]):
        return cost_us(count)


def _fastest_ns(work: Callable[[], None], repeats: int) -> int:
    best = sys.maxsize
    for _ in [None] * repeats:
        begin = time.perf_counter_ns()
        work()
        best = min(best, time.perf_counter_ns() - begin)
    return best


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure the overhead of one range in microseconds.")
    parser.add_argument("--count", type=int, default=20_000)
    sys.stdout.write(json.dumps(measure(parser.parse_args().count), indent=1) + "\n")
