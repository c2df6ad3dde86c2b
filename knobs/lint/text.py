"""`perfdoc lint`: one text in, findings out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from perfdoc.knobs.knob import DIALECT_TITLES, Dialect
from perfdoc.knobs.lint.finding import Finding, Report
from perfdoc.knobs.lint.flags import flag_findings
from perfdoc.knobs.lint.rules import rule_findings
from perfdoc.knobs.lint.settings import name_findings, unknown_findings, value_findings, version_findings
from perfdoc.knobs.reading.file import syntax_of
from perfdoc.knobs.reading.shell import leads_on
from perfdoc.knobs.settings import configuration_of, read_scoped
from perfdoc.knobs.values import Opaque

MAX_FINDINGS = 500


def lint(text: str, name: str = "", *, dialect: Dialect | None = None, unknown: bool = False) -> Report:
    """What is wrong with a configuration.

    `name` is the file's (its ending says how it is written). `dialect` overrides what the names say.
    `unknown` reports names that nobody knows too, of which every framework has hundreds that are no knobs.
    Raises NotAConfigurationError.
    """
    scoped = read_scoped(text, name, dialect)
    entries, settings, scopes, detected = scoped.entries, scoped.settings, scoped.scopes, scoped.dialect
    findings = list(name_findings(settings, detected))
    findings += version_findings(settings, detected)
    findings += value_findings(settings, detected, text.splitlines(), entries)
    if scoped.defaults_of == "megatron_lm" and not scoped.manifest:
        findings += flag_findings(entries, settings)
    for chosen in scopes.values():
        findings += rule_findings(configuration_of(chosen, scoped), chosen, resolved=scoped.manifest)
    if all(s.entry.form == "env" for s in settings) and syntax_of(text, name) == "shell":
        findings += _led_on(text)
    if unknown:
        findings += unknown_findings(entries, settings)
    values = {
        f"{scope}:{k}" if scope and len(scopes) > 1 else k: s.value
        for scope, chosen in scopes.items()
        for k, s in chosen.items()
        if not isinstance(s.value, Opaque)
    }
    return Report(
        dialect=detected,
        dialect_reason=scoped.reason,
        entries=len(entries),
        known=len(settings),
        values=values,
        findings=tuple(_sorted(findings)),
    )


def _led_on(text: str) -> Iterator[Finding]:
    """Where a script hands on to what is not in it, of one that sets nothing itself."""
    for line, run in islice(leads_on(text), 1):
        yield Finding(
            code="PL307",
            severity="note",
            line=line,
            key=run,
            knob=None,
            message=f"{run} is run here, and what it sets is not in this file",
            instead="",
            why="give that script, or the command line as the program gets it",
        )


def _sorted(findings: Sequence[Finding]) -> Iterator[Finding]:
    """By line, each once, and not without end."""
    seen: set[tuple[int, str, str, str]] = set()
    for finding in sorted(findings, key=lambda f: (f.line, f.code, f.key, f.message)):
        key = (finding.line, finding.code, finding.key, finding.message)
        if key not in seen and len(seen) < MAX_FINDINGS:
            seen.add(key)
            yield finding


def title(dialect: str | None) -> str:
    """A dialect's name for people."""
    return DIALECT_TITLES.get(dialect or "", "no framework in particular")
