"""Findings about settings together: the constraints that they break."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

from perfdoc.knobs.check import Violation, evaluate, may_read, violations
from perfdoc.knobs.configuration import DERIVED_FROM, Configuration
from perfdoc.knobs.constraints import constraints
from perfdoc.knobs.knob import DIALECT_TITLES
from perfdoc.knobs.lint.finding import Finding, Severity, finding_at
from perfdoc.knobs.load import catalogue
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
    if resolved:
        return
    certain = {v.constraint.name for v in broken if v.constraint}
    for constraint in constraints():
        if configuration.complete and not _variables() & may_read(constraint):
            continue  # the environment alone may have come from elsewhere
        if constraint.needs_companion and constraint.name not in certain:
            violation_ = evaluate(constraint, configuration, assume_defaults=True)
            if violation_ is not None and constraint.subject in chosen:
                yield _finding(violation_, configuration, chosen, note=True)


@cache
def _variables() -> frozenset[str]:
    return frozenset(knob.id for knob in catalogue().values() if knob.spelled("env"))


def _finding(
    violation: Violation, configuration: Configuration, chosen: Mapping[str, Setting], *, note: bool = False
) -> Finding:
    constraint = violation.constraint
    assert constraint is not None
    given = sorted(violation.read & chosen.keys(), key=lambda n: _told(n, violation))
    setting = chosen[given[0]] if given else next(iter(chosen.values()))
    code, severity = _CODES[constraint.kind]
    until = dict(constraint.until)
    newer = "" if configuration.version and configuration.dialect in until else until.get("megatron_core", "")
    if note:  # a command that is whole runs where its variables are, or they are in no file
        stops = configuration.complete and constraint.kind == "forbidden"
        severity = "warning" if stops and not (constraint.severity or constraint.gpu_decides) else "note"
    elif constraint.severity:
        severity = constraint.severity
    elif newer:
        severity = "note"
    elif constraint.gpu_decides or (constraint.kind == "inadvisable" and violation.assumed):
        severity = "note"  # it rests on what the user did not say
    dialect = configuration.dialect
    others = [f"{_shown(chosen[n])} (line {chosen[n].entry.line})" for n in given if chosen[n] is not setting]
    telling = [n for n in sorted(violation.assumed) if n in (violation.knob, *dict(constraint.fix))]
    telling = telling or sorted(violation.assumed)
    defaults = [
        f"{next((s.name for s in catalogue()[n].spelled(dialect or '')), n)} is not set here"
        for n in telling[:_MOST_DEFAULTS]
        if len(telling) <= _MOST_DEFAULTS
    ]
    message = f"{violation.words} (up to megatron-core {newer})" if newer else violation.words
    if others or defaults:
        message += f" [{', '.join([_shown(setting), *others, *defaults])}]"
    written = [as_written(name, value, dialect) for name, value in constraint.fix]
    fix = [
        like(text, setting.entry.name) if setting.entry.form == "path" else text for text in written if text
    ]
    why = {
        "forbidden": "training is refused, or fails silently",
        "ineffective": "the setting changes nothing",
        "inadvisable": "it costs time or memory",
    }[constraint.kind]
    if constraint.gpu_decides:
        why += " on the GPUs that need it"
    if note and violation.assumed & _variables():
        why += ", unless the environment has it from elsewhere"
    elif note:
        where = DIALECT_TITLES.get(dialect or "", "the framework")
        why += f", unless the recipe says otherwise: {where}'s default leaves it off"
    why = f"{why} ({constraint.name})"
    return finding_at(setting.entry, violation.knob, code, severity, message, ", ".join(fix), why)


def _told(name: str, violation: Violation) -> tuple[bool, bool, bool, int, str]:
    """In order of blame: the subject, what it follows from, knobs before facts, as the rule names them."""
    return (
        name != violation.knob,
        name not in DERIVED_FROM.get(violation.knob, ()),
        catalogue()[name].kind == "fact",
        violation.words.find(name) % (len(violation.words) + 1),
        name,
    )


def _shown(setting: Setting) -> str:
    """In the user's own words."""
    value = "?" if isinstance(setting.value, Opaque) else str(setting.value).lower()
    return f"{setting.entry.name}={value}"
