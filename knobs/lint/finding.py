"""One thing that is wrong with a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from perfdoc.knobs.reading.entry import Entry
from perfdoc.knobs.settings import Setting
from perfdoc.records import dataclass

Severity = Literal["error", "warning", "note"]
"""`error`: refused, or lost without a word. `warning`: does nothing, or costs something. `note`: would be one
of them unless a recipe outside the file says otherwise."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A finding of `perfdoc lint`."""

    code: str
    severity: Severity
    line: int
    key: str
    """As it is written."""
    knob: str | None
    """Canonical id."""
    message: str
    instead: str
    """What to write, in the file's own dialect; empty where that is the user's to decide."""
    why: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """All of a file."""

    dialect: str | None
    """Of its paths or flags; None where it could not be told."""
    dialect_reason: str
    entries: int
    known: int
    """Entries that set a knob, or a fact that constraints read."""
    values: Mapping[str, object]
    """What the file sets, by canonical id, where it can be told."""
    findings: tuple[Finding, ...]

    @property
    def bad(self) -> bool:
        """Whether something is certainly wrong."""
        return any(f.severity != "note" for f in self.findings)


def finding_of(
    setting: Setting, code: str, severity: Severity, message: str, instead: str, why: str
) -> Finding:
    """What is wrong with one setting."""
    return finding_at(setting.entry, setting.knob.id, code, severity, message, instead, why)


def finding_at(
    entry: Entry, knob: str | None, code: str, severity: Severity, message: str, instead: str, why: str
) -> Finding:
    """What is wrong with one entry, perhaps no knob's; of a variable a note, unless it is wrong anywhere."""
    return Finding(
        code=code,
        severity="note" if entry.bare and code != "PL101" else severity,
        line=entry.line,
        key=entry.name,
        knob=knob,
        message=message,
        instead=instead,
        why=why,
    )


def last_part(name: str) -> str:
    """A path's last name."""
    return name.rpartition(".")[2]
