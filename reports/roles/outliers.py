"""Ranks that differ from those that do the same work, by a robust rule: outliers do not move it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

LEAST_FRAC = 0.01
"""Of the window: less is no reason to look at a rank."""
LEAST_MAD = 6
"""Median absolute deviations of a large role, about four standard deviations of a normal spread: of 1,024
ranks and ten figures chance alone brings less than one so far."""
_SMALL = 160
"""Of few ranks the median absolute deviation is small by chance. With this in `mads` chance names fewer than
one rank in a hundred of a role of any size (ten figures, normal spread, by simulation)."""
FEWEST = 5
"""Ranks of a role that is judged by its own spread."""
FEWEST_CENTRED = 3
"""Ranks of a role that is judged against its own median, by the spread in all roles."""


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
    """What to look at first: the most that it spends itself beyond its role; else its longer step; else the
    largest."""
    others: Sequence[Deviation]
    """Largest first."""
    comm_alone: bool
    """Its steps are no longer than is usual, and it spends no more on anything but communication: it may
    wait for another rank, or have less to do."""
    among_stages: bool
    """Its role has too few ranks, and it is held against all inner stages: they may have unequal layers."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How far values are from their medians by chance."""

    mad: float
    of: int
    """Values that it is made of."""


def mads(of: int) -> float:
    """How many median absolute deviations are far, where the deviation is one of so many values.

    >>> [round(mads(of), 1) for of in (5, 8, 16, 32, 1024)]
    [44.4, 21.0, 9.8, 6.9, 6.0]
    """
    return LEAST_MAD * (1 + _SMALL / of**2)


def deviations(values: Sequence[float], figure: int, spread: Spread | None = None) -> dict[int, Deviation]:
    """Those of the values that are far from their median, by position. spread: None for their own.

    >>> deviations([0.5, 0.5, 0.5, 0.501, 0.499, 0.56], 0)[5].by > 0.05
    True
    """
    if len(values) < (FEWEST if spread is None else FEWEST_CENTRED):
        return {}
    usual = median(values)
    if spread is None:
        spread = Spread(mad=median(abs(value - usual) for value in values), of=len(values))
    mad = spread.mad
    limit = max(LEAST_FRAC, mads(spread.of) * mad)
    return {
        i: Deviation(figure=figure, value=value, usual=usual, mad=mad)
        for i, value in enumerate(values)
        if abs(value - usual) > limit
    }


def outlier(
    rank: int, role: int, found: Sequence[Deviation], waiting: Sequence[bool], *, among_stages: bool
) -> Outlier:
    """One rank from all its deviations. waiting: whether a leaf is communication, by index. among_stages: see
    Outlier."""
    ordered = sorted(found, key=lambda each: -abs(each.by))
    work = [each for each in ordered if each.figure != STEP and not waiting[each.figure] and each.by > 0]
    longer = [each for each in ordered if each.figure == STEP and each.by > 0]
    lead = (work or longer or ordered)[0]
    return Outlier(
        rank=rank,
        role=role,
        lead=lead,
        others=[each for each in ordered if each is not lead],
        comm_alone=not (work or longer),
        among_stages=among_stages,
    )


def in_order(found: Sequence[Outlier]) -> list[Outlier]:
    """Those that spend more themselves first, each kind by how much."""
    return sorted(found, key=lambda each: (each.comm_alone, -abs(each.lead.by), each.rank))
