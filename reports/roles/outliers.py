"""Ranks that differ from those that do the same work, by a robust rule: outliers do not move it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

LEAST_FRAC = 0.01
"""Of the window: less is no reason to look at a rank."""
LEAST_MAD = 6
"""Median absolute deviations, about four standard deviations of a normal spread: of 1,024 ranks and ten
figures chance alone brings less than one so far."""
FEWEST = 5
"""Ranks of a role: of fewer, none can be called usual."""


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """One figure of one rank against its role's."""

    figure: int
    """Index of a leaf; STEP is the step time."""
    value: float
    usual: float
    """The role's median."""
    mad: float

    @property
    def by(self) -> float:
        """How much more, as a share of the window; of the step time, of its median."""
        return self.value - self.usual


STEP = -1


@dataclass(frozen=True, kw_only=True)
class Outlier:
    """A rank that differs."""

    rank: int
    """Index into Diagnosis.ranks."""
    role: int
    lead: Deviation
    """What to look at first: the most that it spends itself beyond its role; else the largest."""
    others: Sequence[Deviation]
    """Largest first."""
    waits_alone: bool
    """It spends no more than its role on anything but communication: it may wait for another rank."""


def deviations(values: Sequence[float], figure: int) -> dict[int, Deviation]:
    """Those of the values that are far from their median, by position.

    >>> deviations([0.5, 0.5, 0.5, 0.502, 0.498, 0.56], 0)[5].by > 0.05
    True
    """
    if len(values) < FEWEST:
        return {}
    usual = median(values)
    mad = median(abs(value - usual) for value in values)
    limit = max(LEAST_FRAC, LEAST_MAD * mad)
    return {
        i: Deviation(figure=figure, value=value, usual=usual, mad=mad)
        for i, value in enumerate(values)
        if abs(value - usual) > limit
    }


def outlier(rank: int, role: int, found: Sequence[Deviation], waiting: Sequence[bool]) -> Outlier:
    """One rank from all its deviations. waiting: whether a leaf is communication, by index."""
    ordered = sorted(found, key=lambda each: -abs(each.by))
    own = [each for each in ordered if each.figure != STEP and not waiting[each.figure] and each.by > 0]
    lead = (own or ordered)[0]
    return Outlier(
        rank=rank,
        role=role,
        lead=lead,
        others=[each for each in ordered if each is not lead],
        waits_alone=not own,
    )


def in_order(found: Sequence[Outlier]) -> list[Outlier]:
    """Those that spend more themselves first, each kind by how much."""
    return sorted(found, key=lambda each: (each.waits_alone, -abs(each.lead.by), each.rank))
