"""`perfdoc diff`: its options, and where its results go."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from perfdoc.cli.capture_options import Force, Jobs, ReadingOptions, Replay, with_options
from perfdoc.cli.messages import Debug, Full, in_one_line, require_free
from perfdoc.cli.progress import bar
from perfdoc.cli.streams import columns, write_json

if TYPE_CHECKING:
    from perfdoc.compare.diff.result import Diff

_FILES = ("diff.json", "diff.md")
"""What is written into the folder of -o."""
_SIDE = (
    "a capture, a folder of captures, a run directory, a diagnosis.json, or several captures in one quoted "
    "string or pattern; or both sides folders of record(), or logs of a trainer."
)


@with_options
def diff(
    before: Annotated[str, typer.Argument(help=f"Before: {_SIDE}")],
    after: Annotated[str, typer.Argument(help="After: of the same kinds.")],
    format_: Annotated[
        Literal["text", "markdown", "json"], typer.Option("--format", help="What to print.")
    ] = "text",
    full: Full = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder for diff.json and diff.md.")
    ] = None,
    config_before: Annotated[
        Path | None, typer.Option(help="The first job's settings, where no run directory holds them.")
    ] = None,
    config_after: Annotated[Path | None, typer.Option(help="The second job's settings.")] = None,
    *,
    options: ReadingOptions,
    jobs: Jobs = None,
    replay: Replay = True,
    force: Force = False,
    debug: Debug = False,
) -> None:
    """Explain what changed between two measurements of one job, and what of it is noise."""
    with in_one_line(debug):
        if output is not None:
            require_free(output, _FILES, force=force)
        from perfdoc.compare.diff.noise import of_logged_steps
        from perfdoc.compare.diff.screen import logged_screen
        from perfdoc.compare.diff.two_sides import compare
        from perfdoc.compare.side import load
        from perfdoc.profiling.errors import UserError

        if (logged := of_logged_steps(before, after)) is not None:
            if format_ != "text" or output is not None:
                raise UserError("--format, -o: of logs and records there are words alone; give captures.")
            sys.stdout.write(logged_screen(logged, after, width=columns()))
            return
        request = options.request(replay=replay, jobs=jobs)
        with bar("reading"):
            sides = load(before, request, config=config_before), load(after, request, config=config_after)
            found = compare(*sides)
        _print_and_write(found, format_, output, full=full)


def _print_and_write(found: Diff, format_: str, output: Path | None, *, full: bool) -> None:
    from perfdoc.compare.diff.screen import first_screen
    from perfdoc.compare.diff.sections import render_markdown, render_text
    from perfdoc.profiling.whole_file import write_all
    from perfdoc.results.type_schema import json_bytes

    serial = json_bytes(found)
    if output is not None:
        contents = (serial, render_markdown(found).encode())
        write_all({output / n: c for n, c in zip(_FILES, contents, strict=True)}, output)
    if format_ == "json":
        write_json(serial)
    elif format_ == "markdown":
        sys.stdout.write(render_markdown(found))
    else:
        sys.stdout.write((render_text if full else first_screen)(found, width=columns()))
    sys.stdout.flush()
