"""`perfdoc lint`, as the parser sees it; the work is in lint_text."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from perfdoc.cli.messages import EXIT_FOUND, EXIT_INCONCLUSIVE, Debug, in_one_line, say
from perfdoc.knobs.knob import Dialect


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
        Dialect | None, typer.Option(help="Framework whose names the file uses; detected if not given.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="List unknown names too.")] = False,
    inconclusive: Annotated[
        Literal["exit-3", "pass"], typer.Option(help="What to do if nothing in a file is known.")
    ] = "exit-3",
    format_: Annotated[
        Literal["text", "json", "github"],
        typer.Option("--format", help="What to print; github: annotations."),
    ] = "text",
    debug: Debug = False,
) -> None:
    """Find misspelt, ineffective and contradictory settings in a configuration."""
    from perfdoc.cli.lint_text import RENDERINGS, lint_file

    with in_one_line(debug):
        done = [
            lint_file(config if config == "-" else Path(config), dialect=dialect, unknown=all_)
            for config in dict.fromkeys(configs)
        ]
    sys.stdout.write(RENDERINGS[format_](done))
    for one in done:
        say(one.summary)
    if any(one.report.bad for one in done):
        raise typer.Exit(EXIT_FOUND)
    if inconclusive == "exit-3" and any(one.inconclusive for one in done):
        raise typer.Exit(EXIT_INCONCLUSIVE)
