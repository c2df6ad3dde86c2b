"""A result as Markdown, for a pull request or the page of a CI job: what speaks against it comes first."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from perfdoc.compare.facts import Fact
from perfdoc.compare.floors import KINDS
from perfdoc.compare.gate.result import Check, Result, figure
from perfdoc.reports.markdown import escape, table
from perfdoc.results.figures import duration, per_cent, signed
from perfdoc.results.names import shorten

MARKS: Mapping[str, str] = MappingProxyType(
    {"pass": "PASS", "warn": "WARN", "fail": "FAIL", "inconclusive": "INCONCLUSIVE"}
)
MOST_PARTS = 6
MOST_DIFFERENCES = 12
_MOST_NOTES = 8
_MOST_RUNS = 6
_LIMIT = 400
_NAME = 96
_WORDS = MappingProxyType({"incomparable": "not comparable"})


def as_markdown(result: Result) -> str:
    """The verdict, what to know before believing it, facts that differ, checks, parts, and which runs."""
    lines = [f"### perfdoc gate: {_WORDS.get(result.verdict, result.verdict)}", "", _cell(result.summary)]
    notes = [f"> - {_cell(note)}" for note in result.notes[:_MOST_NOTES]]
    if (more := len(result.notes) - _MOST_NOTES) > 0:
        notes.append(f"> - {more} more")
    lines += ["", *notes] if notes else []
    if result.differences:
        facts = [
            [_cell(d.fact, _NAME), escape(shown_fact(d.baseline, _NAME)), escape(shown_fact(d.here, _NAME))]
            for d in result.differences[:MOST_DIFFERENCES]
        ]
        lines += table((f"differs from {_cell(other_side(result))}", "there", "here"), "lll", facts)[:-1]
        if (more := len(result.differences) - MOST_DIFFERENCES) > 0:
            lines += ["", f"{more} more facts differ."]
    measured = [c for c in result.checks if c.value is not None]
    if measured:
        rows = [[_cell(c.name), MARKS[c.state], *_figures(c)] for c in measured]
        lines += table(("check", "state", "change or figure", "limit"), "llrr", rows)[:-1]
    said = [
        c for c in result.checks if c.message != result.summary and (c.state != "pass" and c.value is None)
    ]
    said += [c for c in result.checks if c.state == "fail" and c.message != result.summary and c not in said]
    if said:
        lines += ["", *(f"- {MARKS[c.state]} {_cell(c.name)}: {_cell(c.message)}" for c in said)]
    if result.grown:
        parts = [
            [
                _cell(g.part, _NAME),
                duration(g.before_ns),
                duration(g.after_ns),
                signed(g.after_ns - g.before_ns),
            ]
            for g in result.grown[:MOST_PARTS]
        ]
        lines += table(("part of a step", "before", "after", "change"), "lrrr", parts)[:-1]
    return "\n".join([*lines, *_runs(result)]) + "\n"


def _figures(check: Check) -> list[str]:
    """Its figure and its limit: of a floor as they are, of a comparison as shares."""
    if check.name in KINDS:
        unit = f" {check.unit}" if check.unit else ""
        return [escape(f"{figure(value)}{unit}") for value in (check.value, check.limit)]
    change = "" if check.value is None else f"{100 * check.value:+.1f} %"
    return [change, "" if check.limit is None else escape(per_cent(check.limit))]


def _runs(result: Result) -> list[str]:
    if not result.runs:
        return []
    names = [_cell(run.source, _NAME) for run in result.runs[:_MOST_RUNS]]
    more = f" and {len(result.runs) - _MOST_RUNS} more" if len(result.runs) > _MOST_RUNS else ""
    against = ""
    if result.baseline_runs:
        where = f" of {_cell(result.baseline, _NAME)}" if result.baseline else " beside them"
        against = f", against {len(result.baseline_runs)}{where}"
    return ["", f"Runs: {', '.join(names)}{more}{against}."]


def other_side(result: Result) -> str:
    """What the runs were to be compared with, in words."""
    return f"the nearest baseline ({result.baseline})" if result.baseline else "the runs beside"


def shown_fact(value: Fact, limit: int = _LIMIT) -> str:
    """What one side has; in its one line."""
    return "not said" if value is None else shorten(str(value), limit)


def _cell(text: str, limit: int = _LIMIT) -> str:
    """Text in a Markdown table: nothing in it is markup."""
    return escape(shorten(text, limit))
