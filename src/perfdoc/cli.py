"""The command line. Imports of anything heavy wait until a command needs them."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from perfdoc import __version__

EXIT_FAIL_ON = 1
EXIT_BAD_INPUT = 2

app = typer.Typer(
    name="perfdoc",
    help="Says where the time of a training step goes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
    rich_markup_mode=None,
)


class Format(StrEnum):
    """What goes to standard output."""

    TEXT = "text"
    MARKDOWN = "markdown"
    JSON = "json"


def fail(message: str) -> NoReturn:
    """One line on stderr and exit code 2."""
    typer.echo(f"perfdoc: {message}", err=True)
    raise typer.Exit(EXIT_BAD_INPUT)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"perfdoc {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass


@app.command()
def analyze(
    paths: Annotated[
        list[str],
        typer.Argument(
            help="Nsight Systems exports (.sqlite, .nsys-rep, a parquetdir folder) or PyTorch profiler "
            "traces (.json, .json.gz): files, folders or glob patterns, one file or one per rank."
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Folder for report.html, report.md and diagnosis.json."),
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", help="Write the diagnosis here as well; - for standard output.")
    ] = None,
    format_: Annotated[Format, typer.Option("--format", help="What to print.")] = Format.TEXT,
    window: Annotated[
        str | None,
        typer.Option(
            help="Analyse only this stretch: START,END on the capture's clock (ns, or with a unit: "
            "4.2s,4300ms); range:REGEX, from the first to the last matching range of each rank; or capture, "
            "all of it."
        ),
    ] = None,
    step_range: Annotated[
        str | None, typer.Option(help="Names of the ranges that are training steps (regular expression).")
    ] = None,
    fail_on: Annotated[
        str | None, typer.Option(help="Exit with 1 where these rules fire: codes with commas, or any.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Files read at once; default: one per core.")
    ] = None,
    force: Annotated[bool, typer.Option(help="Overwrite files that are there.")] = False,
    debug: Annotated[bool, typer.Option(help="Show the traceback of an error.")] = False,
) -> None:
    """Say where the time of a capture went, and write a report."""
    from perfdoc.analyze_command import Options, UserError, run

    try:
        options = Options.parse(
            paths=paths,
            output=output,
            json_file=json_file,
            window=window,
            step_range=step_range,
            fail_on=fail_on,
            jobs=jobs,
            force=force,
        )
        fired = run(options, format_.value)
    except UserError as error:
        if debug:
            raise
        fail(str(error))
    if fired:
        typer.echo(f"perfdoc: --fail-on: {', '.join(fired)} fired", err=True)
        raise typer.Exit(EXIT_FAIL_ON)


@app.command()
def demo(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder for demo.sqlite and answer.json.")
    ] = Path("demo"),
    force: Annotated[bool, typer.Option(help="Overwrite files that are there.")] = False,
) -> None:
    """Write a small synthetic capture whose answer is known, to try perfdoc on."""
    from perfdoc.simulator.demo import write_demo

    try:
        trace, answer = write_demo(output, force=force)
    except OSError as error:
        fail(f"{output}: cannot be written: {error.strerror or error}.")
    typer.echo(f"perfdoc: wrote {trace} and its known answer {answer}", err=True)


@app.command()
def schema() -> None:
    """Print the JSON Schema of diagnosis.json."""
    import msgspec

    from perfdoc.diagnosis import json_schema

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(json_schema()), indent=2).decode() + "\n")


@app.command("ranges")
def list_ranges(
    path: Annotated[Path, typer.Argument(help="A capture.")],
    most: Annotated[int, typer.Option(min=1, help="Names to show.")] = 40,
) -> None:
    """List the names of the ranges in a capture, the longest in total first."""
    from perfdoc.ranges_command import print_ranges
    from perfdoc.traces import TraceError

    try:
        print_ranges(path, most)
    except TraceError as error:
        fail(str(error))


@app.command()
def rules(
    format_: Annotated[Format, typer.Option("--format", help="text or json.")] = Format.TEXT,
) -> None:
    """List the rules."""
    from perfdoc.rules_command import list_rules

    sys.stdout.write(list_rules(as_json=format_ is Format.JSON))


@app.command()
def explain(
    code: Annotated[str, typer.Argument(help="A rule's code, such as PD901.")],
    format_: Annotated[Format, typer.Option("--format", help="text or json.")] = Format.TEXT,
) -> None:
    """Say what a rule looks for, why, and where it comes from."""
    from perfdoc.rules_command import explain_rule

    try:
        sys.stdout.write(explain_rule(code, as_json=format_ is Format.JSON))
    except ValueError as error:
        fail(str(error))
