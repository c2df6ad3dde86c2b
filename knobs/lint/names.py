"""Findings about names: misspelt, renamed, in the wrong place, unknown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfdoc.knobs.knob import DIALECT_TITLES, Dialect
from perfdoc.knobs.lint.finding import Finding, finding_of
from perfdoc.knobs.naming.places import BRIDGE_CLASSES
from perfdoc.knobs.reading.entry import Entry
from perfdoc.knobs.settings import Setting
from perfdoc.knobs.values import Opaque
from perfdoc.knobs.writing import as_written, at_path, like

_SETTABLE_NOWHERE = ("megatron_core", "megatron_bridge", "megatron_lm", "nemo")
"""Frameworks that work out for themselves what is derived."""
_LOST = "an unknown name is refused or silently ignored; either way it sets nothing"


def name_findings(settings: Sequence[Setting], dialect: Dialect | None) -> Iterator[Finding]:
    """What is wrong with the names of settings."""
    for setting in settings:
        found, entry, own = setting.meaning, setting.entry, _dialect(setting, dialect)
        knob = setting.knob
        if found.how == "former" and found.former is not None:
            renamed = found.former.kind == "renamed"
            yield finding_of(
                setting,
                "PL102" if renamed else "PL101",
                "warning" if renamed else "error",
                f"{_last(entry.name)} {'is the old name of' if renamed else 'does not exist; it means'} "
                f"{_last(found.instead)}",
                _instead(setting, own),
                found.former.why,
            )
        elif found.how == "near":
            message = f"{_last(entry.name)} is no known name; {_last(found.instead)} is"
            yield finding_of(setting, "PL101", "error", message, _instead(setting, own), _LOST)
        elif found.how == "misplaced":
            message = f"{_last(entry.name)} is not read at {entry.name.rpartition('.')[0] or entry.name}"
            why = f"{DIALECT_TITLES.get(own or '', 'this framework')} has it as {found.instead}"
            yield finding_of(setting, "PL103", "error", message, _instead(setting, own), why)
        elif found.how == "misnamed":
            written = entry.name.rpartition(".")[0].rpartition(".")[2]
            message = f"{written} is not a class with {_last(entry.name)}"
            yield finding_of(setting, "PL103", "error", message, _instead(setting, own), _owners(found.path))
        elif found.how == "absent" and knob.kind == "knob":
            where = DIALECT_TITLES.get(own or "", "this framework")
            why = knob.notes[0] if knob.notes else f"{where} decides it by other settings"
            message = f"{where} has no setting {_last(entry.name)}"
            yield finding_of(setting, "PL105", "warning", message, "", why)
        elif not knob.spellings and knob.kind == "knob" and own in _SETTABLE_NOWHERE:
            message = f"{knob.id} is derived; no framework has it as a setting"
            yield finding_of(setting, "PL105", "note", message, "", knob.what)
        if knob.deprecated and own != "nemo" and setting.value is not False:
            message = f"{knob.id} is going away"
            yield finding_of(setting, "PL104", "warning", message, knob.deprecated, knob.what)


def unknown_findings(entries: Sequence[Entry], settings: Sequence[Setting]) -> Iterator[Finding]:
    """Every name that means no knob, as notes."""
    known = {id(s.entry) for s in settings}
    for entry in entries:
        if id(entry) not in known and not entry.bare:
            yield Finding(
                code="PL100",
                severity="note",
                line=entry.line,
                key=entry.name,
                knob=None,
                message=f"{entry.name} is not a knob of the catalogue, nor similar to one",
                instead="",
                why="frameworks have hundreds of settings that are not performance knobs",
            )


def _instead(setting: Setting, dialect: Dialect | None) -> str:
    """The right name, with the value where it is known and the names of values have not changed."""
    if isinstance(setting.value, Opaque):
        return setting.meaning.instead
    if setting.meaning.how in ("misnamed", "near") and setting.entry.form == "path":
        return like(at_path(setting.meaning.instead, setting.value), setting.entry.name)
    written = as_written(setting.knob.id, setting.value, dialect) or setting.meaning.instead
    return like(written, setting.entry.name) if setting.entry.form == "path" else written


def _dialect(setting: Setting, dialect: Dialect | None) -> Dialect | None:
    return {"env": "env", "flag": "megatron_lm"}.get(setting.entry.form, dialect)  # type: ignore[return-value]


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _owners(path: str) -> str:
    place = path.rpartition(".")[0]
    classes = [c for c, p in BRIDGE_CLASSES.items() if p == place and "Provider" in c]
    if place == "PipelineOverlapCfg":
        return "PipelineOverlapCfg has it (RingExchangeOverlapCfg and BulkOverlapCfg have parts of it)"
    return f"{path} belongs to {', '.join(classes) or place}"
