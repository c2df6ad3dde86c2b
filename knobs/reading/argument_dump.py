"""The arguments that Megatron-LM prints as it starts, in a log or a file of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator

from perfdoc.knobs.reading.entry import Entry

_LINE = re.compile(r"(?:^|[\s:])([a-z]\w*) (\.+) (\S.*)$")
"""Of a line without the space at its end: nothing is tried at two lengths, so that it takes linear time."""
_TITLE = re.compile(r"-{3,} arguments -{3,}")
_LEADERS = 2
"""Dots by which such a line is told from a sentence; after a long name there are fewer."""
_ENOUGH = 3
"""Lines that make a dump without its title."""


def is_dump(text: str) -> bool:
    """Whether a text holds a list of arguments."""
    found = _TITLE.search(text) is not None
    lines = 0
    for line in text.split("\n"):
        match = _LINE.search(line.rstrip())
        lines += match is not None and len(match[2]) > _LEADERS
        if lines >= (1 if found else _ENOUGH):
            return True
    return False


def dump_entries(text: str) -> Iterator[Entry]:
    """Every argument, under the name that the program has for it. A second dump, of a job that was started
    again, replaces the first."""
    found: dict[str, Entry] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        match = _LINE.search(line.rstrip())
        if match is not None:
            name, value = match[1], match[3]
            raw = None if value == "None" else value
            found[name] = Entry(form="argument", name=name, raw=raw, line=number)
    yield from found.values()
