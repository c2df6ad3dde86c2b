"""How much a test tries: `make test` takes minutes, `make test-all` (PERFDOC_TESTS=all) tries everything."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import pytest

ALL = os.environ.get("PERFDOC_TESTS") == "all"


def tries(usual: int, whole: int) -> int:
    """How many random cases are drawn."""
    return whole if ALL else usual


def some(cases: Iterable[Any], usual: Callable[[Any], bool] | Iterable[Any]) -> list[Any]:
    """The cases of a parametrised test that proves one path over and over: all but the usual ones are slow.

    usual: tells them, or is them.

    >>> [bool(case.marks) for case in some("abc", "b")]
    [True, False, True]
    """
    kept = usual if callable(usual) else [*usual].__contains__
    return [_marked(case, kept) for case in cases]


def _marked(case: Any, kept: Callable[[Any], bool]) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=() if kept(case) else pytest.mark.slow)
