"""Checks that every reader applies to the activities it read."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from perfdoc.traces.errors import TraceError
from perfdoc.traces.model import Copies, GraphLaunches, Kernels

MAX_TIME_NS = 2**61
"""About 73 years: later times are corrupt, and sums of a few of them would overflow int64."""


def check_activity(path: Path, kernels: Kernels, copies: Copies, graphs: GraphLaunches) -> None:
    """Refuse device rows with impossible times: no figure of such a file could be trusted.

    Raises TraceError with the first such row.
    """
    for what, table in (("kernel", kernels), ("memory operation", copies), ("CUDA graph", graphs)):
        for problem, bad in (
            ("starts before time 0", table.start_ns < 0),
            ("ends before it starts", table.end_ns < table.start_ns),
            ("has a time beyond 2^61 ns", table.end_ns > MAX_TIME_NS),
        ):
            if bad.any():
                row = int(np.argmax(bad))
                raise TraceError(
                    path,
                    f"{what} row {row + 1} {problem} "
                    f"(start {int(table.start_ns[row])} ns, end {int(table.end_ns[row])} ns; "
                    f"{int(np.count_nonzero(bad)):,} such rows).",
                    "The file is damaged: export or capture it again.",
                )
