"""Linted files as text, JSON, and annotations of a GitHub workflow."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from perfdoc.cli.streams import columns, json_text
from perfdoc.knobs.knob import Dialect
from perfdoc.knobs.lint.finding import Finding, Report, Severity
from perfdoc.knobs.lint.text import lint, title
from perfdoc.knobs.reading.entry import MAX_BYTES, NotAConfigurationError
from perfdoc.knobs.reading.file import as_text, read_text
from perfdoc.records import dataclass
from perfdoc.reports.annotations import command
from perfdoc.reports.terminal import paragraph
from perfdoc.results.figures import plural
from perfdoc.results.names import PROSE_LIMIT, shorten

_PATH_LIMIT = 300


@dataclass(frozen=True, kw_only=True)
class Linted:
    """One file, and what was found in it."""

    name: str
    """As it was given, or as it was found in a run directory; - for standard input."""
    report: Report

    @property
    def summary(self) -> str:
        """What was read and found, in a line."""
        path, report = shorten(self.name, _PATH_LIMIT), self.report
        counts = {s: sum(f.severity == s for f in report.findings) for s in ("error", "warning", "note")}
        found = ", ".join(f"{n} {s}{'s' if n > 1 else ''}" for s, n in counts.items() if n) or "nothing found"
        what = f"{path}: {plural(report.entries, 'setting')}, {report.known} of them known"
        if report.known == 0 and report.entries == 0:
            return f"{what}: {found}; {report.dialect_reason}"
        if report.known == 0:
            return f"{what}: {found}; no performance knob in it (--all lists the names)"
        if report.dialect is None:
            return f"{what}, dialect unclear ({report.dialect_reason}): {found}; give --dialect"
        return f"{what}, {title(report.dialect)} ({report.dialect_reason}): {found}"

    @property
    def inconclusive(self) -> bool:
        """Nothing was found, and what was read says little: no known setting, or names of nobody knows
        whom."""
        return not self.report.bad and (self.report.known == 0 or self.report.dialect is None)


def lint_file(config: Path | str, *, dialect: Dialect | None, unknown: bool) -> Linted:
    """Lint a file, or standard input for `-`. Raises ValueError, one line."""
    name = "-" if isinstance(config, str) else str(config)
    try:
        if isinstance(config, str):
            text = as_text(sys.stdin.buffer.read(MAX_BYTES + 1))
        else:
            text, config = read_text(config)
            name = str(config)
        report = lint(text, name, dialect=dialect, unknown=unknown)
    except NotAConfigurationError as error:
        raise ValueError(f"{name}: {error}") from error
    return Linted(name=name, report=report)


def as_lines(done: Sequence[Linted]) -> str:
    """File, line, what is wrong, what to write, why; broken on a terminal, for programs a line each."""
    width = columns() if sys.stdout.isatty() else sys.maxsize
    return "".join(
        f"{line}\n"
        for one in done
        for finding in one.report.findings
        for line in _lines(shorten(one.name, _PATH_LIMIT), finding, width)
    )


def as_json(done: Sequence[Linted]) -> str:
    """One object for one file, a list of them for several."""
    found = [{"path": one.name, **asdict(one.report)} for one in done]
    data = found[0] if len(found) == 1 else found
    return json_text(data)


RENDERINGS: Mapping[str, Callable[[Sequence[Linted]], str]] = MappingProxyType(
    {
        "text": as_lines,
        "json": as_json,
        "github": lambda done: github([(one.name, one.report) for one in done]),
    }
)


def _lines(path: str, finding: Finding, width: int) -> Iterator[str]:
    place = f"{path}:{finding.line}:"
    said = f"{finding.severity} {finding.code} {shorten(finding.message, PROSE_LIMIT)}"
    if len(place) > width:  # whole, so that a terminal opens it
        yield place
        yield from paragraph(said, width=width, indent="    ")
    else:
        yield from paragraph(f"{place} {said}", width=width, hang="    ")
    if finding.instead:
        yield f"    write: {shorten(finding.instead, PROSE_LIMIT)}"
    yield from paragraph(f"why: {shorten(finding.why, PROSE_LIMIT)}", width=width, indent="    ")


_KINDS: dict[Severity, Literal["error", "warning", "notice"]] = {
    "error": "error",
    "warning": "warning",
    "note": "notice",
}


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
