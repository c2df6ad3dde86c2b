"""The diagnosis for a terminal. Plain text; escape sequences only where colour is asked for."""

from __future__ import annotations

from collections.abc import Sequence

from perfdoc.reports import comm, gaps, headline, leaves, outlook, summary
from perfdoc.reports.advice import RULE_NOTES, lines_of
from perfdoc.reports.analysed import analysed_line
from perfdoc.reports.grid import grid, paragraph
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
from perfdoc.reports.sections.roles import outlier_grid, role_grid_by_letter, roles_sentences, unjudged_grid
from perfdoc.reports.sections.section import Grid
from perfdoc.reports.terminal import Lines
from perfdoc.results import Diagnosis, Rank, figures
from perfdoc.results.names import base_name, prose, shorten
from perfdoc.results.roles import RolesAnalysis

_COMM_ROWS = 20
_TOP_KERNELS = 15
_SECTION_ROWS = 12
_INPUTS = 16
_NOTES = 40
_TO_DO = 10
_ROLES = 16
_OUTLIERS = 8
_NAMED = 3


def _parts(values: Sequence[int]) -> list[tuple[str, str, int]]:
    return [(leaf.letter, leaf.family, ns) for leaf, ns in zip(leaves.LEAVES, values, strict=True)]


def _ledger(page: Lines, rank: Rank, label: str) -> None:
    values = leaves.leaf_values(rank.ledger_ns)
    window = rank.window
    steps = f", {figures.plural(window.steps, 'step')}" if window.steps else ""
    gpu = f", {shorten(rank.gpu.name, 64)}" if rank.gpu.name else ""
    length = figures.duration(window.duration_ns)
    page.lines += ["", f"  {page.paint(label, 'head')}: {length} ({window.kind}{steps}){gpu}"]
    page.lines.append("  " + page.bar(_parts(values), min(page.width, 120) - 4))
    shares = leaves.leaf_shares(values)
    shown = [i for i, value in enumerate(values) if value]
    rows = [
        [
            leaves.LEAVES[i].letter,
            leaves.LEAVES[i].label,
            figures.duration(values[i]),
            shares[i],
            f"{values[i]:,}",
        ]
        for i in shown
    ]
    total = rank.ledger_ns.total
    check = "= window" if total == window.duration_ns else f"differs from window {window.duration_ns:,}"
    rows.append(["", f"sum {check}", figures.duration(total), "100.0 %" if total else "", f"{total:,}"])
    page.table(["", "leaf", "time", "share", "ns"], rows, "llrrr")


def _ledgers(page: Lines, diagnosis: Diagnosis, labels: Sequence[str]) -> None:
    page.section("Where the time goes")
    if len(labels) <= 4:
        for i in range(len(labels)):
            _ledger(page, diagnosis.ranks[i], labels[i])
        return
    values = summary.total_values(diagnosis)
    page.lines.append("  all ranks together")
    page.lines.append("  " + page.bar(_parts(values), min(page.width, 120) - 4))
    shown = [i for i, value in enumerate(values) if value]
    codes = [leaves.LEAVES[i].letter for i in shown]
    page.say("; ".join(f"{leaves.LEAVES[i].letter} {leaves.LEAVES[i].label}" for i in shown))
    if (roles := diagnosis.analyses.roles) is not None:
        _roles(page, diagnosis, roles, shown)
        return
    rows = []
    for i, label in enumerate(labels):
        own = leaves.leaf_values(diagnosis.ranks[i].ledger_ns)
        shares = leaves.leaf_shares(own)
        length = figures.duration(diagnosis.ranks[i].window.duration_ns)
        rows.append([label, length, *(shares[j].removesuffix(" %") for j in shown)])
    page.lines.append("")
    page.table(["% of window", "window", *codes], rows, "lr" + "r" * len(codes))


def _roles(page: Lines, diagnosis: Diagnosis, roles: RolesAnalysis, shown: Sequence[int]) -> None:
    """Many ranks: the middle rank of each role, and who differs."""
    page.lines.append("")
    by_role = role_grid_by_letter(roles, shown, _ROLES)
    _grid(page, by_role)
    page.more(by_role.left_out, "lighter role")
    page.lines.append("")
    for text in roles_sentences(diagnosis, roles):
        page.say(text)
    for found in (outlier_grid(diagnosis, roles, _OUTLIERS), unjudged_grid(diagnosis, roles, _OUTLIERS)):
        if found.rows:
            page.lines += ["", f"  {found.caption}"]
            _grid(page, found)


def _grid(page: Lines, shown: Grid, most: int | None = None) -> None:
    page.table(shown.head, [[cell.text for cell in row] for row in shown.rows[:most]], shown.align)


def _communication(page: Lines, diagnosis: Diagnosis) -> None:
    page.section("Communication")
    rows, left_out = comm.overall_rows(diagnosis.ranks)
    if not rows:
        page.say("None inside the windows.")
        return
    if len(diagnosis.ranks) > 1:
        page.say("Sums over ranks and groups, which may overlap in time, unlike leaves of the ledger.")
    head = ["dim", "transport", "collective", "count", "total", "hidden", "exposed", "blocking"]
    page.table(
        [*head, "bytes", "bus bandwidth", "evidence"],
        [
            [
                row.dimension,
                row.transport,
                row.collective,
                figures.count(row.count),
                *(
                    figures.duration(ns)
                    for ns in (row.total_ns, row.hidden_ns, row.exposed_ns, row.blocking_ns)
                ),
                figures.size(row.bytes),
                row.bandwidth,
                row.evidence,
            ]
            for row in rows[:_COMM_ROWS]
        ],
        "lllrrrrrrrl",
    )
    left_out += max(0, len(rows) - _COMM_ROWS)
    if left_out:
        page.say(f"{figures.plural(left_out, 'more row')} with less exposed time.")
    if any(row.blocking_ns is None for row in rows):
        reason = gaps.missing_reason(diagnosis, "event_edges") or gaps.NOT_MEASURED_HERE
        page.say(f"blocking {figures.UNKNOWN}: {reason}")


def _sections(page: Lines, diagnosis: Diagnosis) -> None:
    for section in sections_of(diagnosis):
        page.section(section.title)
        for text in section.sentences:
            page.say(prose(text))
        if section.folded:
            page.say(f"{section.folded}: {figures.plural(len(section.grids), 'table')} in the report.")
            continue
        for table in section.grids:
            if table.caption:
                page.lines += ["", f"  {table.caption}"]
            _grid(page, table, _SECTION_ROWS)
            page.more(table.left_out + max(0, len(table.rows) - _SECTION_ROWS), "more row")


def _kernels(page: Lines, diagnosis: Diagnosis) -> None:
    kernels = diagnosis.analyses.kernels
    page.section("Kernels")
    if kernels.state != "measured":
        page.say(f"Not measured: {prose(kernels.reason)}")
        return
    shares = figures.partition([row.total_ns for row in kernels.classes])
    page.table(
        ["class", "count", "total", "share"],
        [
            [shorten(row.name, 48), figures.count(row.count), figures.duration(row.total_ns), part]
            for row, part in zip(kernels.classes, shares, strict=True)
        ],
        "lrrr",
    )
    if kernels.other_frac is not None:
        named = f"{figures.share(kernels.other_frac)} of kernel time has unknown kernel names."
        page.say(named if kernels.other_frac else "All kernel names are known.")
    page.lines.append("")
    page.table(
        ["total", "share", "count", "mean", "class", "kernel"],
        [
            [
                figures.duration(row.total_ns),
                figures.share(row.share_frac),
                figures.count(row.count),
                figures.duration(row.mean_ns),
                shorten(row.kernel_class, 48),
                shorten(row.short_name),
            ]
            for row in kernels.top[:_TOP_KERNELS]
        ],
        "rrrrln",
    )


def _to_do(page: Lines, diagnosis: Diagnosis) -> None:
    """The first rows of the ranking; the findings below say more of each."""
    ranked = ranking(diagnosis)
    rows = [row for row in ranked if row.sized]
    if rows:
        page.section("What to do, best first (each alone; do not add them)")
        page.table(TABLE_HEAD, [row_cells(row) for row in rows[:_TO_DO]], TABLE_ALIGN)
        page.more(len(rows) - _TO_DO, "more row")
    elif wanted := next_capture(diagnosis):
        page.section("What to do")
        page.say(wanted)
    for said in (conditions_in(rows[:_TO_DO]), without_figure(ranked), trifles_in(ranked, _NAMED)):
        if said:
            page.say(said)


_COUNTED = {"fires": "firing", "passes": "passing", "not_applicable": "not applicable"}
"""Words of rule states behind a count."""


def _rules(page: Lines, diagnosis: Diagnosis) -> None:
    if not diagnosis.rules:
        return
    page.section("Findings")
    for state in ("fires", "error"):
        for rule in gaps.rules_in(diagnosis, state):
            page.lines.append("")
            title = f"{shorten(rule.code, 48)} {shorten(rule.title)}"
            page.say(title + RULE_NOTES.get(state if state == "error" else rule.level, ""))
            page.say(prose(rule.reason), "    ")
            for fact in rule.evidence:
                page.say(f"{shorten(fact.label)}: {shorten(fact.value)}", "      ")
            for label, words in lines_of(rule) if state == "fires" else ():
                page.say(f"{label}: {prose(words)}", "    ")
    counts = [
        f"{len(gaps.rules_in(diagnosis, state))} {_COUNTED.get(state, words)}"
        for state, words in gaps.RULE_STATES
        if gaps.rules_in(diagnosis, state)
    ]
    page.say("Rules: " + ", ".join(counts) + ".")


def render_text(diagnosis: Diagnosis, *, width: int = 100, colour: bool = False) -> str:
    """The diagnosis as text for people, ending with a newline.

    width: columns to break sentences and shorten names at (at least 40); tables of many columns may be
    wider. colour: add terminal colours; without it the text holds no control character but the newline.
    """
    page = Lines(max(40, width), colour)
    labels = summary.rank_labels(diagnosis.ranks)
    first, below = outlook.opening_words(diagnosis)
    page.lines += [page.paint(line, "head") for line in paragraph(prose(first), width=page.width)]
    if below:
        page.say(prose(below), "")
    page.say(summary.source_line(diagnosis), "")
    if stretch := analysed_line(diagnosis):
        page.say(stretch, "")
    page.lines.append("")
    facts = [
        [fig.label, fig.value, "; ".join([*fig.notes, *fig.against])] for fig in headline.headline(diagnosis)
    ]
    page.lines += ["  " + line for line in grid(["", "", ""], facts, align="lrl", width=page.width)[1:]]
    for text in headline.against_lines(diagnosis):
        page.say(text)
    _to_do(page, diagnosis)
    if diagnosis.quality:
        page.lines += ["", page.paint("Notes on these figures", "warn")]
        for item in diagnosis.quality[:_NOTES]:
            page.say(f"! {shorten(item.code, 64)}: {prose(item.message)}")
            if item.remedy:
                page.say(f"do: {prose(item.remedy)}", "    ")
        page.more(len(diagnosis.quality) - _NOTES, "more note")
    if diagnosis.ranks:
        _ledgers(page, diagnosis, labels)
    _communication(page, diagnosis)
    _sections(page, diagnosis)
    _kernels(page, diagnosis)
    missing = gaps.gaps_of(diagnosis)
    if missing:
        page.section("What could not be measured")
        for gap in missing[:_NOTES]:
            where = f" [{gap.where}]" if gap.where else ""
            page.say(f"- {gap.what}{where}: {gap.why or 'no reason given'}")
            if gap.remedy:
                page.say(f"do: {gap.remedy}", "    ")
        page.more(len(missing) - _NOTES, "more row")
        if skipped := gaps.skipped_rules(diagnosis):
            page.say(skipped)
    _rules(page, diagnosis)
    page.section("Inputs")
    for source in diagnosis.inputs[:_INPUTS]:
        version = shorten(source.tool_version, 64) if source.tool_version else "version unknown"
        digest = shorten(source.sha256, 64)[:12]
        page.say(f"{base_name(source.path)}  {source.format}, {version}, sha256 {digest}")
    page.more(len(diagnosis.inputs) - _INPUTS, "more input")
    page.lines += ["", f"perfdoc {shorten(diagnosis.perfdoc_version, 64)}"]
    return "\n".join(page.lines) + "\n"
