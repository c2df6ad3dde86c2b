"""Which version of its framework a file is for, by names that came or went: catalogue/versions.yaml."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import field
from functools import cache

from perfdoc.knobs.load import table
from perfdoc.records import dataclass


@dataclass(frozen=True, kw_only=True)
class Versions:
    """Of one framework, oldest first."""

    versions: tuple[str, ...]
    assumed: str
    since: Mapping[str, str] = field(default_factory=dict)
    until: Mapping[str, str] = field(default_factory=dict)

    def place(self, version: str) -> int:
        """Its place among those that were looked at; -1 for one before them."""
        return self.versions.index(version) if version in self.versions else -1


@cache
def versions() -> Mapping[str, Versions]:
    """Dialect → what is known of its versions."""
    rows = table("versions").items()
    return {dialect: Versions(**{**row, "versions": tuple(row["versions"])}) for dialect, row in rows}


_PIN = re.compile(
    r"(?mi)^[^#\n]*?((?:megatron[-_]core(?:\[[^]\n]{0,80}\])? ?[=~]= ?v?|\bcore_[rv])(0\.\d+(?:\.\d+)?))"
)
"""An installation of megatron-core, or a tag or branch of Megatron-LM."""


def core_pinned(text: str) -> tuple[str, str]:
    """(megatron-core's version that a text installs or checks out, its words); empty where it has several."""
    found = {version: words for words, version in _PIN.findall(text)}
    return next(iter(found.items())) if len(found) == 1 else ("", "")


def version_shown(dialect: str, paths: Collection[str]) -> tuple[str, str]:
    """(the version, the name that shows it, empty where it is assumed): the newest that a name needs, else
    the last that reads a name which is gone. Empty for a dialect of which no versions are known."""
    known = versions().get(dialect)
    if known is None:
        return "", ""
    needed = [(known.place(known.since[path]), path) for path in sorted(paths) if path in known.since]
    if needed:
        path = max(needed)[1]
        return known.since[path], path
    gone = [(known.place(known.until[path]), path) for path in sorted(paths) if path in known.until]
    path = min(gone)[1] if gone else ""
    old = bool(path) and known.place(known.until[path]) < known.place(known.assumed)
    return (known.until[path], path) if old else (known.assumed, "")


def of_other_versions(dialect: str, paths: Collection[str]) -> Iterator[tuple[str, str, str]]:
    """(a name, the last version that reads it, the version that another name of the file needs): the two are
    not of one version."""
    known, (shown, by) = versions().get(dialect), version_shown(dialect, paths)
    if known is None or by not in known.since:
        return
    for path in sorted(paths):
        if path in known.until and known.place(known.until[path]) < known.place(shown):
            yield path, known.until[path], f"{shown}, as {by} shows"
