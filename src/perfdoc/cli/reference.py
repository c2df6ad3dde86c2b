"""`perfdoc rules`, `explain`, `knobs` and `schema`: what perfdoc knows. The work is in reference_text."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from perfdoc.cli.completion import knob_names, rule_codes
from perfdoc.cli.messages import Debug, Format, in_one_line


def rules(
    format_: Format = "text",
    debug: Debug = False,
) -> None:
    """List the rules."""
    from perfdoc.cli.reference_text import list_rules

    sys.stdout.write(list_rules(as_json=format_ == "json"))


def explain(
    code: Annotated[str, typer.Argument(help="A rule's code, such as PD901.", autocompletion=rule_codes)],
    records: Annotated[
        Path | None, typer.Option(help="A folder of records of perfdoc verify, besides your own.")
    ] = None,
    format_: Format = "text",
    debug: Debug = False,
) -> None:
    """Say what a rule looks for, why, where it comes from, and how its advice fared when it was measured."""
    from perfdoc.cli.reference_text import explain_rule

    with in_one_line(debug):
        sys.stdout.write(explain_rule(code, as_json=format_ == "json", records=records))


def knobs(
    knob: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID]", help="A knob, by its id or by any framework's name.", autocompletion=knob_names
        ),
    ] = None,
    format_: Format = "text",
    debug: Debug = False,
) -> None:
    """List the knobs of the catalogue, or show one: spellings, range, defaults, what it excludes."""
    from perfdoc.cli.reference_text import list_knobs, show_knob

    as_json = format_ == "json"
    with in_one_line(debug):
        sys.stdout.write(list_knobs(as_json=as_json) if knob is None else show_knob(knob, as_json=as_json))


def schema(
    of: Annotated[
        Literal["diagnosis", "diff", "tune"], typer.Argument(help="diagnosis, diff or tune.")
    ] = "diagnosis",
    debug: Debug = False,
) -> None:
    """Print the JSON Schema of diagnosis.json, diff.json or tune.json."""
    import msgspec

    if of == "diff":
        from perfdoc.compare.diff.result import json_schema
    elif of == "tune":
        from perfdoc.tune.result import json_schema
    else:
        from perfdoc.results import json_schema

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(json_schema()), indent=2).decode() + "\n")
