"""Reading the entries: one YAML file per topic beside this module."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from perfdoc.rules.advice.entry import TOPICS, Entry

_FOLDER = Path(__file__).resolve().parent
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@cache
def entries() -> Mapping[str, Entry]:
    """Every entry by id, topic after topic. Raises ValueError for one that is wrong."""
    found: dict[str, Entry] = {}
    for topic in TOPICS:
        file = _FOLDER / f"{topic}.yaml"
        if not file.exists():
            continue
        for row in yaml.load(file.read_text(encoding="utf-8"), Loader=_LOADER) or ():
            try:
                entry = Entry(topic=topic, **row)
            except TypeError as error:
                raise ValueError(f"{file.name}: {row}: {error}") from error
            if entry.id in found:
                raise ValueError(f"{file.name}: {entry.id} is there twice")
            found[entry.id] = entry
    return MappingProxyType(found)
