"""The layout of diagnosis.json."""

from __future__ import annotations

import doctest
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoc.results import diagnosis as serial
from perfdoc.results import from_json, to_json
from tests.reports import build_timeline, hostile
from tests.reports.fill import with_text

NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.none()
TEXTS = st.text() | st.sampled_from(["[\n  1,\n  2\n]", "[ 1, 2 ]", '"[\n1\n]'])
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    NUMBERS | TEXTS | st.booleans(), lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner)
)


def test_the_example() -> None:
    assert doctest.testmod(serial).failed == 0


@given(ANYTHING)
def test_it_changes_no_value(value: Any) -> None:
    told = serial.laid_out(json.dumps(value).encode()).decode()
    assert json.loads(told) == value


@given(st.lists(NUMBERS, min_size=1))
def test_numbers_are_on_one_line(numbers: list[Any]) -> None:
    told = serial.laid_out(json.dumps({"a": numbers, "b": [["x"], *numbers]}).encode()).decode()
    assert told.count("\n") == 7 + len(numbers)


def test_the_columns_of_a_timeline_are_a_line_each() -> None:
    made = build_timeline.with_timeline(ranks=2, segments=700)
    told = to_json(made)
    assert from_json(told) == made
    assert told.count(b"\n") < 1_500


@pytest.mark.parametrize("text", hostile.TEXTS, ids=range(len(hostile.TEXTS)))
def test_hostile_strings_stay_as_they_are(text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    made = with_text(replace(build_timeline.with_timeline(), rules=[]), text)
    assert from_json(to_json(made)) == made
