"""`perfdoc ranges`: which ranges a capture holds, to choose --step-range by."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from perfdoc.cli.messages import Debug, in_one_line


def list_ranges(
    path: Annotated[Path, typer.Argument(help="A capture; a folder or run directory shows its first.")],
    most: Annotated[int, typer.Option(min=1, help="Names to show.")] = 40,
    each: Annotated[bool, typer.Option("--each", help="Numbered names one by one.")] = False,
    debug: Debug = False,
) -> None:
    """List the names of the ranges in a capture, the longest in total first (numbers as #)."""
    from perfdoc.traces import TraceError

    with in_one_line(debug, TraceError):
        _print_ranges(path, most, each)


def _print_ranges(path: Path, most: int, each: bool) -> None:
    """Names with count and total host time; of several captures, those of the first. Raises TraceError."""
    from perfdoc.analyzers.device.proposed_ranges import range_groups
    from perfdoc.results.figures import duration
    from perfdoc.results.names import shorten
    from perfdoc.traces.load import find_captures, read_trace

    captures = find_captures([str(path)])
    if len(captures) > 1:
        first = f"{shorten(captures[0].name, 200)}, the first of {len(captures):,} captures"
        sys.stderr.write(f"perfdoc: these are the ranges of {first}\n")
    trace = read_trace(captures[0])
    for note in trace.notes:
        if note.code == "broken-off":
            sys.stderr.write(f"perfdoc: {shorten(captures[0].name, 200)}: {note.message}\n")
    found = range_groups(trace, each=each)
    if not found:
        sys.stderr.write(
            f"perfdoc: {shorten(captures[0].name, 200)} holds no ranges: open some (torch.cuda.nvtx, "
            "torch.profiler.record_function, profiler.step()), and trace them (nsys: --trace=cuda,nvtx).\n"
        )
    sys.stdout.write(f"{'count':>9}  {'total':>12}  name\n")
    for group in found[:most]:
        sys.stdout.write(f"{group.count:>9,}  {duration(group.total_ns):>12}  {shorten(group.name, 100)}\n")
    if len(found) > most:
        sys.stdout.write(f"… and {len(found) - most:,} more names (--most)\n")
    sys.stdout.flush()
