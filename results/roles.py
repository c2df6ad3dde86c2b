"""Many ranks by role: which do the same work, what is usual among them, and who differs."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_low
from typing import Literal

from perfdoc.records import dataclass
from perfdoc.results.ranks import Rank

MANY = 16
"""Up to so many ranks each is shown by itself, and there are no roles."""
LEAST_FRAC = 0.01
"""Of the window: less is no reason to look at a rank."""
LEAST_MAD = 6
"""Median absolute deviations of a large role, about four standard deviations of a normal spread: of 1,024
ranks and ten figures chance alone brings less than one so far."""
FEWEST = 5
"""Ranks of a role that is judged by its own spread."""
FEWEST_CENTRED = 3
"""Ranks of a role that is judged against its own median, by the spread in all roles."""
STEP = "step"
"""The figure of a deviation that is no leaf: the step time, or the window where not every rank has steps."""


@dataclass(frozen=True, kw_only=True)
class RoleShare:
    """One leaf over the ranks of a role, as shares of their own windows."""

    median_frac: float
    low_frac: float
    """5th percentile; of up to 20 ranks the least."""
    high_frac: float


@dataclass(frozen=True, kw_only=True)
class Role:
    """Ranks that do the same work."""

    label: str
    members: list[int]
    """Indices into Diagnosis.ranks."""
    shares: dict[str, RoleShare]
    """By leaf, every one present."""
    step_ns: int
    """Middle rank's step time, or its window where not every rank has steps."""
    step_low_ns: int
    step_high_ns: int
    typical: int
    """The member that is nearest to the medians."""


@dataclass(frozen=True, kw_only=True)
class RoleDeviation:
    """One figure of one rank against its role's."""

    figure: str
    """A leaf, or STEP."""
    value_frac: float
    """Of its window; of STEP over the role's median."""
    usual_frac: float
    """The role's median."""
    mad_frac: float
    """Median absolute deviation that it is held against."""

    @property
    def by_frac(self) -> float:
        """How much more than usual."""
        return self.value_frac - self.usual_frac


@dataclass(frozen=True, kw_only=True)
class RoleOutlier:
    """A rank that differs from its role."""

    rank: int
    """Index into Diagnosis.ranks."""
    role: int
    """Index into `roles`."""
    lead: RoleDeviation
    """What to look at first: the most that it spends itself beyond its role; else its longer step; else the
    largest."""
    others: list[RoleDeviation]
    """Largest first."""
    comm_alone: bool
    """Its steps are no longer than is usual, and it spends no more on anything but communication: it may
    wait for another rank, or have less to do."""
    among_stages: bool
    """Its role has too few ranks, and it is held against all inner stages: they may have unequal layers."""


@dataclass(frozen=True, kw_only=True)
class RolePlaces:
    """Places of ranks in the parallel dimensions, by rank number."""

    sizes: dict[str, int]
    """Of tp, cp and dp, those above 1; empty where places are not known."""
    of: dict[str, list[int]]
    """Place of every rank, by dimension of `sizes`."""
    agreeing: int
    """Groups of ranks that were held against the places."""
    refuted: bool
    """A group holds ranks that rank numbers put apart."""


@dataclass(frozen=True, kw_only=True)
class RolesAnalysis:
    """All ranks of a job of many."""

    based_on: Literal["stages", "numbers", "calls", "kinds", "one", "unlike"]
    """stages: of the pipeline. numbers: stages by rank number. calls: equally many calls of each collective.
    kinds: the same collectives. one: no difference. unlike: too many differences."""
    steps: bool
    """Whether every rank has steps; else windows are compared."""
    roles: list[Role]
    outliers: list[RoleOutlier]
    """Those that spend more themselves first, each kind by how much."""
    unjudged: list[int]
    """Ranks whose role is too small to say what is usual, those first that compute most."""
    places: RolePlaces

    def heaviest(self, most: int) -> list[Role]:
        """All roles, in their order; of more than `most` those whose middle rank computes longest."""
        order = sorted(self.roles, key=lambda role: -role.shares["compute"].median_frac * role.step_ns)
        heavy = {role.label for role in order[:most]}
        return [role for role in self.roles if role.label in heavy]

    @property
    def role_of(self) -> list[int]:
        """Index into `roles`, by rank."""
        by_rank = {i: at for at, role in enumerate(self.roles) for i in role.members}
        return [by_rank[i] for i in sorted(by_rank)]


def length_ns(rank: Rank, *, steps: bool) -> int:
    """Its median step; its window where not every rank has steps."""
    return (
        median_low(step.duration_ns for step in rank.window.step_list) if steps else rank.window.duration_ns
    )


def shares_of(rank: Rank) -> Sequence[float]:
    """Of its window, by leaf in the ledger's order; 0 of an empty one."""
    values = rank.ledger_ns.by_leaf.values()
    total = rank.ledger_ns.total
    return [value / total if total > 0 else 0.0 for value in values]
