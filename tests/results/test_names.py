from __future__ import annotations

import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoc.results.names import base_name, natural, pieces, prose, shorten
from tests.reports.hostile import HOSTILE


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("gemm<128>(int)", "gemm<128>(int)"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\u202eb", "a\\u202eb"),
        ("half \ud83d pair", "half \\ud83d pair"),
        ("tab\tnew\n", "tab\\x09new\\x0a"),
        ("\u200b\ufeff\u200f\u061c", "\\u200b\\ufeff\\u200f\\u061c"),
        ("\x9b2J", "\\x9b2J"),
        ("\U000e0041", "\\U000e0041"),
        ("naïve Ω 核", "naïve Ω 核"),
        ("", ""),
    ],
)
def test_what_cannot_be_seen_is_spelled_out(text: str, shown: str) -> None:
    assert shorten(text) == shown


def test_a_long_name_loses_its_middle_and_says_how_much() -> None:
    text = "a" * 60 + "b" * 880 + "c" * 60
    shown = shorten(text, 100)
    # A mark with four digits takes 17 of the 100 places: 83 are left, 49 (three fifths) for the front, 34
    # for the end, and 1000 - 49 - 34 = 917.
    assert shown == "a" * 49 + "…[917 left out]…" + "c" * 34


@given(st.text(alphabet=st.characters(), max_size=400), st.integers(min_value=48, max_value=200))
def test_the_result_is_always_one_printable_line_within_the_limit(text: str, limit: int) -> None:
    shown = shorten(text, limit)
    assert len(shown) <= limit
    assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")]
    shown.encode("utf-8")
    assert shorten(shown, limit) == shown  # shortening twice does nothing more


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_come_out_short_and_printable(text: str) -> None:
    for shown in (shorten(text), prose(text), base_name(text)):
        assert len(shown) <= 1200
        assert shown.isprintable()


def test_work_is_bounded_by_the_limit_and_not_by_the_name() -> None:
    text = "\u202e" * 50_000_000
    started = time.perf_counter()
    shown = shorten(text, 64)
    assert time.perf_counter() - started < 0.2
    assert "left out" in shown


def test_prose_joins_lines_and_a_path_gives_its_last_part() -> None:
    assert prose("one\ntwo\r\n three") == "one two  three"
    assert base_name("/data/runs/x.sqlite") == "x.sqlite"
    assert base_name("C:\\runs\\x.sqlite") == "x.sqlite"
    assert base_name("/") == "/"


def test_back_quotes_mark_code_and_an_unpaired_one_stays() -> None:
    assert pieces("use `a b` now") == [(False, "use "), (True, "a b"), (False, " now")]
    assert pieces("it`s") == [(False, "it`s")]


def test_names_are_ordered_as_people_count() -> None:
    names = ["rank10.json", "rank2.json", "rank0.json", "rank1.json", "a", "10", "9"]
    assert sorted(names, key=natural) == [
        "9",
        "10",
        "a",
        "rank0.json",
        "rank1.json",
        "rank2.json",
        "rank10.json",
    ]
