"""How probable so many successes are by chance, counted exactly."""

from __future__ import annotations

import math

_NEGLIGIBLE = 1e-17
"""Of the sum so far: beyond the mean terms only fall."""


def at_least(count: int, of: int, chance: float) -> float:
    """Chance of so many or more successes of so many independent tries; 9 or 10 of 10 at 1/2: 11 / 1024.

    Where tries differ in their chance, their mean gives no less than the true value for counts of one above
    the expected one or more (Hoeffding, 1956).
    """
    if count <= 0 or chance >= 1:
        return 1.0
    if count > of or chance <= 0:
        return 0.0
    found = 0.0
    for k in range(count, of + 1):
        log = math.lgamma(of + 1) - math.lgamma(k + 1) - math.lgamma(of - k + 1)
        term = math.exp(log + k * math.log(chance) + (of - k) * math.log1p(-chance))
        found += term
        if k > of * chance and term < _NEGLIGIBLE * found:
            break
    return min(1.0, found)
