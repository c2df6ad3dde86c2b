"""`perfdoc summarize`: its options, and what it says."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from perfdoc.cli.capture_options import CaptureOptions, with_options
from perfdoc.cli.messages import Debug, in_one_line, say
from perfdoc.profiling.malloc import without_threads


@with_options
def summarize(
    paths: Annotated[
        list[str], typer.Argument(help="Captures, where they are: files, folders or glob patterns.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Folder for the summaries; default: beside each trace."),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            min=1, help="Captures that will be analysed together; default: as many as the job has ranks."
        ),
    ] = None,
    *,
    options: CaptureOptions,
    debug: Debug = False,
) -> None:
    """Measure captures where they are, and write small files (.perfdoc) that analyze takes in their place."""
    without_threads()
    from perfdoc.profiling.whole_file import made
    from perfdoc.results.figures import plural
    from perfdoc.summaries.writing import summarize as write
    from perfdoc.traces import TraceError
    from perfdoc.traces.load import content_size
    from perfdoc.traces.summary_file import is_summary

    with in_one_line(debug), made(output) if output is not None else nullcontext():
        request = options.request(paths, leave_out=True)
        traces = [c for c in request.captures if not is_summary(c)]
        if not traces:
            raise ValueError(f"{paths[0]}: is a summary already, or holds no trace. Give traces.")
        memory, failed = False, 0
        for trace in traces:
            try:
                written = write(trace, request, ranks=ranks, folder=output)
            except TraceError as error:
                if len(traces) == 1:
                    raise
                say(str(error))
                failed += 1
                continue
            memory = memory or written.memory
            size = f"{written.bytes:,} bytes of {content_size(trace):,}"
            what = plural(written.ranks, "rank") if written.ranks else "no GPU activity"
            say(f"wrote {written.path}: {size}, {what}")
        if failed:
            raise ValueError(f"{failed:,} of {plural(len(traces), 'capture')} not summarized.")
    if memory or request.memory:
        say("memory snapshots are in no summary: analyze reads them from the run directory, or by path.")
