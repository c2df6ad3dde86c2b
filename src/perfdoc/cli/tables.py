"""Tables of a command, which rich draws: cells wrap inside a terminal and have its colours; a pipe gets whole
lines."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from perfdoc.cli.streams import coloured, columns

_OF_A_PIPE = 1_000
"""Columns: no line of a file is broken."""


def table(
    rows: Sequence[Sequence[str]],
    *,
    head: Sequence[str] = (),
    right: Sequence[int] = (),
    styles: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Lines of a table. right: columns that are aligned there. styles: of whole cells, by their text."""
    from perfdoc.reports.terminal import grid

    lines = grid(
        head or [""] * len(rows[0]),
        rows,
        align="".join("r" if i in right else "n" for i in range(len(rows[0]))),
        width=columns() if sys.stdout.isatty() else _OF_A_PIPE,
        colour=coloured(),
        styles=styles,
    )
    return "".join(f"{line}\n" for line in lines)
