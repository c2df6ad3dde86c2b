"""A linted file as text or JSON, with its summary."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import msgspec

from perfdoc.knobs.knob import Dialect
from perfdoc.knobs.lint.finding import Finding, Report
from perfdoc.knobs.lint.text import lint, title
from perfdoc.knobs.reading.entry import MAX_BYTES, NotAConfigurationError
from perfdoc.knobs.reading.file import as_text, read_text
from perfdoc.results.figures import plural
from perfdoc.results.names import PROSE_LIMIT, shorten

_PATH_LIMIT = 300


class LintError(Exception):
    """A file that cannot be read as a configuration; one line."""


@dataclass(frozen=True, kw_only=True)
class Linted:
    """What to print, and how to end."""

    output: str
    summary: str
    bad: bool
    inconclusive: bool
    """Nothing was found, and what was read says little: no known setting, or names of nobody knows whom."""


def lint_file(config: Path | str, *, dialect: str | None, unknown: bool, as_json: bool) -> Linted:
    """Lint a file, or standard input for `-`. Raises LintError."""
    name = "-" if isinstance(config, str) else str(config)
    try:
        if isinstance(config, str):
            text = as_text(sys.stdin.buffer.read(MAX_BYTES + 1))
        else:
            text, config = read_text(config)
            name = str(config)
        report = lint(text, name, dialect=cast("Dialect | None", dialect), unknown=unknown)
    except NotAConfigurationError as error:
        raise LintError(f"{name}: {error}") from error
    shown = shorten(name, _PATH_LIMIT)
    return Linted(
        output=_json(name, report) if as_json else "".join(_text(shown, f) for f in report.findings),
        summary=_summary(shown, report),
        bad=report.bad,
        inconclusive=not report.bad and (report.known == 0 or report.dialect is None),
    )


def _json(name: str, report: Report) -> str:
    data = {"path": name, **asdict(report)}
    return msgspec.json.format(msgspec.json.encode(data), indent=2).decode() + "\n"


def _text(path: str, finding: Finding) -> str:
    lines = [f"{path}:{finding.line}: {finding.severity} {finding.code} {_line(finding.message)}\n"]
    if finding.instead:
        lines.append(f"    write: {_line(finding.instead)}\n")
    lines.append(f"    why: {_line(finding.why)}\n")
    return "".join(lines)


def _summary(path: str, report: Report) -> str:
    counts = {s: sum(f.severity == s for f in report.findings) for s in ("error", "warning", "note")}
    found = ", ".join(f"{n} {s}{'s' if n > 1 else ''}" for s, n in counts.items() if n) or "nothing found"
    what = f"{path}: {plural(report.entries, 'setting')}, {report.known} of them known"
    if report.known == 0:
        return f"{what}: {found}; no performance knob in it (--all lists the names)"
    if report.dialect is None:
        return f"{what}, dialect unclear ({report.dialect_reason}): {found}; give --dialect"
    return f"{what}, {title(report.dialect)} ({report.dialect_reason}): {found}"


def _line(text: str) -> str:
    return shorten(text, PROSE_LIMIT)
