"""The diagnosis as one list of sections, which the terminal, Markdown and the text for a model print, and the
page shows around its pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfdoc.reports import gaps, leaves
from perfdoc.reports.advice import RULE_NOTES, lines_of
from perfdoc.reports.ranking import ranking, ranking_grid, trifles_in
from perfdoc.reports.savings import next_said
from perfdoc.reports.sections import (
    communication,
    contention,
    efficiency,
    host,
    kernel_parts,
    kernels,
    memory,
    mfu,
    pipeline,
    replay,
    skew,
    step_times,
    tables,
)
from perfdoc.reports.sections.roles import outlier_grid, role_grid, roles_sentences, unjudged_grid
from perfdoc.reports.sections.section import Cell, Grid, Note, Section, grid_of, name, time, word
from perfdoc.reports.summary import rank_labels
from perfdoc.results import Diagnosis, Rank, figures
from perfdoc.results.names import base_name, shorten

_ANALYSES = (
    *(mfu.build, communication.build, host.build, contention.build, pipeline.build),
    *(pipeline.build_model, skew.build, kernel_parts.build, kernels.build, efficiency.build),
    *(memory.build, replay.build, step_times.build, tables.build),
)
"""Each gives None where its analysis has no result, and `gaps` says why; or where the result is that there is
nothing to look at."""
_TO_DO = 10
_NAMED = 3
_DOUBTS = 40
_GAPS = 300
_INPUTS = 16
_FEW_RANKS = 4
"""The ledger of each is shown in nanoseconds."""
_ROLES = 16
_OUTLIERS = 8


def sections_of(diagnosis: Diagnosis) -> list[Section]:
    """What analyses have to show, in the order of every report."""
    return [section for build in _ANALYSES if (section := build(diagnosis)) is not None]


def outline(diagnosis: Diagnosis) -> list[Section]:
    """Everything: what to do, what not to trust, findings, where the time goes, analyses, what is missing."""
    first = (_to_do(diagnosis), _doubts(diagnosis), _findings(diagnosis), _time(diagnosis))
    last = (_missing(diagnosis), _inputs(diagnosis))
    return [section for section in (*first, *sections_of(diagnosis), *last) if section is not None]


def _to_do(diagnosis: Diagnosis) -> Section | None:
    """The first rows of the ranking; findings say more of each."""
    ranked = ranking(diagnosis)
    rows = [row for row in ranked if row.sized or (row.leads and row.rules)]
    wanted, several = next_said(diagnosis)[1], "Savings overlap; do not add them." if len(rows) > 1 else ""
    told = (f"Next: {wanted}" if wanted else "", several, trifles_in(ranked, _NAMED))
    sentences = [text for text in told if text]
    grids = [ranking_grid(rows, _TO_DO)] if rows else []
    if not sentences and not grids:
        return None
    return Section(key="to-do", title="What to do, best first", sentences=sentences, grids=grids)


def _doubts(diagnosis: Diagnosis) -> Section | None:
    if not diagnosis.quality:
        return None
    return Section(
        key="doubts",
        title="Before trusting these figures",
        notes=[
            Note(
                title=shorten(item.code, 64),
                text=item.message,
                lines=[("do", item.remedy)] if item.remedy else [],
            )
            for item in diagnosis.quality[:_DOUBTS]
        ],
        notes_left_out=max(0, len(diagnosis.quality) - _DOUBTS),
    )


_COUNTED = {"fires": "firing", "passes": "passing", "not_applicable": "not applicable"}
"""Words of rule states behind a count."""


def _findings(diagnosis: Diagnosis) -> Section | None:
    if not diagnosis.rules:
        return None
    by_state = {state: gaps.rules_in(diagnosis, state) for state, _ in gaps.RULE_STATES}
    notes = []
    for state in ("fires", "error"):
        for rule in by_state[state]:
            more = RULE_NOTES.get(state if state == "error" else rule.level, "")
            evidence = [(shorten(fact.label), shorten(fact.value)) for fact in rule.evidence]
            said = lines_of(rule) if state == "fires" else ()
            title = f"{shorten(rule.code, 48)} {shorten(rule.title)}{more}"
            notes.append(Note(title=title, text=rule.reason, lines=[*evidence, *said]))
    counts = [
        f"{len(by_state[state])} {_COUNTED.get(state, words)}"
        for state, words in gaps.RULE_STATES
        if by_state[state]
    ]
    return Section(key="findings", title="Findings", sentences=[f"Rules: {', '.join(counts)}."], notes=notes)


def _time(diagnosis: Diagnosis) -> Section | None:
    ranks = diagnosis.ranks
    if not ranks:
        return None
    values = leaves.total_values(diagnosis)
    shown = [i for i, value in enumerate(values) if value]
    bar = [(leaf.letter, leaf.family, ns) for leaf, ns in zip(leaves.LEAVES, values, strict=True)]
    if (roles := diagnosis.analyses.roles) is not None:
        by_role = role_grid(roles, _ROLES)
        others = (outlier_grid(diagnosis, roles, _OUTLIERS), unjudged_grid(diagnosis, roles, _OUTLIERS))
        grids = [replace(by_role, bar=bar), *others]
        sentences: Sequence[str] = roles_sentences(diagnosis, roles)
    else:
        whole = diagnosis.ranks
        grids = [_shares(diagnosis, shown, bar)] if len(ranks) > 1 else []
        grids += [_ledger(*each) for each in zip(whole, rank_labels(whole), strict=True)][:_FEW_RANKS]
        grids = grids[:1] if len(ranks) > _FEW_RANKS else grids
        sentences = []
    return Section(
        key="time",
        title="Where the time goes",
        sentences=[*([diagnosis.account] if diagnosis.account else []), *sentences],
        grids=[grid for grid in grids if grid.rows],
    )


def _shares(diagnosis: Diagnosis, shown: Sequence[int], bar: Sequence[tuple[str, str, int]]) -> Grid:
    """A row per rank, a column per leaf that some rank has."""
    rows = []
    for label, rank in zip(rank_labels(diagnosis.ranks), diagnosis.ranks, strict=True):
        shares = figures.shares(leaves.leaf_values(rank.ledger_ns))
        rows.append([word(label), time(rank.window.duration_ns), *(word(shares[i]) for i in shown)])
    total = figures.shares([ns for _, _, ns in bar])
    whole_ns = sum(ns for _, _, ns in bar)
    rows.append([word("all ranks"), time(whole_ns), *(word(total[i]) for i in shown)])
    heads = [leaves.LEAVES[i].label for i in shown]
    return Grid(head=["share of window", "window", *heads], align="lr" + "r" * len(shown), rows=rows, bar=bar)


def _ledger(rank: Rank, label: str) -> Grid:
    """The leaves of one rank, and their sum."""
    values = leaves.leaf_values(rank.ledger_ns)
    shares = figures.shares(values)
    window, total = rank.window, sum(values)
    steps = f", {figures.plural(window.steps, 'step')}" if window.steps else ""
    gpu = f", {shorten(rank.gpu.name, 64)}" if rank.gpu.name else ""
    rows = [
        [word(leaf.letter), word(leaf.label), time(ns), word(part), word(f"{ns:,}")]
        for leaf, ns, part in zip(leaves.LEAVES, values, shares, strict=True)
        if ns
    ]
    check = "= window" if total == window.duration_ns else f"differs from window {window.duration_ns:,}"
    all_of_it = word("100.0 %" if total else "")
    rows.append([word(""), word(f"sum {check}"), time(total), all_of_it, word(f"{total:,}")])
    return Grid(
        caption=f"{label}: {figures.duration(window.duration_ns)} ({window.kind}{steps}){gpu}",
        head=["", "leaf", "time", "share", "ns"],
        align="llrrr",
        rows=rows,
        bar=[(leaf.letter, leaf.family, ns) for leaf, ns in zip(leaves.LEAVES, values, strict=True)],
    )


def _missing(diagnosis: Diagnosis) -> Section | None:
    missing = gaps.gaps_of(diagnosis)
    if not missing:
        return None
    skipped = gaps.skipped_rules(diagnosis)
    return Section(
        key="missing",
        title="What could not be measured",
        sentences=[skipped] if skipped else [],
        notes=[
            Note(
                title=f"{gap.what} ({gap.where})" if gap.where else gap.what,
                text=gap.why or "no reason given",
                lines=[("do", gap.remedy)] if gap.remedy else [],
            )
            for gap in missing[:_GAPS]
        ],
        notes_left_out=max(0, len(missing) - _GAPS),
    )


def _inputs(diagnosis: Diagnosis) -> Section | None:
    if not diagnosis.inputs:
        return None
    return Section(key="inputs", title="Inputs", grids=[inputs_grid(diagnosis)])


def inputs_grid(diagnosis: Diagnosis) -> Grid:
    """The files, in the order of `CapabilityRow.input`."""
    return grid_of(
        list(enumerate(diagnosis.inputs)),
        ("#", "r", lambda row: word(row[0])),
        ("file", "n", lambda row: Cell(text=base_name(row[1].path))),
        ("format", "l", lambda row: word(row[1].format)),
        ("written by", "l", lambda row: name(row[1].tool_version or "version unknown", 64)),
        ("schema", "l", lambda row: name(row[1].schema or "", 64)),
        ("sha256", "l", lambda row: Cell(text=shorten(row[1].sha256, 64)[:12])),
        most=_INPUTS,
        key="files",
    )
