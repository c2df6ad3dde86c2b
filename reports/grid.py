"""A table for the terminal: aligned columns inside a given width, no characters that control."""

from __future__ import annotations

import re
from collections.abc import Sequence

from perfdoc.results.names import columns, shorten

_GAP = "  "
_LEAST_NAME = 48
_CHUNKS = re.compile(r" +[^ ]*|[^ ]+")
"""Words, each with the spaces before it."""


def _padded(text: str, width: int, right: bool) -> str:
    space = " " * max(0, width - columns(text))
    return space + text if right else text + space


def grid(head: Sequence[str], rows: Sequence[Sequence[str]], *, align: str, width: int) -> list[str]:
    """Lines of a table. align has a letter per column: l left, r right, n a name, left, which gives way
    where the table is wider than width (down to 48 characters). Cells must already be printable."""
    if not rows:
        return []
    cells = [list(head), *(list(row) for row in rows)]
    flexible = align.find("n")
    if flexible >= 0:
        others = sum(max(columns(row[i]) for row in cells) for i in range(len(head)) if i != flexible)
        room = max(_LEAST_NAME, width - others - len(_GAP) * (len(head) - 1))
        for row in cells:
            row[flexible] = shorten(row[flexible], room)
    widths = [max(columns(row[i]) for row in cells) for i in range(len(head))]
    return [
        _GAP.join(
            _padded(cell, size, how == "r") for cell, size, how in zip(row, widths, align, strict=True)
        ).rstrip()
        for row in cells
    ]


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


def clipped(text: str, room: int) -> str:
    """A text in at most so many terminal cells; what is cut off is marked at its end."""
    return text if columns(text) <= room else _head(text, room - 1).rstrip() + "…"


def _head(text: str, room: int) -> str:
    """As many characters from the front as fit; one at least."""
    used = 0
    for at, char in enumerate(text):
        used += columns(char)
        if used > room and at:
            return text[:at]
    return text
