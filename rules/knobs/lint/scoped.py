"""A text as settings by scope: what both the linter and a Configuration begin with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfdoc.rules.knobs.knob import Dialect
from perfdoc.rules.knobs.lint.dialects import dialect_of
from perfdoc.rules.knobs.lint.manifest import is_manifest, of_manifest
from perfdoc.rules.knobs.lint.settings import Setting, by_scope, settings_of
from perfdoc.rules.knobs.reading.entry import Entry
from perfdoc.rules.knobs.reading.read import read_entries, takes_more


@dataclass(frozen=True, kw_only=True)
class Scoped:
    """What a text sets."""

    entries: Sequence[Entry]
    """Of a run.json its settings alone."""
    settings: Sequence[Setting]
    scopes: Mapping[str, Mapping[str, Setting]]
    """Scope, such as a role of verl, to canonical id to the setting that holds."""
    dialect: Dialect | None
    reason: str
    """How the dialect is known."""
    defaults_of: Dialect | None
    """Whose defaults hold: a script with Megatron-LM's flags and variables is Megatron-LM's."""
    manifest: bool
    """Whether it is a run.json, which holds every setting."""
    complete: bool
    """Whether what is not set has its default: in a run.json, and in a script of Megatron-LM's flags that
    takes none from elsewhere."""


def read_scoped(text: str, name: str = "", dialect: Dialect | None = None) -> Scoped:
    """`name` is the file's; `dialect` overrides what the names say. Raises NotAConfigurationError."""
    entries = read_entries(text, name)
    detected, reason = (dialect, "--dialect") if dialect is not None else dialect_of(entries)
    manifest = is_manifest(entries)
    if manifest:
        entries = tuple(of_manifest(entries))
    settings = tuple(settings_of(entries, detected))
    flags = any(s.entry.form == "flag" for s in settings)
    defaults_of: Dialect | None = "megatron_lm" if flags and detected in (None, "env") else detected
    return Scoped(
        entries=entries,
        settings=settings,
        scopes=by_scope(settings),
        dialect=detected,
        reason=reason,
        defaults_of=defaults_of,
        manifest=manifest,
        complete=manifest or (defaults_of == "megatron_lm" and flags and not takes_more(text, name)),
    )
