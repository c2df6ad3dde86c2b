"""`perfdoc rules` and `perfdoc explain`, as the parser sees them; the work is in rules_text."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from perfdoc.cli.completion import rule_codes
from perfdoc.cli.messages import DataFormat, Debug, Format, in_one_line


def rules(
    format_: Format = DataFormat.TEXT,
    debug: Debug = False,
) -> None:
    """List the rules."""
    from perfdoc.cli.rules_text import list_rules

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
    from perfdoc.cli.rules_text import explain_rule

    with in_one_line(debug, ValueError):
        sys.stdout.write(explain_rule(code, as_json=format_ is DataFormat.JSON, records=records))
