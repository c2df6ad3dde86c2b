"""Patterns of ours, compiled once for all runs."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from perfdoc import patterns
from perfdoc.analyzers.kernel_class.rules import RULES
from perfdoc.patterns import pattern_of


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place to keep patterns in."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(patterns, "_PLACE", tmp_path / "kept")
    monkeypatch.setattr(patterns, "_NEW", set())
    _forget()
    return patterns._PLACE


def _forget() -> None:
    """As a new process begins."""
    patterns._known.cache_clear()
    patterns._pattern_of.cache_clear()


OURS = [
    (r"(?P<word>step) (?P<number>\d+)|(a)?", re.IGNORECASE),
    (rb"\A[\x00-\x1f]+", 0),
    (r"(?i)^[a-zäß]{2,7}?\b.(?<!x)", re.DOTALL | re.MULTILINE),
    *((rule.name, 0) for rule in RULES),
]


def test_a_pattern_is_compiled_once_and_is_what_re_makes_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [pattern_of(*given) for given in OURS]
    assert pattern_of(*OURS[0]) is made[0]
    patterns.keep()
    _forget()
    monkeypatch.setattr(patterns, "_parts", None)  # nothing is compiled again
    for given, first in zip(OURS, made, strict=True):
        again, expected = pattern_of(*given), re.compile(*given)
        assert again == first == expected  # of the same program and flags
        assert again is not first
        assert again.groupindex == expected.groupindex
    found = pattern_of(*OURS[0]).fullmatch("Step 12")
    assert found is not None
    assert (found.groupdict(), found.lastgroup) == ({"word": "Step", "number": "12"}, "number")


_KNOWN = {("a+", 0): (32, b"\xff" * 8, 0, {}, (None,))}
"""A program that is none."""
_OTHERS = {("a+", 0): patterns._parts("b+", 0)}
"""One that does something else, as another Python's may."""


@pytest.mark.parametrize(
    ("mark", "kept"), [("3.9", _OTHERS), (None, _KNOWN), (None, [1, 2]), (None, {("a+", 0): ()})]
)
def test_what_is_kept_of_another_python_or_is_damaged_does_not_count(
    place: Path, mark: str | None, kept: object
) -> None:
    patterns.kept.write(place, mark or patterns._MARK, kept)
    assert pattern_of("a+") == re.compile("a+")
    assert pattern_of("a+").fullmatch("aa")


def test_another_re_compiles_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "_RE", object())
    assert pattern_of("a+") == re.compile("a+")


def test_nothing_is_written_where_nothing_is_new(place: Path) -> None:
    patterns.keep()
    assert not place.exists()
    pattern_of("a+")
    patterns.keep()
    before = place.stat().st_mtime_ns
    patterns.keep()
    assert place.stat().st_mtime_ns == before


def test_what_is_no_pattern_is_told() -> None:
    with pytest.raises(re.error):
        pattern_of("(")
