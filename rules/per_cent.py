"""Shares in evidence and reasons, written as the report writes its own."""

from __future__ import annotations


def per_cent(frac: float, places: int = 1) -> str:
    """0.057 is "5.7 %"; what is not zero is never written as zero: 0.0001 is "<0.1 %",
    and what is not all never as all: 0.9999 is ">99.9 %".

    places: digits behind the point.
    """
    least = 10.0**-places
    if frac and abs(100 * frac) < least / 2:
        return f"{'<' if frac > 0 else '>-'}{least:.{places}f} %"
    if frac < 1 and 100 * (1 - frac) <= least / 2:
        return f">{100 - least:.{places}f} %"
    return f"{100 * frac:.{places}f} %"
