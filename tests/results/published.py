"""What was published of each schema, so that no test needs a list by hand.

`python -m tests.results.published`, a part of `make docs`, adds a version that it does not know yet, and the
types that came with it. What was published stays as it is.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec

from perfdoc import results
from perfdoc.compare.diff import result as diff
from perfdoc.tune import result as tune

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    "diagnosis": ROOT / "results" / "diagnosis.schema.json",
    "diff": ROOT / "src" / "perfdoc" / "compare" / "diff" / "diff.schema.json",
    "tune": ROOT / "src" / "perfdoc" / "tune" / "tune.schema.json",
}
MADE = {"diagnosis": results.json_schema, "diff": diff.json_schema, "tune": tune.json_schema}
VERSIONS = {"diagnosis": results.SCHEMA_VERSION, "diff": diff.SCHEMA_VERSION, "tune": tune.SCHEMA_VERSION}
_FILE = Path(__file__).with_name("published.json")


class Published(msgspec.Struct):
    """The contents of published.json."""

    digests: dict[str, str]
    """`diagnosis 1.3` → the digest of that version, without its words."""
    required: dict[str, str]
    """Type of a diagnosis → its fields without a default when it was published first."""


def shape(found: Any, defined: dict[str, Any]) -> Any:
    """A schema without its words: docstrings and names of classes may change."""
    if isinstance(found, list):
        return [shape(value, defined) for value in found]
    if not isinstance(found, dict):
        return found
    if isinstance(name := found.get("$ref"), str):
        return shape(defined[name.removeprefix("#/$defs/")], defined)
    words = {key for key in ("title", "description") if isinstance(found.get(key), str)}
    return {key: shape(value, defined) for key, value in found.items() if key not in words}


def digest(schema: dict[str, Any]) -> str:
    made = json.dumps(shape({"$ref": schema["$ref"]}, schema["$defs"]), sort_keys=True)
    return hashlib.sha256(made.encode()).hexdigest()[:16]


def required() -> dict[str, str]:
    """Type of a diagnosis → its fields without a default, now."""
    defined = json.loads(FILES["diagnosis"].read_bytes())["$defs"]
    return {name: " ".join(sorted(each.get("required", ()))) for name, each in defined.items()}


def published() -> Published:
    """As the file says."""
    return msgspec.json.decode(_FILE.read_bytes(), type=Published)


def record() -> None:
    """Add the versions that are new. Types are added with a version of the diagnosis alone: until then they
    may change."""
    known = published()
    for name, version in VERSIONS.items():
        if f"{name} {version}" not in known.digests:
            known.digests[f"{name} {version}"] = digest(json.loads(FILES[name].read_bytes()))
            if name == "diagnosis":
                known.required = required() | known.required
    text = json.dumps(msgspec.to_builtins(known), indent=1, sort_keys=True)
    _FILE.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    record()
