from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoc.results import figures


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
    assert [figures.bandwidth(x) for x in (231.44, 0.0, 0.004, None, float("nan"))] == [
        "231.4 GB/s",
        "0.0 GB/s",
        "0.004 GB/s",
        "—",
        "—",
    ]
    assert (figures.plural(1, "rank"), figures.plural(1000, "rank")) == ("1 rank", "1,000 ranks")


def test_a_partition_by_hand() -> None:
    # 1/3 each is 33.3; the tenth that is left goes to the first.
    assert figures.partition([1, 1, 1]) == ["33.4 %", "33.3 %", "33.3 %"]
    # 1 of 1,000,000 gets no tenth and still does not read as nothing; a true zero does.
    assert figures.partition([999_999, 1, 0]) == ["100.0 %", "<0.1 %", "0.0 %"]
    assert figures.partition([0, 0]) == ["0.0 %", "0.0 %"]


@given(st.lists(st.integers(min_value=0, max_value=10**15), min_size=1, max_size=20))
def test_a_partition_always_adds_up(values: list[int]) -> None:
    shown = figures.partition(values)
    tenths = [0 if text.startswith("<") else round(10 * float(text.removesuffix(" %"))) for text in shown]
    assert sum(tenths) == (1000 if sum(values) else 0)
    for value, text in zip(values, shown, strict=True):
        assert (text == "0.0 %") == (value == 0)
        # Each is within a tenth of its own share.
        assert value == 0 or text.startswith("<") or abs(float(text[:-2]) - 100 * value / sum(values)) < 0.1


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
