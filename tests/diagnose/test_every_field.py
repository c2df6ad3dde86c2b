"""What is measured is published: a field with a default that nobody fills would stay empty for ever."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from perfdoc.diagnose import diagnosis
from perfdoc.diagnose.ranks import AS_MEASURED, rank_of
from perfdoc.results import Analyses, Rank


@pytest.mark.parametrize(
    ("made_in", "kind", "elsewhere"),
    [(rank_of, Rank, AS_MEASURED), (diagnosis._analyses, Analyses, {"roles"})],
)
def test_every_field_is_given(made_in: Callable[..., Any], kind: type, elsewhere: set[str]) -> None:
    calls = [
        node
        for node in ast.walk(ast.parse(inspect.getsource(made_in)))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == kind.__name__
    ]
    assert len(calls) == 1
    given = {keyword.arg for keyword in calls[0].keywords if keyword.arg is not None}
    assert given | elsewhere == {f.name for f in fields(kind)}
