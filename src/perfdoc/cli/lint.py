"""`perfdoc lint`, as the parser sees it; the work is in lint_text."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from perfdoc.cli.messages import EXIT_FOUND, EXIT_INCONCLUSIVE, DataFormat, Debug, Format, fail, say


class DialectName(StrEnum):
    """Whose way of writing settings."""

    MEGATRON_BRIDGE = "megatron_bridge"
    MEGATRON_CORE = "megatron_core"
    MEGATRON_LM = "megatron_lm"
    NEMO = "nemo"
    VERL = "verl"
    ENV = "env"
    PERFDOC = "perfdoc"


def lint(
    config: Annotated[
        str,
        typer.Argument(
            help="YAML, JSON, a script with flags or exported variables, key=value lines, Python, a run "
            "directory; - for standard input."
        ),
    ],
    dialect: Annotated[
        DialectName | None, typer.Option(help="Framework whose names the file uses; detected if not given.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="List unknown names too.")] = False,
    format_: Format = DataFormat.TEXT,
    debug: Debug = False,
) -> None:
    """Find misspelt, ineffective and contradictory settings in a configuration."""
    from perfdoc.cli.lint_text import LintError, lint_file

    try:
        done = lint_file(
            config if config == "-" else Path(config),
            dialect=dialect.value if dialect is not None else None,
            unknown=all_,
            as_json=format_ is DataFormat.JSON,
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
