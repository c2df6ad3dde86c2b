"""A table for the terminal: aligned columns inside a given width, no characters that control."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

from perfdoc.results.names import columns, shorten

_GAP = "  "
_LEAST_NAME = 48


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
    """A sentence broken into lines that start with indent, and from the second on also with hang."""
    return wrap(
        text,
        width=max(40, width),
        initial_indent=indent,
        subsequent_indent=indent + hang,
        break_on_hyphens=False,
        drop_whitespace=True,
    )
