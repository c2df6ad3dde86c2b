"""Which runs are the slower ones, by their order alone.

Where nothing changed and runs are exchangeable, every choice of k places among the n + k ordered runs is as
likely for the new ones, whatever the distribution: normal, with tails, or of two modes. So an order as clear
as the one seen comes by chance with a probability that is counted exactly (the test of Mann and Whitney).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import count

MOST_BY_CHANCE = 0.01


def slower_by_order(baseline: Sequence[float], new: Sequence[float], most: float = MOST_BY_CHANCE) -> bool:
    """Whether the order of the runs is one that chance makes in a share of `most` of cases or less.

    Few runs have no such order (5 and 3 have 56 choices of places): then the clearest one is asked for, every
    new run slower than every baseline run. Equal figures count against it.

    >>> slower_by_order([1, 2, 3, 4, 5], [6, 7, 8]), slower_by_order([1, 2, 3, 4, 6], [5, 7, 8])
    (True, False)
    """
    n, k = len(baseline), len(new)
    slower = sum(x > y for x in new for y in baseline)
    ways = math.comb(n + k, k)
    as_clear = sum(_ways(n, k, n * k - slower))
    return as_clear <= max(most * ways, 1)


def few_orders(baseline_runs: int, new_runs: int) -> list[str]:
    """A note where even the clearest order of so many runs comes by chance in more than 1 % of cases.

    >>> few_orders(7, 3)
    []
    """
    ways = math.comb(baseline_runs + new_runs, new_runs)
    if ways * MOST_BY_CHANCE >= 1:
        return []
    enough = next(k for k in count(new_runs) if math.comb(baseline_runs + k, k) * MOST_BY_CHANCE >= 1)
    return [
        f"of {baseline_runs} and {new_runs} equal runs the new ones are all the slower ones in 1 of {ways} "
        "cases: so likely may a false alarm be where scatter is not normal, and at most 1 % with "
        f"{enough} new runs"
    ]


def _ways(n: int, k: int, most: int) -> list[int]:
    """Of the choices of k places among n + k, how many have 0, 1, … `most` pairs the wrong way round.

    The coefficients of the Gaussian binomial: the product of (1 - q^(n+i)) / (1 - q^i) over i = 1 … k.
    """
    counts = [1] + [0] * most
    for i in range(1, k + 1):
        for j in range(most, n + i - 1, -1):
            counts[j] -= counts[j - n - i]
        for j in range(i, most + 1):
            counts[j] += counts[j - i]
    return counts
