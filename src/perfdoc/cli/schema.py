"""`perfdoc schema`: the contracts of diagnosis.json, diff.json and tune.json."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from perfdoc.cli.messages import Debug


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
