"""`perfdoc rules`, `explain`, `knobs` and `schema`: what perfdoc knows. The work is in rules_text and
knobs_text."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from perfdoc.cli.completion import knob_names, rule_codes
from perfdoc.cli.messages import Debug, Format, in_one_line
from perfdoc.cli.streams import json_text


def rules(format_: Format = "text", debug: Debug = False) -> None:
    """List the rules."""
    from importlib.metadata import entry_points

    listed = rule_codes("")
    if format_ == "text" and all(title for _, title in listed) and not entry_points(group="perfdoc.rules"):
        # Without the analyses that the rules import.
        sys.stdout.write("".join(f"{code}  {title}\n" for code, title in listed))
        return
    from perfdoc.cli.rules_text import list_rules

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
    from perfdoc.cli.rules_text import explain_rule

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
    from perfdoc.cli.knobs_text import list_knobs, show_knob

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
    if of == "diff":
        from perfdoc.compare.diff.result import json_schema
    elif of == "tune":
        from perfdoc.tune.result import json_schema
    else:
        from perfdoc.results import json_schema

    sys.stdout.write(json_text(json_schema()))
