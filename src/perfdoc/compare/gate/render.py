"""A result as text, Markdown, JSON, JUnit XML and GitHub annotations, and where it may be written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Literal
from xml.etree import ElementTree

import msgspec

from perfdoc.compare.gate.markdown import (
    MARKS,
    MOST_DIFFERENCES,
    MOST_PARTS,
    as_markdown,
    other_side,
    shown_fact,
)
from perfdoc.compare.gate.result import Check, Result
from perfdoc.profiling.whole_file import is_stream
from perfdoc.reports.ci import command
from perfdoc.results.figures import MS, in_scale, signed
from perfdoc.results.names import shorten


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


_KINDS: Mapping[str, Literal["error", "warning", "notice"]] = MappingProxyType(
    {"fail": "error", "inconclusive": "warning", "warn": "warning", "pass": "notice"}
)
_LIMIT = 400


def as_json(result: Result) -> str:
    """gate.json."""
    return (msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n").decode()


def as_text(result: Result) -> str:
    """For a terminal and a CI log."""
    lines = [f"{result.verdict.upper()}: {_line(result.summary)}", ""]
    lines += [f"{MARKS[c.state]:<13}{c.name:<26}{_line(c.message)}" for c in result.checks]
    if result.grown:
        lines += ["", "where steps changed (ms, mean over runs):"]
        lines += [
            f"  {_line(g.part):<32}{in_scale(g.before_ns, MS):>12} -> {in_scale(g.after_ns, MS):<12}"
            f"{signed(g.after_ns - g.before_ns, MS):>10}"
            for g in result.grown[:MOST_PARTS]
        ]
    if result.differences:
        lines += ["", f"differs from {_line(other_side(result))} in:"]
        lines += [
            f"  {_line(d.fact)}: {shown_fact(d.baseline)} -> {shown_fact(d.here)}"
            for d in result.differences[:MOST_DIFFERENCES]
        ]
        if (more := len(result.differences) - MOST_DIFFERENCES) > 0:
            lines.append(f"  and {more} more")
    lines += [f"note: {_line(note)}" for note in result.notes]
    return "\n".join(lines) + "\n"


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
    "json": as_json,
    "junit": as_junit,
    "github": as_github,
}


def _line(text: str) -> str:
    """One printable line, whatever a name in it holds."""
    return shorten(text, _LIMIT)
