"""Findings of `perfdoc lint` for CI: annotations of a GitHub workflow, and SARIF 2.1.0 for code scanning."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import msgspec

from perfdoc.knobs.lint.finding import CODES, Finding, Report, Severity
from perfdoc.reports.ci import command
from perfdoc.results.names import PROSE_LIMIT, shorten
from perfdoc.version import __version__

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_KINDS: dict[Severity, Literal["error", "warning", "notice"]] = {
    "error": "error",
    "warning": "warning",
    "note": "notice",
}
_PATH_LIMIT = 300
_MOST = 5_000
"""Results that GitHub's code scanning shows of a run."""


def github(files: Sequence[tuple[str, Report]]) -> str:
    """An annotation a finding, at its line of its file."""
    lines = [
        command(
            _KINDS[f.severity],
            f"perfdoc lint {f.code}",
            _message(f),
            file=shorten(_relative(name), _PATH_LIMIT) if name != "-" else None,
            line=f.line if f.line > 0 else None,
        )
        for name, report in files
        for f in report.findings
    ]
    return "".join(f"{line}\n" for line in lines)


def sarif(files: Sequence[tuple[str, Report]]) -> str:
    """One run of one tool; its rules are all codes, its results the findings of all files."""
    codes = list(CODES)
    results = [_result(name, f, codes.index(f.code)) for name, report in files for f in report.findings]
    driver = {
        "name": "perfdoc lint",
        "version": __version__,
        "rules": [{"id": code, "shortDescription": {"text": CODES[code]}} for code in codes],
    }
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results[:_MOST]}
    data = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return msgspec.json.format(msgspec.json.encode(data), indent=2).decode() + "\n"


def _result(name: str, finding: Finding, index: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": finding.severity,
        "message": {"text": _message(finding)},
    }
    if name != "-":
        place: dict[str, Any] = {
            "artifactLocation": {"uri": quote(_relative(name), safe="/._-~", errors="replace")}
        }
        if finding.line > 0:
            place["region"] = {"startLine": finding.line}
        found["locations"] = [{"physicalLocation": place}]
    return found


def _message(finding: Finding) -> str:
    """What is wrong, what to write and why, in one line."""
    parts = [finding.message.rstrip(".")]
    parts += [f"Write: {finding.instead}"] if finding.instead else []
    parts += [finding.why.rstrip(".")] if finding.why else []
    return shorten(". ".join(parts) + ".", PROSE_LIMIT)


def _relative(name: str) -> str:
    """From the working directory where the file lies below it, as annotations want it."""
    path = Path(name)
    here = Path.cwd()
    if path.is_absolute() and path.is_relative_to(here):
        path = path.relative_to(here)
    return path.as_posix()
