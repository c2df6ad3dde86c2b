"""The diagnosis as a comment on a pull request: short, in GitHub's Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from perfdoc.reports import comm, gaps, headline, leaves, outlook, summary
from perfdoc.reports.advice import RULE_NOTES, lines_of
from perfdoc.reports.against import against_words, compared_lines
from perfdoc.reports.analysed import analysed_line
from perfdoc.reports.next_capture import next_capture
from perfdoc.reports.ranking import (
    TABLE_ALIGN,
    TABLE_HEAD,
    conditions_in,
    ranking,
    row_cells,
    trifles_in,
    without_figure,
)
from perfdoc.reports.sections import sections_of
from perfdoc.reports.sections.roles import outlier_grid, outlier_sentence, role_grid, unjudged_grid
from perfdoc.results import Diagnosis, figures
from perfdoc.results.names import base_name, pieces, prose, shorten
from perfdoc.results.roles import RolesAnalysis

_RANKS = 8
_ROLES = 16
_COMM_ROWS = 8
_TOP_KERNELS = 5
_SECTION_ROWS = 8
_SENTENCES = 3
"""Of a section; the first ones say what it means."""
_QUALITY = 8
_GAPS = 30
_TO_DO = 10
_NAMED = 3
_SENTENCE = 400
_SAID = frozenset({"set", "or set", "not set", "do", "gain"})
_LONGEST = 60_000
"""GitHub takes 65,536 characters in a comment."""

_SPECIAL = re.compile(
    r"(?P<entity>[|\\`<>&$])"
    r"|(?P<markup>[*_\[\]~{}])"
    r"|(?P<target>[@#](?=\w)|(?<=[A-Za-z]):(?=//)|(?<=www)\.)",
    re.IGNORECASE,
)
_LINE_START = re.compile(r"\s*(?:[-+=#]|\d+[.)](?=\s|$))")
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


def _ledgers(diagnosis: Diagnosis) -> list[str]:
    labels = summary.rank_labels(diagnosis.ranks)
    if (roles := diagnosis.analyses.roles) is not None:
        return _roles(diagnosis, roles)
    total = summary.total_values(diagnosis)
    shown = [i for i, value in enumerate(total) if value]
    order = sorted(range(len(labels)), key=lambda i: (-diagnosis.ranks[i].window.duration_ns, i))
    drawn = sorted(order[:_RANKS])
    rows = []
    for i in drawn:
        shares = leaves.leaf_shares(leaves.leaf_values(diagnosis.ranks[i].ledger_ns))
        rows.append(
            [
                escape(labels[i]),
                figures.duration(diagnosis.ranks[i].window.duration_ns),
                *(escape(shares[j]) for j in shown),
            ]
        )
    if len(labels) > 1:
        shares = leaves.leaf_shares(total)
        rows.append(["**all ranks**", figures.duration(sum(total)), *(escape(shares[j]) for j in shown)])
    head = ["share of window", "window", *(leaves.LEAVES[j].label for j in shown)]
    lines = ["### Where the time goes", *table(head, "lr" + "r" * len(shown), rows)]
    if len(labels) > _RANKS:
        left_out = figures.plural(len(labels) - _RANKS, "rank")
        lines += [f"The {_RANKS} ranks with the longest windows; {left_out} not listed.", ""]
    return lines


def _roles(diagnosis: Diagnosis, roles: RolesAnalysis) -> list[str]:
    """Many ranks: by role, and who differs."""
    lines = ["### Where the time goes, by role", "", sentence(outlier_sentence(diagnosis, roles))]
    by_role = role_grid(roles, _ROLES)
    for grid in (by_role, outlier_grid(diagnosis, roles, _RANKS), unjudged_grid(diagnosis, roles, _RANKS)):
        if grid.rows:
            lines += [] if grid is by_role else [f"{grid.caption}:"]
            lines += table(grid.head, grid.align, [[escape(cell.text) for cell in row] for row in grid.rows])
    if by_role.left_out:
        lines += [f"{figures.plural(by_role.left_out, 'lighter role')}.", ""]
    return lines


def _communication(diagnosis: Diagnosis) -> list[str]:
    rows, left_out = comm.overall_rows(diagnosis.ranks)
    left_out += max(0, len(rows) - _COMM_ROWS)
    if not rows:
        return []
    cells = [
        [
            escape(row.dimension),
            escape(row.transport),
            escape(row.collective),
            figures.count(row.count),
            *(figures.duration(ns) for ns in (row.total_ns, row.hidden_ns, row.exposed_ns, row.blocking_ns)),
            figures.size(row.bytes),
            escape(row.bandwidth),
        ]
        for row in rows[:_COMM_ROWS]
    ]
    head = ["dimension", "transport", "collective", "count", "total", "hidden", "exposed", "blocking"]
    lines = ["### Communication", *table([*head, "bytes", "bus bandwidth"], "lll" + "r" * 7, cells)]
    return (
        [*lines, f"{figures.plural(left_out, 'more row')} with less exposed time.", ""] if left_out else lines
    )


def _sections(diagnosis: Diagnosis) -> list[str]:
    """The first sentences and the first table, in short."""
    lines = []
    for section in sections_of(diagnosis):
        lines += [f"### {section.title}", "", *(sentence(text) for text in section.sentences[:_SENTENCES])]
        for grid in section.grids[:1]:
            rows = [[escape(cell.text) for cell in row] for row in grid.rows[:_SECTION_ROWS]]
            lines += table(grid.head, grid.align, rows)
        lines.append("")
    return lines


def _kernels(diagnosis: Diagnosis) -> list[str]:
    kernels = diagnosis.analyses.kernels
    if kernels.state != "measured" or not kernels.top:
        return []
    rows = [
        [
            code(shorten(row.name, 96)),
            escape(shorten(row.kernel_class, 48)),
            figures.count(row.count),
            figures.duration(row.total_ns),
            escape(figures.share(row.share_frac)),
        ]
        for row in kernels.top[:_TOP_KERNELS]
    ]
    return ["### Top kernels", *table(["kernel", "class", "count", "total", "share"], "llrrr", rows)]


def _rules(diagnosis: Diagnosis) -> list[str]:
    lines = []
    for state in ("fires", "error"):
        for rule in gaps.rules_in(diagnosis, state):
            title = f"{shorten(rule.code, 48)} {shorten(rule.title)}"
            note = RULE_NOTES.get(state if state == "error" else rule.level, "")
            text = f"- **{escape(title)}**{note}: "
            text += sentence(rule.reason)
            lines.append(text)
            said = lines_of(rule) if state == "fires" else ()
            # In short: how to verify and what would be a false alarm stand in the report.
            lines += [f"  - *{label}:* {sentence(words)}" for label, words in said if label in _SAID]
    return ["### Findings", "", *lines, ""] if lines else []


def _to_do(diagnosis: Diagnosis) -> list[str]:
    ranked = ranking(diagnosis)
    rows = [row for row in ranked if row.sized]
    lines = []
    if rows:
        cells = [[escape(cell) for cell in row_cells(row)] for row in rows[:_TO_DO]]
        lines += ["### What to do", *table(TABLE_HEAD, TABLE_ALIGN, cells)]
        lines += [f"{figures.plural(len(rows) - _TO_DO, 'more row')}.", ""] if len(rows) > _TO_DO else []
    elif wanted := next_capture(diagnosis):
        lines += ["### What to do", "", sentence(wanted), ""]
    for said in (conditions_in(rows[:_TO_DO]), without_figure(ranked), trifles_in(ranked, _NAMED)):
        lines += [escape(said), ""] if said else []
    return lines


def render_markdown(diagnosis: Diagnosis) -> str:
    """The diagnosis in short, as GitHub's Markdown, ending with a newline: verdict, headline figures, rules,
    shares per rank (the eight longest), communication; folded: the analyses, top kernels, what is missing."""
    first, below = outlook.opening_words(diagnosis)
    lines = [f"## {sentence(first)}", ""]
    lines += [sentence(below), ""] if below else []
    lines += [escape(summary.source_line(diagnosis)), ""]
    if stretch := analysed_line(diagnosis):
        lines += [sentence(stretch), ""]
    facts = headline.headline(diagnosis)
    lines += table(
        [fig.label for fig in facts],
        "l" * len(facts),
        [[escape(f"{fig.value} ({fig.beside})" if fig.beside else fig.value) for fig in facts]],
    )[1:]
    compared = [*compared_lines(diagnosis), *against_words(diagnosis)]
    lines += [*(f"- {sentence(text)}" for text in compared), ""] if compared else []
    for item in diagnosis.quality[:_QUALITY]:
        remedy = f" *Do:* {sentence(item.remedy)}" if item.remedy else ""
        lines += [f"> **Note** {code(shorten(item.code, 64))}: {sentence(item.message)}{remedy}", ""]
    if len(diagnosis.quality) > _QUALITY:
        lines += [f"> {figures.plural(len(diagnosis.quality) - _QUALITY, 'more note')} on quality.", ""]
    lines += _to_do(diagnosis)
    lines += _rules(diagnosis)
    if diagnosis.ranks:
        lines += _ledgers(diagnosis)
    lines += _communication(diagnosis)
    more = _sections(diagnosis) + _kernels(diagnosis)
    if more:
        lines += ["<details>", "<summary>Figures by analysis</summary>", "", *more, "</details>", ""]
    missing = gaps.gaps_of(diagnosis)
    if missing:
        lines += ["<details>", f"<summary>Could not be measured: {len(missing)}</summary>", ""]
        for gap in missing[:_GAPS]:
            where = f" ({escape(gap.where)})" if gap.where else ""
            remedy = f" *Do:* {sentence(gap.remedy)}" if gap.remedy else ""
            lines.append(f"- {escape(gap.what)}{where}: {sentence(gap.why)}{remedy}")
        if len(missing) > _GAPS:
            lines.append(f"- {figures.plural(len(missing) - _GAPS, 'more row')}")
        if skipped := gaps.skipped_rules(diagnosis):
            lines.append(f"- {escape(skipped)}")
        lines += ["", "</details>", ""]
    files = ", ".join(code(base_name(item.path)) for item in diagnosis.inputs[:4])
    others = f" and {len(diagnosis.inputs) - 4} more" if len(diagnosis.inputs) > 4 else ""
    lines.append(f"perfdoc {escape(shorten(diagnosis.perfdoc_version, 64))} read {files}{others}.")
    return _cut(lines)


def _cut(lines: Sequence[str]) -> str:
    """The lines, or as many as a comment may hold."""
    text = "\n".join(lines) + "\n"
    if len(text) <= _LONGEST:
        return text
    return text[: text.rindex("\n", 0, _LONGEST)] + "\n\nCut here: too long for a comment.\n"
