"""`perfdoc capture`: its options. The work is in capture/, whose imports wait until it is needed."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from perfdoc.cli.analyze import analyze
from perfdoc.cli.capture_options import CaptureOptions
from perfdoc.cli.messages import EXIT_BAD_INPUT, Debug, fail, in_one_line, say


def capture(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="-- COMMAND…",
            help="The job: torchrun … train.py …, or python train.py …, as you start it today.",
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder; made, never overwritten.")
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option(
            help="FIRST:END as in Python (10:14 is 10 to 13), for a script with perfdoc.profiling.step."
        ),
    ] = None,
    ranks: Annotated[str | None, typer.Option(help="Captured ranks, such as 0,8; all if not given.")] = None,
    delay: Annotated[
        float | None, typer.Option(min=0, help="Seconds before the capture begins, without marks.")
    ] = None,
    duration: Annotated[
        float | None, typer.Option(min=1, help="Seconds that are captured, without marks.")
    ] = None,
    own_range: Annotated[
        bool, typer.Option("--own-range", help="The job calls cudaProfilerStart and cudaProfilerStop itself.")
    ] = False,
    profiler: Annotated[
        Literal["auto", "nsys", "torch"],
        typer.Option(help="What captures; auto: nsys, and PyTorch's profiler where there is none."),
    ] = "auto",
    gpu_metrics: Annotated[
        bool, typer.Option("--gpu-metrics", help="Counters of the GPUs too; needs the right to read them.")
    ] = False,
    scheduler: Annotated[
        bool, typer.Option("--scheduler/--no-scheduler", help="The threads' states too, where allowed.")
    ] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the command and stop.")] = False,
    report: Annotated[bool, typer.Option("--analyze/--no-analyze", help="Analyse it at the end.")] = True,
    debug: Debug = False,
) -> None:
    """Run your own training job under a profiler, and analyse what it left.

    The exit code is the job's; 2 where it went well and nothing was captured.
    """
    from perfdoc.capture.execution import run
    from perfdoc.capture.prepare import Asked, CaptureRequestError, plan

    with in_one_line(debug, CaptureRequestError):
        planned = plan(
            Asked(
                words=words,
                output=output,
                profiler=profiler,
                steps=steps,
                ranks=ranks,
                delay_s=delay,
                duration_s=duration,
                own_range=own_range,
                gpu_metrics=gpu_metrics,
                scheduler=scheduler,
            )
        )
        for note in () if planned.left_out else planned.notes:
            say(note)
        if dry_run:
            sys.stdout.write(shlex.join(planned.command) + "\n")
            return
        ended = run(planned, say)
    folder = planned.run.path
    if ended.code:
        more = f"; what was captured: perfdoc analyze {folder}" if ended.traces else ""
        fail(f"the job ended with code {ended.code}{more}", ended.code)
    if not ended.traces:
        fail("the job went well, and nothing was captured", EXIT_BAD_INPUT)
    if planned.one_of_several:
        say(f"this was one rank of several; once all are done: perfdoc analyze {folder}")
    elif report:
        analyze([str(folder)], output=folder / "report", options=CaptureOptions(), debug=debug)
