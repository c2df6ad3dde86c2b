"""Frameworks that are not checked, told by their own names; and what they hand on to one that is.

catalogue/others.yaml says by which names a file shows each. A framework that wraps a known one, as Primus
wraps Megatron-LM, has its settings read under that one's names; of the others it is said whose a file is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cache

from perfdoc.knobs.knob import Dialect
from perfdoc.knobs.load import table
from perfdoc.knobs.reading.entry import Entry
from perfdoc.knobs.values import Opaque
from perfdoc.records import dataclass

_FLAGS = "flags"
"""As where names go: to Megatron-LM's flags."""


@dataclass(frozen=True, kw_only=True)
class Other:
    """A framework, or a kind of file, that has names of its own."""

    title: str
    names: frozenset[str] = frozenset()
    """Paths or their ends; `enough` of them show it."""
    enough: int = 2
    programs: re.Pattern[str] | None = None
    """In the text; one is enough."""
    unless: re.Pattern[str] | None = None
    """In the text of those that only build on it."""
    when: Mapping[str, str] = field(default_factory=dict)
    """Settings that a file must have for what it hands on: path to its value in small letters."""
    dialect: Dialect | None = None
    """Whose settings it hands on; None where none."""
    names_to: Mapping[str, str] = field(default_factory=dict)
    """A pattern of its names to the names of that dialect, the first that fits: `flags` makes an argument of
    what the pattern's group holds, nothing leaves it out. Names without a pattern are the framework's own."""


@cache
def others() -> tuple[Other, ...]:
    """All of the file, in its order: the first that a file shows is it."""
    return tuple(
        Other(
            **{
                **row,
                "names": frozenset(row.get("names", ())),
                **{k: re.compile(row[k], re.MULTILINE) for k in ("programs", "unless") if k in row},
            }
        )
        for row in table("others")
    )


def other_of(entries: Sequence[Entry], text: str) -> Other | None:
    """The framework of the file that has names shared with none of the dialects; None where it shows none."""
    names = {part for e in entries for part in _ends(e.name.removeprefix("--").removeprefix("+"))}
    values = {e.name: str(e.raw).lower() for e in entries}
    for other in others():
        shown = len(names & other.names) >= other.enough if other.names else False
        if not shown and (other.programs is None or not other.programs.search(text)):
            continue
        if other.unless is not None and other.unless.search(text):
            continue
        if all(re.fullmatch(value, values.get(name, "")) for name, value in other.when.items()):
            return other
    return None


def _ends(name: str) -> Iterator[str]:
    """A path, and what is left of it without its first parts."""
    parts = name.split(".")
    for first in range(min(len(parts), 6)):
        yield ".".join(parts[first:])


def handed_on(entries: Sequence[Entry], other: Other) -> Iterator[Entry]:
    """The settings of the framework that is wrapped, under its own names."""
    rules = [(re.compile(pattern), to) for pattern, to in other.names_to.items()]
    for entry in entries:
        if entry.form == "env":
            yield entry
            continue
        plain = entry.name.removeprefix("--") if entry.form == "flag" else entry.name
        for pattern, to in rules:
            match = pattern.fullmatch(plain)
            if match is not None:
                yield from _renamed(entry, match, to)
                break


def _renamed(entry: Entry, match: re.Match[str], to: str) -> Iterator[Entry]:
    if not to:
        return
    if to != _FLAGS:
        raw = "true" if entry.raw is True else entry.raw
        yield replace(entry, form="path", name=match.expand(to), raw=raw)
    elif entry.raw is not None and not isinstance(entry.raw, Opaque):
        yield replace(entry, form="argument", name=match[1], raw="true" if entry.raw is True else entry.raw)
