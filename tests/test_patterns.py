"""Patterns that are compiled when they are asked."""

from __future__ import annotations

import re

import pytest

from perfdoc.patterns import later


def test_a_pattern_is_compiled_when_asked_and_says_what_re_says(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    compile_ = re.compile
    monkeypatch.setattr(re, "compile", lambda *given: made.append(given[0]) or compile_(*given))
    word = later(r"(step) (\d+)", re.IGNORECASE)
    assert made == []
    found = word.fullmatch("Step 12")
    assert found is not None
    assert found.groups() == ("Step", "12")
    assert (word.search("steps"), word.sub("-", "step 1, step 2")) == (None, "-, -")
    assert (word.pattern, word.groups) == (r"(step) (\d+)", 2)
    assert set(made) == {r"(step) (\d+)"}


def test_what_is_no_pattern_is_told_when_it_is_asked() -> None:
    wrong = later("(")
    with pytest.raises(re.error):
        wrong.search("")
