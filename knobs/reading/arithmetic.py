"""Sums of a shell script, of four operators: nothing is run."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from operator import add, floordiv, mul, sub
from typing import Any

SUM = re.compile(r"\$\(\(([\w\s$*/+{}()-]{1,200})\)\)")
_MAX_DIGITS = 18
"""Of a number that goes in or comes out: no setting has more."""
_OPERATORS = {ast.Add: add, ast.Sub: sub, ast.Mult: mul, ast.Div: floordiv}
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
        number = _value(ast.parse(" ".join(tree), mode="eval").body)
    except (SyntaxError, AttributeError, KeyError, ZeroDivisionError, RecursionError):
        return value
    return str(number) if abs(number) < 10**_MAX_DIGITS else value


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MAX_DIGITS


def _value(node: Any) -> int:
    """Of whole numbers and the four operators; AttributeError or KeyError where there is anything else."""
    if isinstance(node, ast.Constant):
        return int(node.value)
    return int(_OPERATORS[type(node.op)](_value(node.left), _value(node.right)))
