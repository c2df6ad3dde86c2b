"""Lines for a terminal in the making, and the bar: for the first screen and the full text."""

from __future__ import annotations

from collections.abc import Sequence

from perfdoc.reports.grid import grid, paragraph
from perfdoc.results import figures

_COLOURS = {
    "head": "1",
    "compute": "34",
    "exposed_comm": "31",
    "exposed_memcpy": "33",
    "idle": "2",
    "warn": "33;1",
}


class Lines:
    """The only place that writes an escape sequence."""

    def __init__(self, width: int, colour: bool) -> None:
        self.lines: list[str] = []
        self.width = width
        self._colour = colour

    def paint(self, text: str, style: str) -> str:
        """In a colour of the terminal, where that is asked for."""
        return f"\x1b[{_COLOURS[style]}m{text}\x1b[0m" if self._colour and text else text

    def section(self, title: str) -> None:
        """An empty line and a title."""
        self.lines += ["", self.paint(title, "head")]

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]], align: str) -> None:
        """As `grid` has it, indented."""
        lines = grid(head, rows, align=align, width=self.width - 2)
        self.lines += ["  " + line for line in lines]

    def say(self, text: str, indent: str = "  ") -> None:
        """A sentence, broken into lines."""
        hang = "  " if text[:2] in ("- ", "! ") else ""
        self.lines += paragraph(text, width=self.width, indent=indent, hang=hang)

    def more(self, count: int, what: str) -> None:
        """How much is not shown, if anything."""
        if count > 0:
            self.say(f"{figures.plural(count, what)}; the JSON has all of them.")

    def bar(self, parts: Sequence[tuple[str, str, int]], cells: int) -> str:
        """A stacked bar of (letter, family, nanoseconds); a part that is too small for a cell has none."""
        sizes = figures.apportion([ns for _, _, ns in parts], cells)
        drawn = ""
        for (letters, family, _), size in zip(parts, sizes, strict=True):
            letter = letters if size >= len(letters) else letters[:1]
            drawn += self.paint((letter + "=" * size)[:size], family)
        return f"[{drawn}]" if any(sizes) else "[no time in the window]"
