"""Many small losses: new runs against the first runs of their level, which stay in the baseline for this.

Each change may cost less than any check can see or cares for. Runs that passed join the baseline and move its
mean, so the next small loss passes too. The first runs do not move: against them the losses add up. The test
is that of `decide`, with the scatter of all runs of the level: a level that drifts scatters more, which makes
the limit wider and never narrower. As there, the order of the runs must be as clear.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from perfdoc.compare.baseline_files import ANCHOR_RUNS, Promotion
from perfdoc.compare.decision import MIN_HISTORY, PRACTICAL_FRAC
from perfdoc.compare.significance import MOST_BY_CHANCE, noise_frac, slower_by_order, spread_of
from perfdoc.results.figures import per_cent, plural

MIN_RUNS = ANCHOR_RUNS + MIN_HISTORY
"""Fewer are the level's first runs, against which the check itself is made."""


@dataclass(frozen=True, kw_only=True)
class Drift:
    """New runs against the first ones of their level; fractions are of the first runs' mean."""

    slower_frac: float
    limit_frac: float
    first_runs: int
    later_runs: int
    beyond: bool
    """Whether small losses have added up to one that counts."""
    says: str = "A step"
    """Which figure of a run."""


def drift(
    baseline_ns: Sequence[float],
    new_ns: Sequence[float],
    practical_frac: float = PRACTICAL_FRAC,
    *,
    shared_noise_frac: float = 0.0,
    chance: float = MOST_BY_CHANCE,
    says: str = "A step",
) -> Drift | None:
    """None where the level is young. baseline_ns: run medians, oldest first.

    shared_noise_frac and chance: as for `decide`. says: which figure of a run it is.

    Ten runs that rise by 0.5 % each, from 100 to 104.5, then one of 105: against the first five, 101 in the
    mean, that is 4.0 % slower.

    >>> found = drift([1000 + 5 * i for i in range(10)], [1050])
    >>> round(found.slower_frac, 3)
    0.04
    """
    if len(baseline_ns) < MIN_RUNS:
        return None
    n, k = len(baseline_ns), len(new_ns)
    first = statistics.fmean(baseline_ns[:ANCHOR_RUNS])
    slower = statistics.fmean(new_ns) / first - 1
    spreads = spread_of(baseline_ns, first), spread_of(new_ns, first)
    noise = noise_frac(spreads[0], n - 1, ANCHOR_RUNS, k, new_spread_frac=spreads[1], confidence=1 - chance)
    limit = max(practical_frac, noise, shared_noise_frac)
    return Drift(
        slower_frac=slower,
        limit_frac=limit,
        first_runs=ANCHOR_RUNS,
        later_runs=n - ANCHOR_RUNS,
        beyond=slower > limit and slower_by_order(baseline_ns[:ANCHOR_RUNS], new_ns, chance),
        says=says,
    )


def promoted_since(
    promotions: Sequence[Promotion], new_ns: Sequence[int], practical_frac: float = PRACTICAL_FRAC
) -> list[str]:
    """A note where the accepted changes of level have together made a step slower than it first was."""
    if not promotions:
        return []
    slower = statistics.fmean(new_ns) / promotions[0].before_step_ns - 1
    if slower <= practical_frac:
        return []
    changes = plural(len(promotions), "promotion")
    return [f"a step became {per_cent(slower)} slower in all with {changes} since {promotions[0].utc}"]
