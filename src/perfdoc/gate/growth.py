"""Which part of the step grew: the ledgers of both sides compared, or else their step logs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from perfdoc.gate.figures import RunFigures

MIN_GROWTH_FRAC = 0.002
"""A part that grew by less than this of a step is not named."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One leaf of the ledger, for a step; means over runs."""

    name: str
    before_ns: int
    after_ns: int
    spread_ns: int
    """Half of what the baseline runs differ by among themselves: a smaller change is nothing."""

    @property
    def grew_ns(self) -> int:
        """Positive where the part takes longer than before."""
        return self.after_ns - self.before_ns


def growth(baseline: Sequence[RunFigures], new: Sequence[RunFigures]) -> list[Part]:
    """Parts that changed beyond their own spread, the one that grew most first.

    Empty where either side has neither ledger nor step log: nothing is said of the cause then.
    """
    before, after = ([r.parts_ns for r in side if r.parts_ns] for side in (baseline, new))
    steps = [sum(parts.values()) for parts in before]
    if not before or not after:
        before, after = ([p for r in side if (p := r.logged_parts_ns)] for side in (baseline, new))
        steps = [r.median_step_ns for r in baseline]
    if not before or not after:
        return []
    step = statistics.fmean(steps)
    parts = []
    for name in sorted({n for run in (*before, *after) for n in run}):
        old = [run.get(name, 0) for run in before]
        part = Part(
            name=name,
            before_ns=round(statistics.fmean(old)),
            after_ns=round(statistics.fmean(run.get(name, 0) for run in after)),
            spread_ns=(max(old) - min(old)) // 2,
        )
        if abs(part.grew_ns) > max(part.spread_ns, MIN_GROWTH_FRAC * step):
            parts.append(part)
    return sorted(parts, key=lambda p: (-p.grew_ns, p.name))
