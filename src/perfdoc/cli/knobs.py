"""`perfdoc knobs` and `perfdoc lint`, as the parser sees them; the work is in knobs_text and lint_text."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

EXIT_FOUND = 1
EXIT_INCONCLUSIVE = 3


class DialectName(StrEnum):
    """Whose way of writing settings."""

    MEGATRON_BRIDGE = "megatron_bridge"
    MEGATRON_CORE = "megatron_core"
    MEGATRON_LM = "megatron_lm"
    NEMO = "nemo"
    VERL = "verl"
    ENV = "env"
    PERFDOC = "perfdoc"


class KnobFormat(StrEnum):
    """What goes to standard output."""

    TEXT = "text"
    JSON = "json"


_Format = Annotated[KnobFormat, typer.Option("--format", help="What to print.")]
_Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def knobs(
    knob: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="A knob, by its id or by any framework's name.")
    ] = None,
    format_: _Format = KnobFormat.TEXT,
    debug: _Debug = False,
) -> None:
    """List the knobs of the catalogue, or show one: spellings, range, defaults, what it excludes."""
    from perfdoc.cli.application import fail
    from perfdoc.cli.knobs_text import list_knobs, show_knob

    as_json = format_ is KnobFormat.JSON
    try:
        sys.stdout.write(list_knobs(as_json=as_json) if knob is None else show_knob(knob, as_json=as_json))
    except ValueError as error:
        if debug:
            raise
        fail(str(error))


def lint(
    config: Annotated[
        str,
        typer.Argument(
            help="YAML, JSON, a script with flags or exported variables, key=value lines, Python, a run "
            "directory; - for standard input."
        ),
    ],
    dialect: Annotated[
        DialectName | None, typer.Option(help="Whose names the file uses; detected if not given.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="List names that are no knob's, too.")] = False,
    format_: _Format = KnobFormat.TEXT,
    debug: _Debug = False,
) -> None:
    """Find misspelt, ineffective and contradictory settings in a configuration."""
    from perfdoc.cli.application import fail, say
    from perfdoc.cli.lint_text import LintError, lint_file

    try:
        done = lint_file(
            config if config == "-" else Path(config),
            dialect=dialect.value if dialect is not None else None,
            unknown=all_,
            as_json=format_ is KnobFormat.JSON,
        )
    except LintError as error:
        if debug:
            raise
        fail(str(error))
    sys.stdout.write(done.output)
    say(done.summary)
    if done.bad:
        raise typer.Exit(EXIT_FOUND)
    if done.inconclusive:
        raise typer.Exit(EXIT_INCONCLUSIVE)
