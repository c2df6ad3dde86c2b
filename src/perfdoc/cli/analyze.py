"""`perfdoc analyze`: its options. Light, since every start imports it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from perfdoc.cli.capture_options import CaptureOptions, Force, Jobs, with_options
from perfdoc.cli.completion import rule_codes
from perfdoc.cli.headings import RARE
from perfdoc.cli.messages import EXIT_FOUND, Debug, in_one_line, say
from perfdoc.cli.progress import bar
from perfdoc.profiling.malloc import without_threads

if TYPE_CHECKING:
    from perfdoc.cli.analysis import Amount


Format = Literal["text", "markdown", "json", "junit", "github", "llm"]
"""What goes to standard output: the forms of a report, and llm, bounded text for a language model."""


@with_options
def analyze(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="TRACE...",
            help="Nsight Systems exports (.sqlite, .nsys-rep, a parquetdir folder) or PyTorch profiler "
            "traces (.json, .json.gz), or summaries of them (.perfdoc): files, folders or glob patterns, one "
            "file or one per rank.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Folder for report.html, report.md and diagnosis.json."),
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", help="Write the diagnosis here as well; - for standard output.")
    ] = None,
    format_: Annotated[Format, typer.Option("--format", help="What to print.")] = "text",
    full: Annotated[
        bool, typer.Option("--full", help="Print all of the report, not only its first screen.")
    ] = False,
    brief: Annotated[bool, typer.Option("--brief", help="Print one line.")] = False,
    fail_on: Annotated[
        str | None,
        typer.Option(
            help="Exit with 1 if these rules fire: codes with commas, or any.", autocompletion=rule_codes
        ),
    ] = None,
    *,
    options: CaptureOptions,
    jobs: Jobs = None,
    dask: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Measure with the workers of this Dask scheduler: tcp://HOST:8786.",
            rich_help_panel=RARE,
        ),
    ] = None,
    force: Force = False,
    debug: Debug = False,
) -> None:
    """Say where the time of a capture went, and write a report."""
    without_threads()
    with bar("starting") as end_bar:
        from perfdoc.cli.analysis import Output, check_output, rule_codes_of, run
        from perfdoc.profiling.errors import UserError

        with in_one_line(debug, UserError):
            place = None
            if dask is not None:
                from perfdoc.diagnose.cluster import dask_place

                place = dask_place(dask, jobs)
            request = options.request(paths, leave_out=True, jobs=jobs)
            to = Output(
                folder=output,
                json_file=json_file,
                format_=format_,
                amount=_amount(format_, full=full, brief=brief),
                fail_on=rule_codes_of(fail_on),
                force=force,
            )
            check_output(to, request)
            fired = run(request, to, end_bar, place=place)
    if fired:
        say(f"--fail-on: {', '.join(fired)} fired")
        raise typer.Exit(EXIT_FOUND)


def _amount(format_: Format, *, full: bool, brief: bool) -> Amount:
    """Raises UserError."""
    from perfdoc.profiling.errors import UserError

    if full and brief:
        raise UserError("--full and --brief: choose one.")
    if (full or brief) and format_ != "text":
        raise UserError(f"--{'full' if full else 'brief'}: is for --format text.")
    return "full" if full else "brief" if brief else "screen"
