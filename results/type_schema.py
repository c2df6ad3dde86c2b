"""What perfdoc writes as JSON, and its schemas, the same on every Python."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec


def schema_of(type_: type) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a type."""
    schema = msgspec.json.schema(type_)
    for defined in schema["$defs"].values():
        if "description" in defined:  # Python from 3.13 on takes the indentation off docstrings
            defined["description"] = inspect.cleandoc(defined["description"])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def json_bytes(written: object) -> bytes:
    """For people too: indented, keys in declared order, with a newline at the end."""
    return msgspec.json.format(msgspec.json.encode(written), indent=2) + b"\n"
