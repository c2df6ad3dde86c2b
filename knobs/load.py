"""Reading the catalogue: one YAML file per topic beside this module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

from perfdoc import kept
from perfdoc.knobs.knob import DIALECTS, Dialect, Former, Knob, Spelling, Type, Value

_FOLDER = Path(__file__).resolve().with_name("catalogue")
_NAMES = kept.table(_FOLDER / "names.yaml")
TOPICS: Mapping[str, str] = MappingProxyType(_NAMES["topics"])
"""File of the catalogue → what it holds, in the order in which people are shown it."""
SHORT_NAMES: Mapping[str, str] = MappingProxyType(_NAMES["short_names"])
"""What people call them, also to any command."""
ELSEWHERE = frozenset({"reinforcement", "plain_pytorch"})
"""Topics of settings that megatron-core and its trainers do not have."""


_DIALECTS: Mapping[str, Dialect] = {dialect: dialect for dialect in DIALECTS}
_TYPES = frozenset(get_args(Type))


def table(name: str) -> Any:
    """A file of the catalogue as plain data."""
    return kept.table(_FOLDER / f"{name}.yaml")


@cache
def catalogue() -> Mapping[str, Knob]:
    """Every knob and fact by canonical id. Raises ValueError for an entry that is wrong."""
    knobs: dict[str, Knob] = {}
    for topic in TOPICS:
        for entry in table(topic):
            knob = _knob(topic, entry)
            if knob.id in knobs:
                raise ValueError(f"{topic}.yaml: {knob.id} is there twice")
            knobs[knob.id] = knob
    return MappingProxyType(knobs)


def _knob(topic: str, entry: dict[str, Any]) -> Knob:
    """One entry. Raises ValueError that names it."""
    try:
        rest = dict(entry)
        spellings = tuple(_spellings(rest.pop("spellings", {})))
        if "default" in rest:
            of_all = dict.fromkeys((s.dialect for s in spellings), rest.pop("default"))
            rest["defaults"] = {**of_all, **rest.get("defaults", {})}
        rest["defaults"] = {_dialect(d): frozen(v) for d, v in rest.get("defaults", {}).items()}
        rest["later"] = {
            _dialect(d): {version: frozen(v) for version, v in later.items()}
            for d, later in rest.get("later", {}).items()
        }
        rest["former"] = tuple(
            Former(**{**f, "current": tuple(f.get("current", ()))}) for f in rest.get("former", ())
        )
        for name in ("choices", "usual", "notes", "depends"):
            rest[name] = tuple(rest.get(name, ()))
        if rest["type"] not in _TYPES:
            raise ValueError(f"type {rest['type']}")
        return Knob(topic=topic, spellings=spellings, **rest)
    except (TypeError, ValueError, KeyError) as error:
        raise ValueError(f"{topic}.yaml: {entry.get('id')}: {error}") from error


def _spellings(spelled: dict[str, Any]) -> Iterator[Spelling]:
    for dialect, names in spelled.items():
        known = _dialect(dialect)
        meant = names if isinstance(names, dict) else {}
        for name in [names] if isinstance(names, str) else names:
            yield Spelling(dialect=known, name=name, means=meant.get(name))


def _dialect(name: str) -> Dialect:
    if (dialect := _DIALECTS.get(name)) is None:
        raise ValueError(f"there is no dialect {name}")
    return dialect


def frozen(value: Any) -> Value:
    """A value of YAML as a setting says it."""
    return tuple(value) if isinstance(value, list) else value
