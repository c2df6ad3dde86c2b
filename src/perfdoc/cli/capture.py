"""`perfdoc capture`: its options. The work is in capture/, whose imports wait until it is needed."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated

import typer

from perfdoc.capture.asked import Asked
from perfdoc.cli.analyze import analyze
from perfdoc.cli.capture_options import CaptureOptions, with_options
from perfdoc.cli.messages import EXIT_BAD_INPUT, Debug, fail, in_one_line, say


@with_options
def capture(
    *,
    asked: Asked,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the command and stop.")] = False,
    report: Annotated[bool, typer.Option("--analyze/--no-analyze", help="Analyse it at the end.")] = True,
    debug: Debug = False,
) -> None:
    """Run your own training job under a profiler, and analyse what it left.

    The exit code is the job's; 2 where it went well and nothing was captured.
    """
    from perfdoc.capture.execution import run
    from perfdoc.capture.prepare import plan

    with in_one_line(debug, ValueError):
        planned = plan(asked)
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
