"""Checks of values that a caller puts on a timeline; all raise ValueError(call, value)."""

from __future__ import annotations

import operator

LARGEST = 2**63 - 1
"""Largest number that a column of a trace can hold."""


def whole(call: str, what: str, value: int, *, low: int = 0, high: int = LARGEST) -> int:
    """The value as an int (numpy integers welcome), within [low, high]."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{call}: {what} {value!r} is not a whole number") from None
    if not low <= number <= high:
        raise ValueError(f"{call}: {what} {number} is outside [{low}, {high}]")
    return number


def span(call: str, start_ns: int, end_ns: int) -> tuple[int, int]:
    """A half-open interval, possibly empty."""
    start = whole(call, "start_ns", start_ns)
    return start, whole(call, f"end_ns (start_ns is {start})", end_ns, low=start)


def text(call: str, value: str) -> str:
    """A name: any string that UTF-8 can hold."""
    if not isinstance(value, str):
        raise ValueError(f"{call}: name {value!r} is not a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{call}: name {value!r} holds a lone surrogate, which no trace can hold") from None
    return value


def triple(call: str, what: str, value: tuple[int, int, int]) -> tuple[int, int, int]:
    """Three sizes of at least 1."""
    if len(value) != 3:
        raise ValueError(f"{call}: {what} {value!r} has not three sizes")
    x, y, z = (whole(call, what, size, low=1, high=2**31 - 1) for size in value)
    return x, y, z
