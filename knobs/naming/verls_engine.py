"""The engine of a job of verl by what chooses it: model_engine, or formerly the name of the configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfdoc.knobs.reading.entry import Entry
from perfdoc.knobs.values import OPAQUE, Raw

_STRATEGY, _CHOICE, _NAME = "actor_rollout_ref.actor.strategy", "model_engine", "--config-name"
_OF_CHOICE = {"dp": "fsdp"}
"""A choice takes the files of that name, each of which names its strategy; the others are called alike."""
_NAMED = ("megatron", "veomni")


def with_engine(entries: Sequence[Entry]) -> Iterator[Entry]:
    """The entries of a job of verl, with one that names the strategy in place of each that chooses it.

    A strategy that is named beside them holds where the choice does not say another; two that differ leave
    it unknown.
    """
    named = {str(e.raw) for e in entries if e.form == "path" and e.name.endswith(_STRATEGY)}
    files = [e for e in entries if e.form == "flag" and e.name == _NAME]
    others = any(_of_name(e.raw) is None for e in files)
    for number, entry in enumerate(entries, start=1):
        engine: Raw | None = None
        if entry.form == "path" and entry.name == _CHOICE:
            engine = _of_choice(entry.raw)
        elif entry.form == "flag" and entry.name == _NAME:
            engine = _of_name(entry.raw)
            engine = OPAQUE if engine is not None and others else engine
        if engine is None:
            yield entry
        elif not named or (engine is not OPAQUE and not (engine == "fsdp" and named <= {"fsdp", "fsdp2"})):
            # Of a command line of its own: no choice overwrites another.
            yield Entry(form="path", name=_STRATEGY, raw=engine, line=entry.line, command=-number)


def _of_choice(raw: Raw) -> Raw:
    return _OF_CHOICE.get(raw, raw) if isinstance(raw, str) else OPAQUE


def _of_name(raw: Raw) -> Raw | None:
    """None for a name that says nothing of an engine."""
    if not isinstance(raw, str):
        return OPAQUE
    return next((engine for engine in _NAMED if engine in raw), None)
