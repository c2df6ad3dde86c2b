"""`perfdoc ranges`: which ranges a capture holds, to choose --step-range by."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from perfdoc.analyzers.kernels.totals import sum_by
from perfdoc.reports.names import shorten
from perfdoc.reports.units import duration
from perfdoc.traces.load import find_captures, read_trace


def print_ranges(path: Path, most: int) -> None:
    """Names with count and total host time; of several captures, those of the first. Raises TraceError."""
    captures = find_captures([str(path)])
    if len(captures) > 1:
        first = f"{shorten(captures[0].name, 200)}, the first of {len(captures):,} captures"
        sys.stderr.write(f"perfdoc: these are the ranges of {first}\n")
    trace = read_trace(captures[0])
    name = trace.ranges.name.astype(np.int64)
    count = np.bincount(name, minlength=len(trace.strings))
    total = sum_by(name, trace.ranges.end_ns - trace.ranges.start_ns, len(trace.strings))
    used = np.flatnonzero(count)
    if not len(used):
        sys.stderr.write(
            f"perfdoc: {shorten(captures[0].name, 200)} holds no ranges: open some (torch.cuda.nvtx, "
            "torch.profiler.record_function, profiler.step()), and trace them (nsys: --trace=cuda,nvtx).\n"
        )
    order = used[np.argsort(-total[used], kind="stable")][:most]
    sys.stdout.write(f"{'count':>9}  {'total':>12}  name\n")
    for i in order.tolist():
        sys.stdout.write(
            f"{int(count[i]):>9,}  {duration(int(total[i])):>12}  {shorten(trace.strings[i], 100)}\n"
        )
    if len(used) > most:
        sys.stdout.write(f"… and {len(used) - most:,} more names (--most)\n")
