from __future__ import annotations

import random
from pathlib import Path

import numpy as np

from tests.analyzers.tiny import trace_of
from tests.captures.timeline import TimelineBuilder


def test_calls_of_threads_are_the_rows_on_them_in_the_order_of_the_file(tmp_path: Path) -> None:
    builder = TimelineBuilder()
    process = builder.process()
    device = process.device()
    device.kernel("k", 0, 10, stream=7)
    threads = [process.thread() for _ in range(3)]
    chance = random.Random(3)
    for i in range(60):
        chance.choice(threads).api("cudaLaunchKernel", 100 * i, 100 * i + 50)
    trace = trace_of(builder, tmp_path)
    of_row = trace.api_calls.thread
    count = len(trace.threads)
    assert count >= 3
    for chosen in ([0], [2, 1], [1, 1, -1], [0, 1, 2], [-1], []):
        wanted = [row for row in range(len(of_row)) if int(of_row[row]) in set(chosen) - {-1}]
        assert trace.calls_of(np.array(chosen, np.int64)).tolist() == wanted
