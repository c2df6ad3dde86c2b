"""Ranks by role: the pipeline's stage, or where stages are not known, equal communication."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, median_low

from perfdoc.reports.leaves import LEAVES, leaf_values
from perfdoc.reports.roles.outliers import STEP, Deviation, Outlier, deviations, in_order, outlier
from perfdoc.reports.roles.places import Places, places_of
from perfdoc.results import Diagnosis, Rank

MANY = 16
"""Up to so many ranks each is shown by itself; more are shown by role."""
_MOST_GROUPS = 16
"""Of equal communication: more would be no summary."""
_LOW, _HIGH = 0.05, 0.95


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One figure over the ranks of a role."""

    median: float
    low: float
    """5th percentile; of up to 20 ranks the least."""
    high: float


@dataclass(frozen=True, kw_only=True)
class Role:
    """Ranks that do the same work."""

    label: str
    members: Sequence[int]
    """Indices into Diagnosis.ranks."""
    shares: Sequence[Figures]
    """Of each leaf, of the ranks' own windows."""
    step_ns: int
    """Middle rank's step time, or its window where it has no steps."""
    step_low_ns: int
    step_high_ns: int
    typical: int
    """The member that is nearest to the medians."""


@dataclass(frozen=True, kw_only=True)
class Roles:
    """All ranks of a job of many."""

    how: str
    """stages: of the pipeline. numbers: stages by rank number. calls: equally many calls of each collective.
    kinds: the same collectives. one: no difference."""
    roles: Sequence[Role]
    role_of: Sequence[int]
    """By rank: index into roles."""
    shares: Sequence[Sequence[float]]
    """By rank, by leaf: of its own window."""
    steps_ns: Sequence[int]
    """By rank: its median step, or its window."""
    steps: bool
    """Whether every rank has steps."""
    outliers: Sequence[Outlier]
    places: Places

    @property
    def drawn(self) -> list[tuple[str, list[int]]]:
        """The ranks that are worth a picture of their own, with headings."""
        far = [each.rank for each in self.outliers[:_DRAWN]]
        typical = [role.typical for role in self.roles if role.typical not in far][:_DRAWN]
        order = sorted(range(len(self.steps_ns)), key=lambda i: (-self.steps_ns[i], i))
        longest = [i for i in order if i not in far and i not in typical][:_LONGEST]
        groups = [
            ("differ most from their role", far),
            ("typical of each role", typical),
            ("longest steps" if self.steps else "longest windows", longest),
        ]
        return [(heading, members) for heading, members in groups if members]


_DRAWN, _LONGEST = 8, 4
"""Ranks under one heading."""


def roles_of(diagnosis: Diagnosis) -> Roles | None:
    """None of up to MANY ranks."""
    ranks = diagnosis.ranks
    if len(ranks) <= MANY:
        return None
    places = places_of(diagnosis)
    how, keys = _keys(ranks, places, diagnosis)
    labels = sorted(set(keys))
    place = {key: at for at, key in enumerate(labels)}
    role_of = [place[key] for key in keys]
    of: list[list[int]] = [[] for _ in labels]
    for i, at in enumerate(role_of):
        of[at].append(i)
    shares = [_shares(rank) for rank in ranks]
    steps_ns = [_step(rank) for rank in ranks]
    roles, outliers = [], []
    for at, (_, label) in enumerate(labels):
        role = _role(label, of[at], shares, steps_ns)
        roles.append(role)
        outliers += _outliers(at, role, shares, steps_ns)
    return Roles(
        how=how,
        roles=roles,
        role_of=role_of,
        shares=shares,
        steps_ns=steps_ns,
        steps=all(rank.window.step_list for rank in ranks),
        outliers=in_order(outliers),
        places=places,
    )


def _shares(rank: Rank) -> list[float]:
    total = rank.ledger_ns.total
    return [value / total if total > 0 else 0.0 for value in leaf_values(rank.ledger_ns)]


def _step(rank: Rank) -> int:
    steps = rank.window.step_list
    return median_low(step.duration_ns for step in steps) if steps else rank.window.duration_ns


_Keys = list[tuple[int, str]]
"""By rank: what orders its role, and what it is called."""


def _keys(ranks: Sequence[Rank], places: Places, diagnosis: Diagnosis) -> tuple[str, _Keys]:
    stages = {stage for stage in places.stage if stage is not None}
    if len(stages) > 1:
        measured = any(row.stage is not None for row in diagnosis.analyses.pipeline.stages)
        keys = [
            (len(stages), "stage unknown") if stage is None else (stage, _stage(stage, places))
            for stage in places.stage
        ]
        return ("stages" if measured else "numbers"), keys
    for how, signature in (("calls", _calls), ("kinds", _kinds)):
        found = [signature(rank) for rank in ranks]
        order = [each for each, _ in Counter(found).most_common()]
        if 1 < len(order) <= _MOST_GROUPS:
            number = {each: i for i, each in enumerate(order)}
            return how, [(number[each], f"group {number[each] + 1}") for each in found]
        if len(order) == 1:
            break
    return "one", [(0, "all ranks")] * len(ranks)


def _stage(stage: int, places: Places) -> str:
    role = places.stage_role.get(stage, "")
    return f"stage {stage}, {role}" if role in ("embedding", "loss") else f"stage {stage}"


def _calls(rank: Rank) -> frozenset[tuple[object, ...]]:
    counted: Counter[tuple[str, ...]] = Counter()
    for row in rank.communication:
        counted[row.dimension, row.transport, row.collective] += row.count
    return frozenset(counted.items())


def _kinds(rank: Rank) -> frozenset[tuple[object, ...]]:
    return frozenset((row.dimension, row.collective) for row in rank.communication)


def _figures(values: Sequence[float]) -> Figures:
    ordered = sorted(values)
    last = len(ordered) - 1
    return Figures(
        median=median(ordered), low=ordered[int(_LOW * last)], high=ordered[-1 - int((1 - _HIGH) * last)]
    )


def _role(
    label: str, members: Sequence[int], shares: Sequence[Sequence[float]], steps_ns: Sequence[int]
) -> Role:
    figures = [_figures([shares[i][leaf] for i in members]) for leaf in range(len(LEAVES))]
    lengths = sorted(steps_ns[i] for i in members)
    last = len(lengths) - 1

    def far(i: int) -> float:
        return sum(abs(a - b.median) for a, b in zip(shares[i], figures, strict=True))

    return Role(
        label=label,
        members=members,
        shares=figures,
        step_ns=median_low(lengths),
        step_low_ns=lengths[int(_LOW * last)],
        step_high_ns=lengths[-1 - int((1 - _HIGH) * last)],
        typical=min(members, key=far),
    )


_WAITING = [leaf.family == "exposed_comm" for leaf in LEAVES]


def _outliers(
    at: int, role: Role, shares: Sequence[Sequence[float]], steps_ns: Sequence[int]
) -> list[Outlier]:
    read: dict[int, Callable[[int], float]] = {STEP: lambda i: steps_ns[i] / max(1, role.step_ns)}
    read |= {leaf: lambda i, leaf=leaf: shares[i][leaf] for leaf in range(len(LEAVES))}  # type: ignore[misc]
    found: dict[int, list[Deviation]] = {}
    for figure, value_of in read.items():
        for place, far in deviations([value_of(i) for i in role.members], figure).items():
            found.setdefault(role.members[place], []).append(far)
    return [outlier(rank, at, each, _WAITING) for rank, each in found.items()]
