"""Findings about settings together: the constraints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from perfdoc.knobs.check import Violation, evaluate, violations
from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.constraints import CONSTRAINTS
from perfdoc.knobs.knob import DIALECT_TITLES
from perfdoc.knobs.lint.finding import Finding, Severity
from perfdoc.knobs.settings import Setting
from perfdoc.knobs.values import Opaque
from perfdoc.knobs.writing import as_written, like

_CODES: Mapping[str, tuple[str, Severity]] = {
    "forbidden": ("PL301", "error"),
    "ineffective": ("PL302", "warning"),
    "inadvisable": ("PL303", "warning"),
}

_MOST_DEFAULTS = 2
"""Named in a message; more of them say nothing."""


def rule_findings(
    configuration: Configuration, chosen: Mapping[str, Setting], *, resolved: bool = False
) -> Iterator[Finding]:
    """Constraints that the settings break; in a file that a recipe completes, also those that they break
    unless the recipe helps. `resolved`: the file holds every setting, so nobody made those without effect."""
    broken = violations(configuration)
    for violation in broken:
        if not (resolved and violation.constraint and violation.constraint.kind == "ineffective"):
            yield _finding(violation, configuration, chosen)
    if configuration.complete:
        return
    certain = {v.constraint.name for v in broken if v.constraint}
    for constraint in CONSTRAINTS:
        if constraint.needs_companion and constraint.name not in certain:
            violation_ = evaluate(constraint, configuration, assume_defaults=True)
            if violation_ is not None and constraint.subject in chosen:
                yield _finding(violation_, configuration, chosen, note=True)


def _finding(
    violation: Violation, configuration: Configuration, chosen: Mapping[str, Setting], *, note: bool = False
) -> Finding:
    constraint = violation.constraint
    assert constraint is not None
    given = sorted(violation.read & chosen.keys(), key=lambda n: (n != violation.knob, n))
    setting = chosen[given[0]] if given else next(iter(chosen.values()))
    code, severity = _CODES[constraint.kind]
    if constraint.kind == "inadvisable" and violation.assumed:
        severity = "note"  # it rests on what the user did not say
    dialect = configuration.dialect
    others = [
        f"{n}={_shown(chosen[n])} (line {chosen[n].entry.line})" for n in given if chosen[n] is not setting
    ]
    telling = [n for n in sorted(violation.assumed) if n in dict(constraint.fix)] or sorted(violation.assumed)
    defaults = [f"{n} is not set here" for n in telling[:_MOST_DEFAULTS] if len(telling) <= _MOST_DEFAULTS]
    message = violation.words
    if others or defaults:
        message += f" [{', '.join([f'{setting.knob.id}={_shown(setting)}', *others, *defaults])}]"
    written = [as_written(name, value, dialect) for name, value in constraint.fix]
    fix = [
        like(text, setting.entry.name) if setting.entry.form == "path" else text for text in written if text
    ]
    why = {
        "forbidden": "training is refused, or fails silently",
        "ineffective": "the setting changes nothing",
        "inadvisable": "it costs time or memory",
    }[constraint.kind]
    if note:
        where = DIALECT_TITLES.get(dialect or "", "the framework")
        why += f", unless the recipe says otherwise: {where}'s default leaves it off"
    return Finding(
        code=code,
        severity="note" if note else severity,
        line=setting.entry.line,
        key=setting.entry.name,
        knob=violation.knob,
        message=message,
        instead=", ".join(fix),
        why=f"{why} ({constraint.name})",
    )


def _shown(setting: Setting) -> str:
    return "?" if isinstance(setting.value, Opaque) else str(setting.value).lower()
