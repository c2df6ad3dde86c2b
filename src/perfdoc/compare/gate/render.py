"""A result as text, Markdown, JSON, JUnit XML and GitHub annotations, and where it may be written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Literal
from xml.etree import ElementTree

from perfdoc.compare.facts import Fact
from perfdoc.compare.floors import KINDS
from perfdoc.compare.gate.result import Check, Result, figure
from perfdoc.profiling.whole_file import is_stream
from perfdoc.reports.annotations import command
from perfdoc.reports.markdown import escape
from perfdoc.reports.sections.rendering import add_sections, markdown_lines
from perfdoc.reports.sections.section import Cell, Grid, Section, name, word
from perfdoc.reports.terminal import Lines
from perfdoc.results.figures import duration, per_cent, signed
from perfdoc.results.names import shorten
from perfdoc.results.type_schema import json_bytes

MOST_PARTS = 6
MOST_DIFFERENCES = 12
_MOST_NOTES = 8
_MOST_RUNS = 6
_LIMIT = 400
_NAME = 96
_WIDTH = 1000
"""A sentence is one line: what a CI job prints is searched by line."""
_WORDS = MappingProxyType({"incomparable": "not comparable"})
_KINDS: Mapping[str, Literal["error", "warning", "notice"]] = MappingProxyType(
    {"fail": "error", "inconclusive": "warning", "warn": "warning", "pass": "notice"}
)


def check_targets(targets: Sequence[Path], *, inputs: Sequence[Path], force: bool) -> None:
    """Raise ValueError, in one line, where a result would overwrite something.

    inputs: what is read, files or folders; nothing is written onto or into them, not even with force.
    force: other files that are there may be overwritten.
    """
    try:
        for i, path in enumerate(targets):
            if str(path) == "-":
                raise ValueError("-: standard output shows what --format names. Give a file's name.")
            if any(_one(path, other) for other in targets[:i]):
                raise ValueError(f"{path}: is to hold two results. Give each a file of its own.")
            for read in inputs:
                if _one(path, read) or path.resolve().is_relative_to(read.resolve()):
                    raise ValueError(f"{path}: lies in {read}, which is read. Write the result elsewhere.")
            if path.exists() and not force and not is_stream(path):
                raise ValueError(f"{path}: is there already. Choose another, or overwrite with --force.")
    except (OSError, RuntimeError) as error:  # A loop of links is a RuntimeError of resolve.
        raise ValueError(f"{path}: cannot be written: {error}.") from error


def _one(a: Path, b: Path) -> bool:
    """Whether two names are of one file, by links of either kind too."""
    return a.resolve() == b.resolve() or (a.exists() and b.exists() and a.samefile(b))


def _parts(result: Result) -> Section:
    rows = [
        [name(g.part), *(word(t) for t in (duration(g.before_ns), duration(g.after_ns), signed(g.grew_ns)))]
        for g in result.grown[:MOST_PARTS]
    ]
    grid = Grid(head=("part of a step", "before", "after", "change"), align="lrrr", rows=rows)
    return Section(key="parts", title="Where steps changed, mean over runs", grids=[grid])


def _differences(result: Result) -> Section:
    other = f"the nearest baseline ({result.baseline})" if result.baseline else "the runs beside"
    rows = [
        [name(d.fact), Cell(text=_fact(d.baseline)), Cell(text=_fact(d.here))]
        for d in result.differences[:MOST_DIFFERENCES]
    ]
    left_out = len(result.differences) - len(rows)
    grid = Grid(head=("fact", "there", "here"), align="lll", rows=rows, left_out=left_out)
    return Section(key="differences", title=f"Differs from {shorten(other)}", grids=[grid])


def _fact(value: Fact) -> str:
    return "not said" if value is None else shorten(str(value), _NAME)


def as_text(result: Result, width: int = _WIDTH) -> str:
    """For a terminal and a CI log: the verdict, every check in a sentence, what changed, notes."""
    page = Lines(width, False)
    page.say(f"{result.verdict.upper()}: {_line(result.summary)}", "")
    said = [f"{c.state.upper():<13}{c.name:<26}{_line(c.message)}" for c in result.checks]
    checks = Section(key="checks", title="Checks", sentences=said)
    add_sections(page, [checks, _parts(result), _differences(result)])
    for note in result.notes:
        page.say(f"note: {_line(note)}", "")
    return "\n".join(page.lines) + "\n"


def as_markdown(result: Result) -> str:
    """For a pull request, or the page of a CI job: verdict, notes, facts that differ, checks, parts, runs."""
    lines = [f"### perfdoc gate: {_WORDS.get(result.verdict, result.verdict)}", "", _cell(result.summary)]
    notes = [f"> - {_cell(note)}" for note in result.notes[:_MOST_NOTES]]
    if (more := len(result.notes) - _MOST_NOTES) > 0:
        notes.append(f"> - {more} more")
    lines += ["", *notes] if notes else []
    rows = [
        [word(c.name), word(c.state.upper()), *map(word, _figures(c))]
        for c in result.checks
        if c.value is not None
    ]
    said = [
        f"{c.state.upper()} {c.name}: {c.message}"
        for c in result.checks
        if c.message != result.summary and (c.state == "fail" or (c.state != "pass" and c.value is None))
    ]
    grid = Grid(head=("check", "state", "change or figure", "limit"), align="llrr", rows=rows)
    checks = Section(key="checks", title="Check", sentences=said, grids=[grid])
    lines += markdown_lines([_differences(result), checks, _parts(result)])
    if result.runs:
        more = len(result.runs) - _MOST_RUNS
        runs = ", ".join(_cell(run.source, _NAME) for run in result.runs[:_MOST_RUNS])
        runs += f" and {more} more" if more > 0 else ""
        where = f" of {_cell(result.baseline, _NAME)}" if result.baseline else " beside them"
        lines += [
            "",
            f"Runs: {runs}, against {len(result.baseline_runs)}{where}."
            if result.baseline_runs
            else f"Runs: {runs}.",
        ]
    return "\n".join(lines) + "\n"


def _figures(check: Check) -> list[str]:
    """Its figure and its limit: of a floor as they are, of a comparison as shares."""
    if check.name in KINDS:
        unit = f" {check.unit}" if check.unit else ""
        return [f"{figure(value)}{unit}" for value in (check.value, check.limit)]
    change = "" if check.value is None else f"{100 * check.value:+.1f} %"
    return [change, "" if check.limit is None else per_cent(check.limit)]


def as_junit(result: Result) -> str:
    """One test case a check; what is inconclusive is skipped with its reason, as JUnit has no such state."""
    failures = sum(c.state == "fail" for c in result.checks)
    skipped = sum(c.state == "inconclusive" for c in result.checks)
    counts = {"tests": str(len(result.checks)), "failures": str(failures), "errors": "0"}
    suites = ElementTree.Element("testsuites", {"name": "perfdoc gate", **counts})
    suite = ElementTree.SubElement(
        suites, "testsuite", {"name": "perfdoc gate", **counts, "skipped": str(skipped), "time": "0"}
    )
    for check in result.checks:
        case = ElementTree.SubElement(
            suite, "testcase", {"classname": "perfdoc.gate", "name": check.name, "time": "0"}
        )
        message = _line(check.message)
        if check.state == "fail":
            failure = ElementTree.SubElement(case, "failure", {"message": message, "type": check.name})
            failure.text = as_text(result)
        elif check.state == "inconclusive":
            ElementTree.SubElement(case, "skipped", {"message": message})
        else:
            ElementTree.SubElement(case, "system-out").text = message
    ElementTree.indent(suites)
    body = ElementTree.tostring(suites, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{body}\n'


def as_github(result: Result) -> str:
    """Workflow commands: an annotation for everything that did not pass."""
    shown: list[Check] = [c for c in result.checks if c.state != "pass"] or result.checks[:1]
    lines = [command(_KINDS[c.state], f"perfdoc gate: {c.name}", _line(c.message)) for c in shown]
    return "\n".join(lines) + "\n"


RENDERINGS: dict[str, Callable[[Result], str]] = {
    "text": as_text,
    "markdown": as_markdown,
    "json": lambda result: json_bytes(result).decode(),
    "junit": as_junit,
    "github": as_github,
}


def _line(text: str) -> str:
    """One printable line, whatever a name in it holds."""
    return shorten(text, _LIMIT)


def _cell(text: str, limit: int = _LIMIT) -> str:
    """Text in Markdown: nothing in it is markup."""
    return escape(shorten(text, limit))
