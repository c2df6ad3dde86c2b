"""What `perfdoc tune` found, for a terminal."""

from __future__ import annotations

import textwrap

from perfdoc.reports.terminal import grid, paragraph
from perfdoc.results.names import prose
from perfdoc.tune.result import Tuning
from perfdoc.tune.words import sections_of, written_of


def render_text(found: Tuning, *, width: int = 100) -> str:
    """The verdict, then every section; the exact figures are in tune.json."""
    lines = textwrap.wrap(prose(found.verdict), width)
    for section in sections_of(found):
        lines += ["", section.title]
        for sentence in section.sentences if section.key != "to-set" else ():
            lines += paragraph(prose(sentence), width=width, indent="  ", hang="  ")
        for table in section.grids:
            if table.caption:
                lines += ["", f"  {table.caption}"]
            cells = [[cell.text for cell in row] for row in table.rows]
            lines += ["  " + line for line in grid(table.head, cells, align=table.align, width=width - 2)]
        if section.key == "to-set":
            best = next(r for r in found.rows if r.place == 1)
            lines += ["", *(f"  {line}" for line in written_of(best))]
    return "\n".join(lines) + "\n"
