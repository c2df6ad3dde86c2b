"""`perfdoc ranges`: which ranges a capture holds, to choose --step-range by."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from perfdoc.cli.messages import Debug, fail


def list_ranges(
    path: Annotated[Path, typer.Argument(help="A capture; a folder or run directory shows its first.")],
    most: Annotated[int, typer.Option(min=1, help="Names to show.")] = 40,
    debug: Debug = False,
) -> None:
    """List the names of the ranges in a capture, the longest in total first."""
    from perfdoc.traces import TraceError

    try:
        _print_ranges(path, most)
    except TraceError as error:
        if debug:
            raise
        fail(str(error))


def _print_ranges(path: Path, most: int) -> None:
    """Names with count and total host time; of several captures, those of the first. Raises TraceError."""
    import numpy as np

    from perfdoc.analyzers.kernels.totals import sum_by
    from perfdoc.results.figures import duration
    from perfdoc.results.names import shorten
    from perfdoc.traces.load import find_captures, read_trace

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
