"""The diagnosis as a comment on a pull request: short, in GitHub's Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from perfdoc.patterns import pattern_of
from perfdoc.reports import headline, outlook
from perfdoc.reports.outline import outline
from perfdoc.reports.sections.section import Note, Section
from perfdoc.reports.summary import analysed_line, source_line
from perfdoc.results import Diagnosis, figures
from perfdoc.results.names import base_name, listed, pieces, prose, shorten

_ROWS = 8
_SENTENCES = 3
"""Of a section; the first ones say what it means."""
_NOTES = 30
_SENTENCE = 400
_SHORT = frozenset({"set", "or set", "not set", "do", "gain"})
"""Of a finding's lines: how to verify it and what would be a false alarm stand in the report."""
_OPEN = ("to-do", "findings", "doubts", "time", "communication")
"""Sections that are open, in their order; the others are folded."""
_LONGEST = 60_000
"""GitHub takes 65,536 characters in a comment."""

_SPECIAL = pattern_of(
    r"(?P<entity>[|\\`<>&$])"
    r"|(?P<markup>[*_\[\]~{}])"
    r"|(?P<target>[@#](?=\w)|(?<=[A-Za-z]):(?=//)|(?<=www)\.)",
    re.IGNORECASE,
)
_LINE_START = pattern_of(r"\s*(?:[-+=#]|\d+[.)](?=\s|$))")
_NOTHING = "&#8203;"
"""A character without width, written as an entity: it breaks a link or a mention in two."""


def _escaped(found: re.Match[str]) -> str:
    char = found.group()
    if found.lastgroup == "entity":
        return f"&#{ord(char)};"
    return "\\" + char if found.lastgroup == "markup" else char + _NOTHING


def escape(text: str) -> str:
    """A shown string as Markdown that reads the same: no markup, no link, no mention of a person or an
    issue. The characters that end a table cell, a code span or a tag become entities, which no later
    pass takes for the character itself."""
    return (_NOTHING if _LINE_START.match(text) else "") + _SPECIAL.sub(_escaped, text)


def code(text: str) -> str:
    """A shown string as code. A tag rather than back-quotes, since a name may hold those and pipes."""
    return f"<code>{escape(text)}</code>" if text else ""


def sentence(text: str) -> str:
    """A sentence of ours with its `code` quotes kept."""
    return "".join(code(part) if quoted else escape(part) for quoted, part in pieces(prose(text, _SENTENCE)))


def table(head: Sequence[str], align: str, rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table between two empty ones. align: a letter for each column, `l` or `r`."""
    rule = ["---:" if how == "r" else "---" for how in align]
    return ["", *("| " + " | ".join(row) + " |" for row in (head, rule, *rows)), ""]


def _note(note: Note) -> list[str]:
    lines = [f"- **{escape(note.title)}**: {sentence(note.text)}"]
    return [*lines, *(f"  - *{label}:* {sentence(words)}" for label, words in note.lines if label in _SHORT)]


def _section(section: Section) -> list[str]:
    """The first sentences and notes, and the first table, in short."""
    lines = [f"### {section.title}", "", *(sentence(text) for text in section.sentences[:_SENTENCES]), ""]
    for note in section.notes[:_NOTES]:
        lines += _note(note)
    if more := section.notes_left_out + max(0, len(section.notes) - _NOTES):
        lines.append(f"- {figures.plural(more, 'more note')}")
    for grid in section.grids[:1] if not section.notes else ():
        rows = [[escape(cell.text) for cell in row] for row in grid.rows[:_ROWS]]
        lines += table([escape(head) for head in grid.head], grid.align, rows)
        more = grid.left_out + max(0, len(grid.rows) - _ROWS)
        lines += [f"{figures.plural(more, 'more row')}.", ""] if more else []
    return [*lines, ""]


def render_markdown(diagnosis: Diagnosis) -> str:
    """The diagnosis in short, as GitHub's Markdown, ending with a newline: verdict, headline figures, what to
    do, findings, doubts, shares, communication; folded: the analyses, what is missing."""
    first, below = outlook.opening_words(diagnosis)
    lines = [f"## {sentence(first)}", ""]
    for text in (below, source_line(diagnosis), analysed_line(diagnosis)):
        lines += [sentence(text), ""] if text else []
    facts = headline.headline(diagnosis)
    lines += table(
        [fig.label for fig in facts],
        "l" * len(facts),
        [[escape(f"{fig.value} ({fig.beside})" if fig.beside else fig.value) for fig in facts]],
    )[1:]
    sections = {section.key: section for section in outline(diagnosis)}
    for key in _OPEN:
        lines += _section(sections.pop(key)) if key in sections else []
    sections.pop("inputs", None)
    missing = sections.pop("missing", None)
    if sections:
        folded = [line for section in sections.values() for line in _section(section)]
        lines += ["<details>", "<summary>Figures by analysis</summary>", "", *folded, "</details>", ""]
    if missing is not None:
        summary = f"<summary>Could not be measured: {len(missing.notes) + missing.notes_left_out}</summary>"
        lines += ["<details>", summary, "", *_section(missing)[2:], "</details>", ""]
    read = listed([code(base_name(item.path)) for item in diagnosis.inputs], 4)
    lines.append(f"perfdoc {escape(shorten(diagnosis.perfdoc_version, 64))} read {read}.")
    return _cut(lines)


def _cut(lines: Sequence[str]) -> str:
    """The lines, or as many as a comment may hold."""
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines) + "\n")
    if len(text) <= _LONGEST:
        return text
    return text[: text.rindex("\n", 0, _LONGEST)] + "\n\nCut here: too long for a comment.\n"
