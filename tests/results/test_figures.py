"""Figures, names and ledgers as they are shown: units, digits, lines that can be printed, whole sums."""

from __future__ import annotations

import re
import time
import unicodedata
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoc.results import figures
from perfdoc.results.names import base_name, natural, pieces, prose, shorten
from perfdoc.results.ranks import ExposedComm, Idle, Ledger
from tests.reports.hostile import HOSTILE


@pytest.mark.parametrize(
    ("ns", "shown"),
    [
        (0, "0 ns"),
        (1, "1 ns"),
        (999, "999 ns"),
        (1_000, "1.000 µs"),
        (12_345_678, "12.346 ms"),
        (12_345_499, "12.345 ms"),
        (999_999, "999.999 µs"),
        (999_999_499, "999.999 ms"),
        (999_999_500, "1.000 s"),  # rounds up to the next unit, never "1000.000 ms"
        (3_600_000_000_000, "3600.000 s"),
        (-1_500, "-1.500 µs"),
        (None, "—"),
    ],
)
def test_a_duration_in_its_own_unit(ns: int | None, shown: str) -> None:
    assert figures.duration(ns) == shown


def test_a_duration_in_a_shared_unit() -> None:
    ms = figures.scale_for(5_000_000)
    assert ms.unit == "ms"
    assert [figures.in_scale(ns, ms) for ns in (12_345_678, 500, 499, 0, 1_234_567_890_000)] == [
        "12.346",
        "0.001",
        "<0.001",
        "0",
        "1,234,567.890",
    ]


@pytest.mark.parametrize(
    ("frac", "shown"),
    [
        (0.19, "19.0 %"),
        (0.0, "0.0 %"),
        (1.0, "100.0 %"),
        (0.0004, "<0.1 %"),
        (0.9999, ">99.9 %"),
        (None, "—"),
        (float("nan"), "—"),
        (float("inf"), "—"),
    ],
)
def test_a_share(frac: float | None, shown: str) -> None:
    assert figures.share(frac) == shown


def test_sizes_bandwidths_and_counts() -> None:
    assert [figures.size(n) for n in (0, 1023, 1536, 1024**2 - 1, 80 * 1024**3, None)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "1.0 MiB",
        "80.0 GiB",
        "—",
    ]
    assert [figures.bandwidth(x) for x in (231.44, 0.0, 0.004, 1.9e-8, None, float("nan"))] == [
        "231.4 GB/s",
        "0.0 GB/s",
        "0.004 GB/s",
        "<0.001 GB/s",
        "—",
        "—",
    ]
    assert (figures.plural(1, "rank"), figures.plural(1000, "rank")) == ("1 rank", "1,000 ranks")


def test_shares_by_hand() -> None:
    # 2 of 3 and 1 of 6 twice: 66.67, 16.67, 16.67, each rounded by itself, though that makes 100.1.
    assert figures.shares([4, 1, 1]) == ["66.7 %", "16.7 %", "16.7 %"]
    # 1 of 1,000,000 does not read as nothing, nor the rest as all; a true zero does.
    assert figures.shares([999_999, 1, 0]) == [">99.9 %", "<0.1 %", "0.0 %"]
    assert figures.shares([0, 0]) == ["0.0 %", "0.0 %"]


@pytest.mark.parametrize(
    ("value", "digits", "shown"),
    [
        (1837.2, 3, "1,840"),
        (1837.2, 4, "1,837"),
        (999.6, 3, "1,000"),
        (12_345_678.0, 2, "12,000,000"),
        (41.066, 3, "41.1"),
        (45.0, 3, "45"),
        (0.000123, 3, "0.000123"),
        (-48_590.0, 4, "-48,590"),
        (0.0, 3, "0"),
        (None, 3, "—"),
        (float("nan"), 3, "—"),
        (float("inf"), 3, "—"),
    ],
)
def test_significant_digits_without_an_exponent(value: float | None, digits: int, shown: str) -> None:
    assert figures.significant(value, digits) == shown


@given(st.floats(min_value=1e-12, max_value=1e18), st.integers(1, 6))
def test_significant_digits_are_near_the_value_and_never_zero(value: float, digits: int) -> None:
    text = figures.significant(value, digits)
    assert set(text) <= set("0123456789.,")
    assert float(text.replace(",", "")) == pytest.approx(value, rel=0.51 * 10.0 ** (1 - digits))


def test_numbers_for_people_have_one_home() -> None:
    """A format with `g` prints 1.84e+03: `figures.significant` does not."""
    root = Path(__file__).resolve().parents[2]
    rooms = ("analyzers", "knobs", "reports", "rules", "src/perfdoc")
    files = {f.resolve() for room in rooms for f in (root / room).rglob("*.py")} - {
        Path(figures.__file__).resolve()
    }
    assert len(files) > 200
    found = [f.name for f in sorted(files) if re.search(r"\.\dg[}\"']", f.read_text(encoding="utf-8"))]
    assert found == []


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
    started = time.process_time()
    shown = shorten(text, 64)
    assert time.process_time() - started < 0.2
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


def test_every_leaf_counts_once() -> None:
    comm = ExposedComm(**{f.name: 10**i for i, f in enumerate(fields(ExposedComm))})
    idle = Idle(**{f.name: 10**i for i, f in enumerate(fields(Idle))})
    assert comm.total == 1_111_111
    assert idle.total == 111_111
    found = Ledger(compute=2_000_000, exposed_comm=comm, exposed_memcpy=30_000_000, idle=idle)
    assert found.total == 33_222_222 == sum(found.by_leaf.values())


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (1, "1 second"),
        (90, "90 seconds"),
        (120, "2 minutes"),
        (7_200, "2 hours"),
        (172_800, "2 days"),
        (476_755 * 60, "331 days"),
        (2 * 31_557_600, "2 years"),
        (78_894_000, "2.5 years"),
    ],
)
def test_moments_far_apart_are_in_a_unit_that_fits(seconds: int, shown: str) -> None:
    assert figures.long_time(seconds * 1e9) == shown
