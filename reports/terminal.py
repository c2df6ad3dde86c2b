"""Text for a terminal: aligned tables and paragraphs inside a given width, lines with colour, the bar."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from perfdoc.patterns import pattern_of
from perfdoc.results.figures import apportion, plural
from perfdoc.results.names import columns

_LEAST_NAME = 24
_CHUNKS = pattern_of(r" *[^ `]{0,40}\d (?:%|[nµm]?s|[KMGT]i?B)(?!\w)[^ ]*| +(?:`[^`]{1,40}`)?[^ ]*|[^ ]+")
"""Words, each with the spaces before it; a short command is one, and so is a number with its unit."""


def grid(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    align: str,
    width: int,
    colour: bool = False,
    styles: Mapping[str, str] = MappingProxyType({}),
) -> list[str]:
    """Lines of a table, which rich draws; no first line where all of head is empty. align has a letter per
    column: l left, r right, n a name, left, whose cells wrap where the table is wider than width (down to 24
    characters). styles: of whole cells, by their text. Cells must already be printable."""
    if not rows:
        return []
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, show_header=any(head), pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    least = 2 * (len(head) - 1)
    for title, how, *cells in zip(head, align, *rows, strict=True):
        drawn.add_column(
            Text(title), justify="right" if how == "r" else "left", no_wrap=how != "n", overflow="fold"
        )
        widest = max(map(columns, (title, *cells)))
        least += min(widest, _LEAST_NAME) if how == "n" else widest
    for row in rows:
        drawn.add_row(*(Text(cell, style=styles.get(cell, "")) for cell in row))
    file = io.StringIO()
    Console(file=file, width=max(width, least), force_terminal=colour, highlight=False).print(drawn)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def paragraph(text: str, *, width: int, indent: str = "", hang: str = "") -> list[str]:
    """A sentence broken into lines of at most width terminal cells (at least 40) that start with indent, and
    from the second on also with hang. A word that no line holds is cut."""
    width = max(40, width)
    lines, line = [], indent
    rest = indent + hang
    for chunk in _CHUNKS.findall(text):
        if columns(line) + columns(chunk) <= width:
            line += chunk
            continue
        if line.strip():
            lines.append(line.rstrip())
            line = rest
        chunk = chunk.lstrip(" ")
        while columns(line) + columns(chunk) > width:
            head = _head(chunk, width - columns(line))
            lines.append(line + head)
            line, chunk = rest, chunk[len(head) :]
        line += chunk
    return [*lines, line.rstrip()] if line.strip() else lines


def _head(text: str, room: int) -> str:
    """As many characters from the front as fit; one at least."""
    used = 0
    for at, char in enumerate(text):
        used += columns(char)
        if used > room and at:
            return text[:at]
    return text


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
            self.say(f"{plural(count, what)}; the JSON has all of them.")

    def bar(self, parts: Sequence[tuple[str, str, int]], cells: int) -> str:
        """A stacked bar of (letters, family, nanoseconds). A part that is too small for its letters takes
        cells of the largest; one of less than half a cell has none."""
        sizes = apportion([ns for _, _, ns in parts], cells)
        for at, (letters, _, _) in enumerate(parts):
            largest = max(range(len(sizes)), key=lambda i: sizes[i])
            if 0 < sizes[at] < len(letters) < sizes[largest]:
                sizes[largest] -= len(letters) - sizes[at]
                sizes[at] = len(letters)
        drawn = ""
        for (letters, family, _), size in zip(parts, sizes, strict=True):
            drawn += self.paint((letters + "=" * size)[:size], family)
        return f"[{drawn}]" if any(sizes) else "[no time in the window]"
