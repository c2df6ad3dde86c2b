"""`perfdoc rules`, `explain`, `knobs` and `schema`: what perfdoc knows. The work is in reference_text."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from perfdoc.cli.completion import knob_names, rule_codes
from perfdoc.cli.messages import DataFormat, Debug, Format, in_one_line


def rules(
    format_: Format = DataFormat.TEXT,
    debug: Debug = False,
) -> None:
    """List the rules."""
    from perfdoc.cli.reference_text import list_rules

    sys.stdout.write(list_rules(as_json=format_ is DataFormat.JSON))


def explain(
    code: Annotated[str, typer.Argument(help="A rule's code, such as PD901.", autocompletion=rule_codes)],
    records: Annotated[
        Path | None, typer.Option(help="A folder of records of perfdoc verify, besides your own.")
    ] = None,
    format_: Format = DataFormat.TEXT,
    debug: Debug = False,
) -> None:
    """Say what a rule looks for, why, where it comes from, and how its advice fared when it was measured."""
    from perfdoc.cli.reference_text import explain_rule

    with in_one_line(debug, ValueError):
        sys.stdout.write(explain_rule(code, as_json=format_ is DataFormat.JSON, records=records))


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
    from perfdoc.cli.reference_text import list_knobs, show_knob

    as_json = format_ is DataFormat.JSON
    with in_one_line(debug, ValueError):
        sys.stdout.write(list_knobs(as_json=as_json) if knob is None else show_knob(knob, as_json=as_json))


class SchemaOf(StrEnum):
    """What a schema is of."""

    DIAGNOSIS = "diagnosis"
    DIFF = "diff"
    TUNE = "tune"


def schema(
    of: Annotated[SchemaOf, typer.Argument(help="diagnosis, diff or tune.")] = SchemaOf.DIAGNOSIS,
    debug: Debug = False,
) -> None:
    """Print the JSON Schema of diagnosis.json, diff.json or tune.json."""
    import msgspec

    if of is SchemaOf.DIFF:
        from perfdoc.compare.diff.result import json_schema
    elif of is SchemaOf.TUNE:
        from perfdoc.tune.result import json_schema
    else:
        from perfdoc.results import json_schema

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(json_schema()), indent=2).decode() + "\n")
