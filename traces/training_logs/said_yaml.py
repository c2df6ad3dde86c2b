"""A configuration in YAML that a log holds between its other lines: Megatron-Bridge's and NeMo 1's.

A reader of YAML wants a whole document. Here other lines may stand between, and the end may be missing.
"""

from __future__ import annotations

import re

_BEGIN = re.compile(
    r"^(?P<before>.{0,200}?)(?:-{4,} Task Configuration -{4,}|\*{6,} Experiment configuration \*{6,})"
)
_ENTRY = re.compile(r"(?P<indent> {0,40})(?P<key>[A-Za-z_][A-Za-z0-9_]{0,80}):(?: (?P<value>.{0,200}))?$")
_LONGEST = 20_000
"""Lines of one configuration."""
_STRAYS = 20
"""Lines in a row that are no YAML, after which the configuration is over."""


class Dump:
    """Follows one configuration at a time, by indentation."""

    def __init__(self) -> None:
        self._before: str | None = None
        self._path: list[tuple[int, str]] = []
        self._lines = self._strays = 0

    def read(self, line: str) -> tuple[tuple[str, ...], str] | None:
        """Path and text of an entry with a value; None for all other lines."""
        if "onfiguration" in line and (begin := _BEGIN.match(line)) is not None:
            # NeMo's own logger stands before the first line alone, a launcher's mark before each.
            self._before = "" if "[NeMo" in begin["before"] else begin["before"]
            self._path, self._lines, self._strays = [], 0, 0
            return None
        if self._before is None:
            return None
        self._lines += 1
        if line[len(self._before) :].startswith("----") or self._lines > _LONGEST or self._strays > _STRAYS:
            self._before = None
            return None
        found = _ENTRY.match(line[len(self._before) :]) if line.startswith(self._before) else None
        if found is None:
            self._strays += 1 if line.strip() and not line.lstrip().startswith("- ") else 0
            return None
        self._strays = 0
        indent = len(found["indent"])
        while self._path and self._path[-1][0] >= indent:
            self._path.pop()
        self._path.append((indent, found["key"]))
        value = (found["value"] or "").strip()
        return (tuple(key for _, key in self._path), value) if value else None


def scalar(word: str) -> str:
    """A value without its quotes and without a remark behind it."""
    text = word.partition(" #")[0].strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text
