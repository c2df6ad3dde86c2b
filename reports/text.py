"""The diagnosis for a terminal. Plain text; escape sequences only where colour is asked for."""

from __future__ import annotations

from perfdoc.reports import headline, outlook, summary
from perfdoc.reports.outline import outline
from perfdoc.reports.sections.section import Grid, Note, Section
from perfdoc.reports.terminal import Lines, grid, paragraph
from perfdoc.results import Diagnosis, figures
from perfdoc.results.names import prose, shorten

_ROWS = 20
_WIDEST_BAR = 120


def _table(page: Lines, table: Grid) -> None:
    if table.caption:
        page.lines.append("")
        page.say(table.caption)
    if table.bar:
        page.lines.append("  " + page.bar(table.bar, min(page.width, _WIDEST_BAR) - 4))
    page.table(table.head, [[cell.text for cell in row] for row in table.rows[:_ROWS]], table.align)
    page.more(table.left_out + max(0, len(table.rows) - _ROWS), "more row")


def _note(page: Lines, note: Note) -> None:
    page.lines.append("")
    page.say(note.title)
    page.say(prose(note.text), "    ")
    for label, words in note.lines:
        page.say(f"{label}: {prose(words)}", "    ")


def _section(page: Lines, section: Section) -> None:
    page.section(section.title)
    for text in section.sentences:
        page.say(prose(text))
    for note in section.notes:
        _note(page, note)
    page.more(section.notes_left_out, "more note")
    for table in section.grids:
        if not table.folded:
            _table(page, table)
    if folded := sum(table.folded for table in section.grids):
        page.say(f"{figures.plural(folded, 'more table')} in the report.")


def render_text(diagnosis: Diagnosis, *, width: int = 100, colour: bool = False) -> str:
    """The diagnosis as text for people, ending with a newline.

    width: columns to break sentences and shorten names at (at least 40); tables of many columns may be
    wider. colour: add terminal colours; without it the text holds no control character but the newline.
    """
    page = Lines(max(40, width), colour)
    first, below = outlook.opening_words(diagnosis)
    page.lines += [page.paint(line, "head") for line in paragraph(prose(first), width=page.width)]
    for text in (prose(below), summary.source_line(diagnosis), summary.analysed_line(diagnosis)):
        page.say(text, "")
    page.lines.append("")
    facts = [[fig.label, fig.value, "; ".join(fig.notes)] for fig in headline.headline(diagnosis)]
    page.lines += ["  " + line for line in grid(["", "", ""], facts, align="lrn", width=page.width)]
    for section in outline(diagnosis):
        _section(page, section)
    page.lines += ["", f"perfdoc {shorten(diagnosis.perfdoc_version, 64)}"]
    return "\n".join(page.lines) + "\n"
