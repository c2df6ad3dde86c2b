"""The run.json of `perfdoc run`: the whole configuration, each setting with its value and origin."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from perfdoc.rules.knobs.reading.entry import Entry

_CONFIG, _VALUE = "config.", ".value"


def is_manifest(entries: Sequence[Entry]) -> bool:
    """Whether these are the entries of a run.json."""
    names = {e.name for e in entries if e.form == "path"}
    return {"perfdoc_version", "schema_version"} <= names


def of_manifest(entries: Sequence[Entry]) -> Iterator[Entry]:
    """The settings among them, under their canonical ids, and the variables."""
    for entry in entries:
        if entry.form == "env":
            yield entry
        elif entry.name.startswith(_CONFIG) and entry.name.endswith(_VALUE):
            yield replace(entry, name=entry.name.removeprefix(_CONFIG).removesuffix(_VALUE))
