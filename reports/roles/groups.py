"""Ranks by role: the pipeline's stage, or where stages are not known, equal communication."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import median, median_low

from perfdoc.reports.leaves import COMPUTE, LEAVES, leaf_values
from perfdoc.reports.roles.judged import judged
from perfdoc.reports.roles.outliers import FEWEST_CENTRED, Outlier
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
    kinds: the same collectives. one: no difference. unlike: too many differences."""
    roles: Sequence[Role]
    role_of: Sequence[int]
    """By rank: index into roles."""
    shares: Sequence[Sequence[float]]
    """By rank, by leaf: of its own window."""
    steps_ns: Sequence[int]
    """By rank: its median step; its window where not every rank has steps."""
    steps: bool
    """Whether every rank has steps."""
    outliers: Sequence[Outlier]
    unjudged: Sequence[int]
    """Ranks whose role is too small to say what is usual, those first that compute most."""
    places: Places

    @property
    def drawn(self) -> list[tuple[str, list[int]]]:
        """The ranks that are worth a picture of their own, with headings."""
        far = [each.rank for each in self.outliers[:_DRAWN]]
        few = list(self.unjudged[:_DRAWN])
        known = {*far, *few}
        typical = [role.typical for role in self.heaviest(_DRAWN) if role.typical not in known]
        order = sorted(range(len(self.steps_ns)), key=lambda i: (-self.steps_ns[i], i))
        longest = [i for i in order if i not in known and i not in typical][:_LONGEST]
        groups = [
            ("differ most from their role", far),
            ("of roles too small to judge", few),
            ("typical of each role", typical),
            ("longest steps" if self.steps else "longest windows", longest),
        ]
        return [(heading, members) for heading, members in groups if members]

    def heaviest(self, most: int) -> list[Role]:
        """All roles, in their order; of more than `most` those whose middle rank computes longest."""
        order = sorted(self.roles, key=lambda role: -role.shares[COMPUTE].median * role.step_ns)
        kept = {id(role) for role in order[:most]}
        return [role for role in self.roles if id(role) in kept]


_DRAWN, _LONGEST = 8, 4
"""Ranks under one heading."""


def roles_of(diagnosis: Diagnosis) -> Roles | None:
    """None of up to MANY ranks."""
    ranks = diagnosis.ranks
    if len(ranks) <= MANY:
        return None
    places = places_of(diagnosis)
    with_steps = sum(bool(rank.window.step_list) for rank in ranks)
    steps = with_steps == len(ranks)
    how, keys = _keys(ranks, places, comparable=steps or not with_steps)
    labels = sorted(set(keys))
    place = {key: at for at, key in enumerate(labels)}
    role_of = [place[key] for key in keys]
    of: list[list[int]] = [[] for _ in labels]
    for i, at in enumerate(role_of):
        of[at].append(i)
    shares = [_shares(rank) for rank in ranks]
    steps_ns = [_step(rank) if steps else rank.window.duration_ns for rank in ranks]
    # Steps beside whole captures say nothing of each other.
    lengths = steps_ns if steps or not with_steps else None
    alike = [how in _STAGED and places.is_inner(places.stage[members[0]]) for members in of]
    outliers, unjudged = judged(of, alike, shares, lengths)
    return Roles(
        how=how,
        roles=[_role(label, of[at], shares, steps_ns) for at, (_, label) in enumerate(labels)],
        role_of=role_of,
        shares=shares,
        steps_ns=steps_ns,
        steps=steps,
        outliers=outliers,
        unjudged=unjudged,
        places=places,
    )


def _shares(rank: Rank) -> list[float]:
    total = rank.ledger_ns.total
    return [value / total if total > 0 else 0.0 for value in leaf_values(rank.ledger_ns)]


def _step(rank: Rank) -> int:
    return median_low(step.duration_ns for step in rank.window.step_list)


_Keys = list[tuple[int, str]]
"""By rank: what orders its role, and what it is called."""
_Counts = frozenset[tuple[Hashable, int]]
"""What a rank communicates, and how often."""
_STAGED = ("stages", "numbers")


def _keys(ranks: Sequence[Rank], places: Places, *, comparable: bool) -> tuple[str, _Keys]:
    """How roles are made, and each rank's. comparable: whether counts are of like stretches of time."""
    stages = {stage for stage in places.stage if stage is not None}
    if len(stages) > 1:
        keys = [
            (len(stages), "stage unknown") if stage is None else (stage, _stage(stage, places))
            for stage in places.stage
        ]
        return ("stages" if places.counted else "numbers"), keys
    found: dict[str, list[_Counts]] = {"kinds": [_kinds(rank) for rank in ranks]}
    if comparable:
        found = {"calls": _gathered([_calls(rank) for rank in ranks]), **found}
    for how, signatures in found.items():
        sizes = Counter(signatures)
        if len(sizes) == 1:
            return "one", [(0, "all ranks")] * len(ranks)
        few = sum(size for size in sizes.values() if size < FEWEST_CENTRED)
        if len(sizes) <= _MOST_GROUPS and 2 * few < len(ranks):
            number = {each: i for i, (each, _) in enumerate(sizes.most_common())}
            return how, [(number[each], f"group {number[each] + 1}") for each in signatures]
    return "unlike", [(0, "all ranks")] * len(ranks)


def _gathered(found: Sequence[_Counts]) -> list[_Counts]:
    """Ranks that are too few to be judged among those whose calls are nearest: a window that is cut elsewhere
    holds a call more. Where none are near they stay apart."""
    sizes = Counter(found)
    large = [each for each, size in sizes.items() if size >= FEWEST_CENTRED]
    near = {}
    for each in (each for each, size in sizes.items() if size < FEWEST_CENTRED):
        like = [
            (off, -sizes[other], at) for at, other in enumerate(large) if (off := _off(each, other)) <= _NEAR
        ]
        near[each] = large[min(like)[2]] if like else each
    return [near.get(each, each) for each in found]


_NEAR = 0.25
"""Of the calls of one collective: a role of its own calls something twice as often, or not at all."""


def _off(one: _Counts, other: _Counts) -> float:
    """The largest difference in calls of one collective, as a share of them."""
    a, b = dict(one), dict(other)
    if a.keys() != b.keys():
        return 1.0
    return max((abs(a[key] - b[key]) / max(1, a[key], b[key]) for key in a), default=0.0)


def _stage(stage: int, places: Places) -> str:
    role = places.stage_role.get(stage, "")
    return f"stage {stage}, {role}" if role in ("embedding", "loss") else f"stage {stage}"


def _calls(rank: Rank) -> _Counts:
    """Of each collective in one step; of the window where it has no steps."""
    counted: Counter[Hashable] = Counter()
    for row in rank.communication:
        counted[row.dimension, row.transport, row.collective] += row.count
    steps = max(1, rank.window.steps)
    often = ((key, round(count / steps)) for key, count in counted.items())
    return frozenset((key, count) for key, count in often if count)  # one in three steps is of no step


def _kinds(rank: Rank) -> _Counts:
    return frozenset(((row.dimension, row.collective), 1) for row in rank.communication)


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
