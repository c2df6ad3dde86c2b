"""Tables of a command, which rich draws: cells wrap inside a terminal and have its colours; a pipe gets whole
lines."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from perfdoc.cli.streams import columns

_OF_A_PIPE = 1_000
"""Columns: no line of a file is broken."""
_PLAIN: Mapping[str, str] = MappingProxyType({})


def table(
    rows: Sequence[Sequence[str]],
    *,
    head: Sequence[str] = (),
    right: Sequence[int] = (),
    styles: Mapping[str, str] = _PLAIN,
) -> str:
    """Lines of a table. right: columns that are aligned there. styles: of whole cells, by their text."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    terminal = sys.stdout.isatty()
    drawn = Table(box=None, show_header=bool(head), pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for i in range(len(rows[0])):
        drawn.add_column(
            Text(head[i]) if head else "", justify="right" if i in right else "left", overflow="fold"
        )
    for row in rows:
        drawn.add_row(*(Text(cell, style=styles.get(cell, "")) for cell in row))
    file = io.StringIO()
    width = columns() if terminal else _OF_A_PIPE
    Console(file=file, width=width, force_terminal=terminal, highlight=False).print(drawn)
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())
