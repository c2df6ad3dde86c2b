"""Sums of a shell script, by a parser of four operators: nothing is run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

SUM = re.compile(r"\$\(\(([\w\s$*/+{}()-]{1,200})\)\)")
_MAX_DIGITS = 18
"""Of a number that goes in or comes out: no setting has more."""
_PART = re.compile(r"\d{1,12}|[A-Za-z_]\w*|[-+*/()]")


def computed(value: str, known: Mapping[str, str | None]) -> str:
    """`$((1024 * n))` as a number, where all in it is known; as it is otherwise."""
    whole = SUM.fullmatch(value)
    if whole is None:
        return value
    parts = _PART.findall(re.sub(r"[${}]", " ", whole[1]))
    texts = [part if not part[:1].isalpha() and part[:1] != "_" else known.get(part) for part in parts]
    tree = [text for text in texts if text and (text in "+-*/()" or _is_number(text))]
    if len(tree) < len(texts):
        return value
    try:
        number, rest = _sum(tree, 0)
    except (IndexError, ValueError, ZeroDivisionError, RecursionError):
        return value
    return str(number) if rest == len(tree) and abs(number) < 10**_MAX_DIGITS else value


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MAX_DIGITS


def _sum(parts: Sequence[str], position: int) -> tuple[int, int]:
    total, position = _product(parts, position)
    while position < len(parts) and parts[position] in "+-":
        more, after = _product(parts, position + 1)
        total, position = (total + more if parts[position] == "+" else total - more), after
    return total, position


def _product(parts: Sequence[str], position: int) -> tuple[int, int]:
    total, position = _factor(parts, position)
    while position < len(parts) and parts[position] in "*/":
        more, after = _factor(parts, position + 1)
        total, position = (total * more if parts[position] == "*" else total // more), after
    return total, position


def _factor(parts: Sequence[str], position: int) -> tuple[int, int]:
    if parts[position] != "(":
        return int(parts[position]), position + 1
    total, position = _sum(parts, position + 1)
    if parts[position] != ")":
        raise ValueError("a bracket is open")
    return total, position + 1
