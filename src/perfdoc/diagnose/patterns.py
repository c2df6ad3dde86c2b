"""How long a user's regular expression may take on a hostile name, by its form alone."""

from __future__ import annotations

import math
import re
from typing import Any

MAX_BITS = 32.0
"""A pattern may try 2^32 ways on the worst name at the worst, and does so far faster than it sounds: most of
them are ruled out together. Four open-ended repeats and some alternatives."""
_OPEN_BITS = 7.0
"""Of an open-ended repeat: it may end at each of the 128 characters that are matched."""
_REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")


class _NestedError(ValueError):
    """A repeat holds something that can match in several ways: the ways multiply with every round."""


def too_slow(text: str) -> str:
    """Why a regular expression may take for ever on a name; empty where it does not.

    >>> too_slow("layer.*(fwd|bwd)"), too_slow("(a+)+$")
    ('', 'it repeats what can match in several ways')
    """
    parser: Any = getattr(re, "_parser", None)
    if parser is None:  # a Python that hides it elsewhere
        return ""
    try:
        bits = _bits(parser.parse(text), repeated=False)
    except _NestedError:
        return "it repeats what can match in several ways"
    except RecursionError:
        return "it is nested too deep"
    return "" if bits <= MAX_BITS else "it has too many open-ended repeats and alternatives"


def _bits(part: Any, *, repeated: bool) -> float:
    """Logarithm of the number of ways that a parsed expression can match one text. repeated: it stands in a
    repeat, where there may be one way alone. Raises _NestedError."""
    total = 0.0
    for operator, argument in part:
        name = str(operator)
        own = 0.0
        inner: list[Any] = []
        inside = repeated
        if name in _REPEATS:
            low, high, body = argument
            own = min(math.log2(int(high) - int(low) + 1), _OPEN_BITS)
            inner, inside = [body], repeated or int(high) > 1
        elif name == "BRANCH":
            inner = list(argument[1])
            own = math.log2(len(inner))
        elif name in ("SUBPATTERN", "ATOMIC_GROUP", "ASSERT", "ASSERT_NOT", "GROUPREF_EXISTS"):
            parts = argument if isinstance(argument, tuple) else (argument,)
            inner = [p for p in parts if hasattr(p, "data")]
        if own and repeated:
            raise _NestedError
        total += own + sum(_bits(p, repeated=inside) for p in inner)
    return total
