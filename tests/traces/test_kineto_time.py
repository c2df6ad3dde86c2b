"""Microseconds of JSON to integer nanoseconds, exactly."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoc.traces.kineto.values import Number, interval_ns


def written(ns: int) -> Number:
    """Nanoseconds as Kineto prints them: microseconds with three decimals."""
    sign, ns = ("-" if ns < 0 else ""), abs(ns)
    return Number(f"{sign}{ns // 1000}.{ns % 1000:03d}")


@pytest.mark.parametrize(
    ("start", "duration", "expected"),
    [
        (5, 2, (5_000, 7_000)),
        (0, 0, (0, 0)),
        # 16 digits before the point: as a float64 this start would be off by up to 125 ns.
        (Number("1694128201435418.123"), Number("0.001"), (1694128201435418123, 1694128201435418124)),
        (Number("4458677052057.143"), Number("2129.38"), (4458677052057143, 4458677054186523)),
        (Number("7.5"), 1, (7_500, 8_500)),
        (Number("-0.500"), 1, (-500, 500)),
        (Number("1.5e3"), Number("1E0"), (1_500_000, 1_501_000)),
        # Four decimals: 1.0004 µs is 1000.4 ns, and the end is rounded from 1000.4 + 0.4, not from 0.4.
        (Number("1.0004"), Number("0.0004"), (1_000, 1_001)),
        (Number("1e-400"), 0, (0, 0)),
    ],
)
def test_planted_times(start: object, duration: object, expected: tuple[int, int]) -> None:
    assert interval_ns(start, duration) == expected


@given(st.integers(-(10**18), 9 * 10**18), st.integers(0, 10**17))
def test_three_decimals_are_exact(start_ns: int, duration_ns: int) -> None:
    assert interval_ns(written(start_ns), written(duration_ns)) == (start_ns, start_ns + duration_ns)


@given(st.integers(0, 10**15), st.integers(0, 10**9), st.integers(4, 12))
def test_more_decimals_round_to_nearest_and_touching_stays_touching(
    whole: int, part: int, digits: int
) -> None:
    start = Number(f"{whole}.{part % 10**digits:0{digits}d}")
    duration = Number(f"0.{(part * 7) % 10**digits:0{digits}d}")
    exact_end = Fraction(str(start)) + Fraction(str(duration))
    next_start = Number(
        f"{exact_end.numerator * 10**digits // exact_end.denominator // 10**digits}."
        f"{exact_end.numerator * 10**digits // exact_end.denominator % 10**digits:0{digits}d}"
    )
    first_start, first_end = interval_ns(start, duration)
    assert abs(first_start - Fraction(str(start)) * 1000) <= Fraction(1, 2)
    assert first_end == interval_ns(next_start, 0)[0]
