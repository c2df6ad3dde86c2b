"""`perfdoc knobs`, as the parser sees it; the work is in knobs_text."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from perfdoc.cli.completion import knob_names
from perfdoc.cli.messages import DataFormat, Debug, Format, in_one_line


def knobs(
    knob: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID]", help="A knob, by its id or by any framework's name.", autocompletion=knob_names
        ),
    ] = None,
    format_: Format = DataFormat.TEXT,
    debug: Debug = False,
) -> None:
    """List the knobs of the catalogue, or show one: spellings, range, defaults, what it excludes."""
    from perfdoc.cli.knobs_text import list_knobs, show_knob

    as_json = format_ is DataFormat.JSON
    with in_one_line(debug, ValueError):
        sys.stdout.write(list_knobs(as_json=as_json) if knob is None else show_knob(knob, as_json=as_json))
