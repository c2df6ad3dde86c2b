"""Answers: JSON of bounded length, in which no name is more than a string."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from perfdoc.reports.inert import inert
from perfdoc.reports.llm import LIMIT, QUOTED
from perfdoc.results.names import prose

_TEXT = 1200
_DEEPEST = 12


def plain(value: Any, depth: int = 0) -> Any:
    """A value as JSON has it, every text in it and every key inert."""
    if depth > _DEEPEST:
        return "…"
    if isinstance(value, str):
        return inert(prose(value, _TEXT), _TEXT)
    if isinstance(value, Mapping):
        return {inert(str(key), 160): plain(held, depth + 1) for key, held in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(held, depth + 1) for held in value]
    return value if value is None or isinstance(value, bool | int | float) else inert(str(value), _TEXT)


def answer(document: Mapping[str, Any], *lists: str, limit: int = LIMIT) -> str:
    """The document, its texts inert, as JSON of at most `limit` characters.

    lists: keys of lists whose last rows give way, the first-named first; `left_out` counts them.
    ValueError where all of them are empty and it is still too long.
    """
    found = {"note": QUOTED, **plain(document)}
    left_out: dict[str, int] = {}
    while len(text := _written(found, left_out)) > limit:
        name = next((name for name in lists if found.get(name)), None)
        if name is None:
            raise ValueError("the answer is too long: ask for less.")
        over = max(1, len(found[name]) * (len(text) - limit) // (4 * len(text)))
        found[name] = found[name][:-over]
        left_out[name] = left_out.get(name, 0) + over
    return text


def _written(found: Mapping[str, Any], left_out: Mapping[str, int]) -> str:
    whole = {**found, "left_out": left_out} if left_out else found
    return json.dumps(whole, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=str)
