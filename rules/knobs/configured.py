"""A configuration file as one Configuration, for rules that ask what is set."""

from __future__ import annotations

from pathlib import Path

from perfdoc.rules.knobs.configuration import Configuration
from perfdoc.rules.knobs.knob import Dialect
from perfdoc.rules.knobs.lint.dialects import dialect_of
from perfdoc.rules.knobs.lint.manifest import is_manifest, of_manifest
from perfdoc.rules.knobs.lint.settings import Setting, by_scope, settings_of
from perfdoc.rules.knobs.reading.read import read_entries, read_text
from perfdoc.rules.knobs.values import Opaque


def read_configuration(path: Path, dialect: Dialect | None = None) -> Configuration:
    """What a file (or a run directory's run.json) sets, under canonical ids.

    Of several scopes, such as verl's roles, only what they agree on is known. Raises NotAConfigurationError.
    """
    text, file = read_text(path)
    entries = read_entries(text, file.name)
    found = dialect or dialect_of(entries)[0]
    manifest = is_manifest(entries)
    if manifest:
        entries = tuple(of_manifest(entries))
    scopes = list(by_scope(tuple(settings_of(entries, found))).values())
    chosen: dict[str, Setting | None] = {}
    for scope in scopes:
        for knob, setting in scope.items():
            same = knob not in chosen or _value(chosen[knob]) == setting.value
            chosen[knob] = setting if same else None
    values = {
        knob: setting.value
        for knob, setting in chosen.items()
        if setting is not None and not isinstance(setting.value, Opaque)
    }
    return Configuration(
        values=values, unknown=frozenset(chosen) - frozenset(values), dialect=found, complete=manifest
    )


def _value(setting: Setting | None) -> object:
    return None if setting is None else setting.value
