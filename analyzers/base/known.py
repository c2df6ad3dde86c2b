"""Sums of figures of which some are unknown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

Number = TypeVar("Number", int, float)


def known_total(values: Iterable[Number | None]) -> Number | None:
    """The sum of those that are known; None where none is.

    >>> known_total([1, None, 2]), known_total([None])
    (3, None)
    """
    known = [v for v in values if v is not None]
    return sum(known[1:], known[0]) if known else None
