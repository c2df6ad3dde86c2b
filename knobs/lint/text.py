"""`perfdoc lint`: one text in, findings out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from perfdoc.knobs.flags import VERSIONS, Flag, megatron_flags, version_of
from perfdoc.knobs.knob import DIALECT_TITLES, Dialect
from perfdoc.knobs.lint.finding import Finding, Report, finding_at
from perfdoc.knobs.lint.rules import rule_findings
from perfdoc.knobs.lint.settings import name_findings, unknown_findings, value_findings, version_findings
from perfdoc.knobs.naming.meaning import meaning, nearest_flag
from perfdoc.knobs.naming.nearest import SHORTEST_AT_PLACE, nearest
from perfdoc.knobs.reading.entry import Entry
from perfdoc.knobs.reading.file import syntax_of
from perfdoc.knobs.reading.shell import leads_on
from perfdoc.knobs.settings import Setting, configuration_of, read_scoped
from perfdoc.knobs.values import Opaque

_REFUSED = "Megatron-LM stops at what its parser does not know"
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


def flag_findings(entries: Sequence[Entry], settings: Sequence[Setting]) -> Iterator[Finding]:
    """Names that are nearly a flag's, values that are missing, too many or of a wrong kind, and flags of
    another version than the others. A value that is judged as a knob's already is not judged again."""
    judged = {id(s.entry) for s in settings if s.problem}
    knobs = {id(s.entry): s.knob.id for s in settings}
    flags = [e for e in entries if e.form == "flag"]
    version, shown_by = version_of(e.name for e in flags)
    for entry in flags:
        known = megatron_flags().get(entry.name)
        knob = knobs.get(id(entry))
        if known is None:
            yield from _unknown(entry)
        elif known.instead:
            message = f"{entry.name} is refused; {known.instead} has its place"
            yield finding_at(entry, knob, "PL102", "error", message, known.instead, _REFUSED)
        else:
            yield from _values(entry, known, knob, id(entry) in judged)
            if version not in known.versions and version == VERSIONS[-1]:
                message = f"{entry.name} is gone in Megatron-LM {version}, for which {shown_by} is"
                yield finding_at(entry, knob, "PL102", "warning", message, "", _REFUSED)


def _unknown(entry: Entry) -> Iterator[Finding]:
    if meaning(entry, "megatron_lm").how != "unknown":
        return  # a knob's name, or nearly
    near = nearest_flag(entry.name)
    if near:
        message = f"{entry.name} is no known name; {near} is"
        yield finding_at(entry, None, "PL101", "error", message, near, _REFUSED)


def _values(entry: Entry, known: Flag, knob: str | None, judged: bool) -> Iterator[Finding]:
    raw, most = entry.raw, known.most
    texts = (raw,) if isinstance(raw, str) else raw if isinstance(raw, tuple) else ()
    if raw is True and known.takes not in ("0", "*"):
        message = f"{entry.name} takes a value, and none stands behind it"
        yield finding_at(entry, knob, "PL203", "error", message, "", _REFUSED)
    elif most == 0 and texts and entry.command:  # a key of YAML has one
        message = f"{entry.name} takes no value, and {texts[0]} stands behind it"
        yield finding_at(entry, knob, "PL203", "error", message, entry.name, _REFUSED)
    elif entry.extra:
        message = f"{entry.extra[0]} stands behind {entry.name}, which has its value: a flag is missing"
        yield finding_at(entry, knob, "PL203", "error", message, "", _REFUSED)
    elif not judged and (wrong := next((t for t in texts if not _fits(t, known)), None)) is not None:
        wanted = f"one of {', '.join(known.choices)}" if known.choices else _KINDS.get(known.kind, "")
        message = f"{entry.name} takes {wanted}, not {wrong}"
        yield finding_at(entry, knob, "PL201", "error", message, "", _REFUSED)


_KINDS = {"int": "a whole number", "float": "a number"}


def _fits(text: str, flag: Flag) -> bool:
    """Forks of Megatron-LM have more choices: only what is nearly one is a slip."""
    if flag.choices:
        return text in flag.choices or nearest(text, flag.choices, SHORTEST_AT_PLACE) is None
    if flag.kind not in _KINDS or not text or not (text[0].isalnum() or text[0] in "-+."):
        return True  # a placeholder is no value yet
    try:
        int(text) if flag.kind == "int" else float(text)
    except ValueError:
        return False
    return True
