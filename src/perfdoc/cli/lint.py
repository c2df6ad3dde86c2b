"""`perfdoc lint`, as the parser sees it; the work is in lint_text and lint_ci."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from perfdoc.cli.messages import EXIT_FOUND, EXIT_INCONCLUSIVE, Debug, in_one_line, say


class DialectName(StrEnum):
    """Whose way of writing settings."""

    MEGATRON_BRIDGE = "megatron_bridge"
    MEGATRON_CORE = "megatron_core"
    MEGATRON_LM = "megatron_lm"
    NEMO = "nemo"
    VERL = "verl"
    TORCHTITAN = "torchtitan"
    DEEPSPEED = "deepspeed"
    ACCELERATE = "accelerate"
    ENV = "env"
    PERFDOC = "perfdoc"


class LintFormat(StrEnum):
    """What goes to standard output."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"
    SARIF = "sarif"


class Unknown(StrEnum):
    """What a file in which nothing is known means for the job."""

    EXIT_3 = "exit-3"
    PASS = "pass"


def lint(
    configs: Annotated[
        list[str],
        typer.Argument(
            metavar="CONFIG...",
            help="YAML, JSON, TOML, a script with flags or exported variables, key=value lines, Python, a "
            "run directory, Megatron-LM's list of arguments; - for standard input.",
        ),
    ],
    dialect: Annotated[
        DialectName | None, typer.Option(help="Framework whose names the file uses; detected if not given.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="List unknown names too.")] = False,
    inconclusive: Annotated[
        Unknown, typer.Option(help="What to do if nothing in a file is known.")
    ] = Unknown.EXIT_3,
    format_: Annotated[
        LintFormat,
        typer.Option("--format", help="What to print; github: annotations, sarif: SARIF 2.1.0."),
    ] = LintFormat.TEXT,
    debug: Debug = False,
) -> None:
    """Find misspelt, ineffective and contradictory settings in a configuration."""
    from perfdoc.cli.lint_text import RENDERINGS, LintError, lint_file

    with in_one_line(debug, LintError):
        done = [
            lint_file(
                config if config == "-" else Path(config),
                dialect=dialect.value if dialect is not None else None,
                unknown=all_,
            )
            for config in dict.fromkeys(configs)
        ]
    sys.stdout.write(RENDERINGS[format_](done))
    for one in done:
        say(one.summary)
    if any(one.report.bad for one in done):
        raise typer.Exit(EXIT_FOUND)
    if inconclusive is Unknown.EXIT_3 and any(one.inconclusive for one in done):
        raise typer.Exit(EXIT_INCONCLUSIVE)
