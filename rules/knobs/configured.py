"""A configuration file as one Configuration, for rules that ask what is set."""

from __future__ import annotations

from pathlib import Path

from perfdoc.rules.knobs.configuration import Configuration
from perfdoc.rules.knobs.knob import Dialect
from perfdoc.rules.knobs.lint.scoped import read_scoped
from perfdoc.rules.knobs.lint.settings import Setting
from perfdoc.rules.knobs.reading.read import read_text
from perfdoc.rules.knobs.values import Opaque


def read_configuration(path: Path, dialect: Dialect | None = None) -> Configuration:
    """What a file (or a run directory's run.json) sets, under canonical ids.

    Of several scopes, such as verl's roles, only what they agree on is known. Raises NotAConfigurationError.
    """
    text, file = read_text(path)
    found = read_scoped(text, file.name, dialect)
    chosen: dict[str, Setting | None] = {}
    for scope in found.scopes.values():
        for knob, setting in scope.items():
            same = knob not in chosen or _value(chosen[knob]) == setting.value
            chosen[knob] = setting if same else None
    values = {
        knob: setting.value
        for knob, setting in chosen.items()
        if setting is not None and not isinstance(setting.value, Opaque)
    }
    return Configuration(
        values=values,
        unknown=frozenset(chosen) - frozenset(values),
        dialect=found.defaults_of,
        complete=found.complete,
    )


def _value(setting: Setting | None) -> object:
    return None if setting is None else setting.value
