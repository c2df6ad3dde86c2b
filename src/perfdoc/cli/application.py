"""The command line. Imports of anything heavy wait until a command needs them."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from perfdoc import __version__
from perfdoc.cli.analyze import analyze
from perfdoc.cli.diff import diff
from perfdoc.cli.doctor import doctor, env
from perfdoc.cli.export import export
from perfdoc.cli.gate import gate_app
from perfdoc.cli.knobs import knobs, lint
from perfdoc.cli.nsys import nsys_app
from perfdoc.cli.redact import redact
from perfdoc.cli.simulate import simulate
from perfdoc.cli.verify import verify

EXIT_FAIL_ON = 1
EXIT_BAD_INPUT = 2

app = typer.Typer(
    name="perfdoc",
    help="Says where the time of a training step goes, and which knob to turn.",
    epilog="Begin with: perfdoc analyze TRACE (Nsight Systems or PyTorch profiler), or perfdoc run.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
    rich_markup_mode=None,
)


class DataFormat(StrEnum):
    """What goes to standard output of a command that writes no report."""

    TEXT = "text"
    JSON = "json"


Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def say(message: str) -> None:
    """One line on stderr, whatever a path or a name in it holds."""
    from perfdoc.reports.names import PROSE_LIMIT, shorten

    typer.echo(f"perfdoc: {shorten(message, PROSE_LIMIT)}", err=True)


def fail(message: str) -> NoReturn:
    """One line on stderr and exit code 2."""
    say(message)
    raise typer.Exit(EXIT_BAD_INPUT)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"perfdoc {__version__}")
        raise typer.Exit


_LOAD_TORCH = frozenset({"doctor", "env", "run"})
"""Commands whose process, or one of whose processes, imports PyTorch. In a folder that is gone its libraries
end the process with a message about themselves."""


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    if context.invoked_subcommand in _LOAD_TORCH:
        try:
            Path.cwd()
        except OSError:
            fail("the current folder is gone: it was deleted or moved. Change to another (cd) and try again.")


app.command()(analyze)


@app.command(short_help="Write the captures of a small job whose answer is known, to try it on.")
def demo(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder for traces/, answer.json and job.yaml.")
    ] = Path("demo"),
    force: Annotated[bool, typer.Option(help="Overwrite files that are there.")] = False,
    debug: Debug = False,
) -> None:
    """Write the captures of a small simulated job whose answer is known, to try perfdoc on."""
    import sqlite3

    from perfdoc.cli.output import made
    from perfdoc.cli.simulation import said_of
    from perfdoc.simulator.forward.preset import write_demo

    try:
        with made(output):
            job = write_demo(output, force=force)
    except sqlite3.Error as error:  # a full disk, above all
        if debug:
            raise
        fail(f"{output}: cannot be written: {error}.")
    except OSError as error:
        if debug:
            raise
        if isinstance(error, FileExistsError) and error.errno is None:  # the simulator's own refusal
            fail(f"{output}: holds a demonstration already. Choose another -o, or overwrite with --force.")
        fail(f"{output}: cannot be written: {error.strerror or error}.")
    sys.stdout.write("\n".join([*said_of(job, output), ""]))


class SchemaOf(StrEnum):
    """What a schema is of."""

    DIAGNOSIS = "diagnosis"
    DIFF = "diff"


@app.command()
def schema(
    of: Annotated[SchemaOf, typer.Argument(help="diagnosis or diff.")] = SchemaOf.DIAGNOSIS,
    debug: Debug = False,
) -> None:
    """Print the JSON Schema of diagnosis.json or of diff.json."""
    import msgspec

    if of is SchemaOf.DIFF:
        from perfdoc.compare.diff.result import json_schema
    else:
        from perfdoc.results import json_schema

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(json_schema()), indent=2).decode() + "\n")


@app.command("ranges", short_help="List the names of the ranges in a capture, longest first.")
def list_ranges(
    path: Annotated[Path, typer.Argument(help="A capture; a folder or run directory shows its first.")],
    most: Annotated[int, typer.Option(min=1, help="Names to show.")] = 40,
    debug: Debug = False,
) -> None:
    """List the names of the ranges in a capture, the longest in total first."""
    from perfdoc.cli.ranges import print_ranges
    from perfdoc.traces import TraceError

    try:
        print_ranges(path, most)
    except TraceError as error:
        if debug:
            raise
        fail(str(error))


@app.command()
def rules(
    format_: Annotated[DataFormat, typer.Option("--format", help="What to print.")] = DataFormat.TEXT,
    debug: Debug = False,
) -> None:
    """List the rules."""
    from perfdoc.cli.rules import list_rules

    sys.stdout.write(list_rules(as_json=format_ is DataFormat.JSON))


@app.command(short_help="Say what a rule looks for, why, and how its advice fared.")
def explain(
    code: Annotated[str, typer.Argument(help="A rule's code, such as PD901.")],
    records: Annotated[
        Path | None, typer.Option(help="A folder of records of perfdoc verify, besides your own.")
    ] = None,
    format_: Annotated[DataFormat, typer.Option("--format", help="What to print.")] = DataFormat.TEXT,
    debug: Debug = False,
) -> None:
    """Say what a rule looks for, why, where it comes from, and how its advice fared when it was measured."""
    from perfdoc.cli.rules import explain_rule

    try:
        sys.stdout.write(explain_rule(code, as_json=format_ is DataFormat.JSON, records=records))
    except ValueError as error:
        if debug:
            raise
        fail(str(error))


@app.command(short_help="Train the reference model with profiling on, and analyse it.")
def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONFIG] [KEY=VALUE]… [-- TORCHRUN…]",
            help="A configuration (tiny if not given, gpt_125m, llama3_8b, mixtral_8x7b, or a .yaml file), "
            "overrides (see: perfdoc config show), torchrun's arguments.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Run directory; made, never overwritten.")
    ] = None,
    profiler: Annotated[str, typer.Option(help="auto, nsys, torch or none.")] = "auto",
    profile_start: Annotated[int, typer.Option(min=1, help="First profiled step.")] = 10,
    profile_steps: Annotated[int, typer.Option(min=1, help="Number of profiled steps.")] = 3,
    profile_ranks: Annotated[
        str | None, typer.Option(help="Profiled ranks, such as 0 or 0,8; all if not given.")
    ] = None,
    dry_run: Annotated[bool, typer.Option(help="Print the command and stop.")] = False,
    debug: Debug = False,
) -> None:
    """Train the reference model with profiling on, and analyse what it left."""
    from perfdoc.run.execution import execute
    from perfdoc.run.prepare import RunError, as_typed, prepare, split_words

    try:
        config, overrides, torchrun = split_words(words or [])
        planned = prepare(
            config=config,
            overrides=overrides,
            output=output,
            profiler=profiler,
            profile_start=profile_start,
            profile_steps=profile_steps,
            profile_ranks=profile_ranks,
            torchrun=torchrun,
            dry_run=dry_run,
        )
        say(planned.choice.reason)
        if dry_run:
            sys.stdout.write(as_typed(planned.command) + "\n")
            return
        say(as_typed(planned.command))
        ended = execute(planned, say, debug=debug)
    except RunError as error:
        if debug:
            raise
        fail(str(error))
    if ended.code:
        raise typer.Exit(ended.code)
    assert planned.run is not None
    if ended.analyse:
        analyze([str(planned.run.path)], output=planned.run.path / "report", debug=debug)


config_app = typer.Typer(help="The trainer's configurations.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(config_app, name="config", short_help="Show the settings of the trainer's configurations.")
app.add_typer(gate_app, name="gate", short_help="Fail a CI job when training gets slower.")
app.add_typer(nsys_app, name="nsys", short_help="Make perfdoc a recipe of Nsight Systems.")
for _command, _short in (
    (diff, "Explain what changed between two measurements of one job."),
    (export, "Write the timeline with ledger and causes, for ui.perfetto.dev."),
    (doctor, "Say what this machine can do and what is missing."),
    (env, "Print versions and hardware for a bug report."),
    (knobs, "List what can be set, or show one knob in every spelling."),
    (lint, "Find misspelt, ineffective and contradictory settings."),
    (redact, "Write a copy of a capture that may be shared."),
    (simulate, "Write captures of a simulated job whose answer is known."),
    (verify, "Follow a rule's advice and measure what it gains."),
):
    app.command(short_help=_short)(_command)


@config_app.command("show", short_help="Print every setting with its value and origin.")
def config_show(
    config: Annotated[str, typer.Argument(help="A configuration's name or .yaml file.")] = "tiny",
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value")] = None,
    resolved: Annotated[bool, typer.Option(help="Every setting with its origin (the default).")] = True,
) -> None:
    """Print every setting of a configuration with its value and where the value comes from."""
    from perfdoc.run.prepare import RunError, show_config

    try:
        sys.stdout.write(show_config(config, overrides or []))
    except RunError as error:
        fail(str(error))
