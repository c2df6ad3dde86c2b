"""Exact times: JSON microseconds to integer nanoseconds.

Kineto writes microseconds, as integers (until 2024) or with three decimals. An epoch time in
microseconds with decimals needs 19 digits and a float64 holds 16, so the text of the number is
converted and never a float.
"""

from __future__ import annotations

from decimal import Context, Decimal

_NS_PER_US = 1000
_INT64_END = 1 << 63
# Sums of two numbers below 10^19 stay exact down to 10^-40; past that digits cannot move a rounding.
_CONTEXT = Context(prec=60, Emax=999_999_999, Emin=-999_999_999)
_MAX_EXPONENT = 20


class Number(str):
    """The text of a JSON number with a point or an exponent, kept as written."""

    __slots__ = ()


def interval_ns(start_us: object, duration_us: object) -> tuple[int, int]:
    """Start and end in ns of an event's `ts` and `dur` (int or Number, in µs).

    1.0005 µs and 0.0005 µs end at 1.001 µs exactly: the end is rounded from the exact sum, so two
    intervals that touch in the file touch here. More than three decimals round half to even.
    Raises ValueError (what is wrong, without the event) for what is not a number, a negative
    duration and a time outside int64.
    """
    start, duration = _thousandths(start_us, "ts"), _thousandths(duration_us, "dur")
    if start is not None and duration is not None:
        end = start + duration
    else:
        exact_start = _exact_us(start_us, "ts")
        exact_end = _CONTEXT.add(exact_start, _exact_us(duration_us, "dur"))
        if exact_end < exact_start:
            raise ValueError(f"a negative duration (dur {_shown(duration_us)})")
        start, end = _rounded_ns(exact_start), _rounded_ns(exact_end)
    if end < start:
        raise ValueError(f"a negative duration (dur {_shown(duration_us)})")
    if start < -_INT64_END or end >= _INT64_END:
        raise ValueError(f"a time that does not fit 64-bit nanoseconds (ts {_shown(start_us)})")
    return start, end


def instant_ns(time_us: object) -> int:
    """One time in ns; errors as for interval_ns."""
    return interval_ns(time_us, 0)[0]


def _thousandths(value: object, field: str) -> int | None:
    """The value times 1000 where it has at most three decimals; None sends it the exact way."""
    if type(value) is int:
        return value * _NS_PER_US
    if type(value) is not Number:
        raise ValueError(f"no {field}" if value is None else f"a {field} that is not a number")
    whole, _, decimals = value.partition(".")
    if not 0 < len(decimals) <= 3:
        return None
    try:
        return int(whole + decimals.ljust(3, "0"))
    except ValueError:
        return None  # an exponent


def _exact_us(value: object, field: str) -> Decimal:
    exact = Decimal(str(value))
    if exact and exact.adjusted() > _MAX_EXPONENT:
        raise ValueError(f"a time that does not fit 64-bit nanoseconds ({field} {_shown(value)})")
    return exact


def _rounded_ns(exact_us: Decimal) -> int:
    return int(_CONTEXT.to_integral_value(_CONTEXT.multiply(exact_us, Decimal(_NS_PER_US))))


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
