"""Sections of a comparison for a terminal and as Markdown, where no diagnosis is rendered."""

from __future__ import annotations

from collections.abc import Sequence

from perfdoc.reports.markdown import escape, table
from perfdoc.reports.sections.section import Section
from perfdoc.reports.terminal import Lines
from perfdoc.results.names import prose

_SENTENCE = 400


def add_sections(page: Lines, sections: Sequence[Section]) -> None:
    """Each section that holds something: title, sentences, tables."""
    for section in sections:
        if section.sentences or any(grid.rows for grid in section.grids):
            page.section(section.title)
        for text in section.sentences:
            page.say(prose(text))
        for grid in section.grids:
            page.lines += ["", f"  {grid.caption}"] if grid.caption else []
            page.table(grid.head, [[cell.text for cell in row] for row in grid.rows], grid.align)
            page.more(grid.left_out, "more row")


def markdown_lines(sections: Sequence[Section]) -> list[str]:
    """The same in short: the title of a section is the head of its table's first column."""
    lines: list[str] = []
    for section in sections:
        for grid in section.grids:
            more = f" ({grid.left_out:,} more)" if grid.left_out else ""
            head = [escape(section.title + more), *map(escape, grid.head[1:])]
            rows = [[escape(cell.text) for cell in row] for row in grid.rows]
            lines += table(head, grid.align, rows)[:-1] if rows else []
        lines += (
            ["", *(f"- {escape(prose(text, _SENTENCE))}" for text in section.sentences)]
            if section.sentences
            else []
        )
    return lines
