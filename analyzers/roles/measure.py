"""Ranks by role: the pipeline's stage, or where stages are not known, equal communication."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from statistics import median, median_low
from typing import Literal, TypeAlias

import numpy as np

from perfdoc.analyzers.roles.places import Places, place_ranks
from perfdoc.records import dataclass
from perfdoc.results.headline import Job
from perfdoc.results.ranks import LEAVES, Rank
from perfdoc.results.roles import (
    FEWEST,
    FEWEST_CENTRED,
    LEAST_FRAC,
    LEAST_MAD,
    MANY,
    STEP,
    Role,
    RoleDeviation,
    RoleOutlier,
    RolePlaces,
    RolesAnalysis,
    RoleShare,
    length_ns,
    shares_of,
)
from perfdoc.results.waits import PipelineAnalysis
from perfdoc.traces.table import F64

_SMALL = 160
"""Of few ranks the median absolute deviation is small by chance. With this in `mads` chance names fewer than
one rank in a hundred of a role of any size (ten figures, normal spread, by simulation)."""
_COMPUTE = LEAVES.index("compute")


def mads(of: int) -> float:
    """How many median absolute deviations are far, where the deviation is one of so many values.

    >>> [round(mads(of), 1) for of in (5, 8, 16, 32, 1024)]
    [44.4, 21.0, 9.8, 6.9, 6.0]
    """
    return LEAST_MAD * (1 + _SMALL / of**2)


@dataclass(frozen=True, kw_only=True)
class _Table:
    """Figures of all ranks: a column each leaf, then the length of steps where they can be compared."""

    names: Sequence[str]
    values: F64

    def of(self, members: Sequence[int]) -> F64:
        """Of these ranks; lengths over their median."""
        values: F64 = self.values[members].copy()
        if self.names[-1] == STEP:
            values[:, -1] /= max(1.0, median_low(values[:, -1].tolist()))
        return values


def judge_ranks(
    roles: Sequence[Sequence[int]],
    alike: Sequence[bool],
    shares: Sequence[Sequence[float]],
    lengths_ns: Sequence[int] | None,
) -> tuple[list[RoleOutlier], list[int]]:
    """Ranks that differ, those first that spend more themselves; and those that cannot be judged, those first
    that compute most. A role of enough ranks is held against itself, smaller ones with the help of others.

    roles: their members. alike: by role, whether it does what others of which this is said do (inner stages
    of a pipeline): where their members are too few they are judged together. shares: by rank, by leaf.
    lengths_ns: by rank; None where they cannot be compared.
    """
    columns = np.array(shares, np.float64)
    table = _Table(names=LEAVES, values=columns)
    if lengths_ns is not None:
        with_lengths = np.column_stack((columns, np.array(lengths_ns, np.float64)))
        table = _Table(names=(*LEAVES, STEP), values=with_lengths)
    small = [at for at, members in enumerate(roles) if len(members) < FEWEST_CENTRED]
    together = [i for at in small if alike[at] for i in roles[at]]
    if len(together) < FEWEST:
        together = []
    deviations: dict[int, list[RoleDeviation]] = {}
    within = _spread_within(table, roles)
    for members in (*roles, together):
        if len(members) >= FEWEST_CENTRED:
            spread = None if len(members) >= FEWEST else within
            for place, far in find_deviations(table.names, table.of(members), spread).items():
                deviations.setdefault(members[place], []).extend(far)
    role_of = {i: at for at, members in enumerate(roles) for i in members}
    outliers = [make_outlier(i, role_of[i], far, among_stages=i in together) for i, far in deviations.items()]
    unjudged = {i for at in small for i in roles[at]} - set(together)
    return (
        sorted(outliers, key=lambda each: (each.comm_alone, -abs(each.lead.by_frac), each.rank)),
        sorted(unjudged, key=lambda i: (-shares[i][_COMPUTE], i)),
    )


def _spread_within(table: _Table, roles: Sequence[Sequence[int]]) -> tuple[F64, int]:
    """(median absolute deviation, of so many values) in all roles, each against its own median; in small ones
    each against the others of its role: the median of three is one of them."""
    off = []
    for members in roles:
        values = table.of(members) if len(members) >= FEWEST_CENTRED else None
        if values is not None and len(values) >= FEWEST:
            off.append(np.abs(values - np.median(values, axis=0)))
        elif values is not None:
            others = [np.median(np.delete(values, at, axis=0), axis=0) for at in range(len(values))]
            off.append(np.abs(values - others))
    if not off:
        return np.zeros(len(table.names)), 0
    return np.median(np.concatenate(off), axis=0), sum(map(len, off))


def find_deviations(
    names: Sequence[str], values: F64, spread: tuple[F64, int] | None = None
) -> dict[int, list[RoleDeviation]]:
    """By position, what is far from the median of its column. values: a row each rank. spread: (median
    absolute deviation, of so many values); None for the values' own."""
    usual = np.median(values, axis=0)
    off = np.abs(values - usual)
    mad, of = spread if spread is not None else (np.median(off, axis=0), len(values))
    far: dict[int, list[RoleDeviation]] = {}
    for place, at in zip(*np.nonzero(off > np.maximum(LEAST_FRAC, mads(of) * mad)), strict=True):
        deviation = RoleDeviation(
            figure=names[at],
            value_frac=float(values[place, at]),
            usual_frac=float(usual[at]),
            mad_frac=float(mad[at]),
        )
        far.setdefault(int(place), []).append(deviation)
    return far


def make_outlier(
    rank: int, role: int, deviations: Sequence[RoleDeviation], *, among_stages: bool
) -> RoleOutlier:
    """One rank from all its deviations. among_stages: see RoleOutlier."""
    # The step goes before a leaf that differs as much.
    ordered = sorted(deviations, key=lambda each: (-abs(each.by_frac), each.figure != STEP))
    longer = [each for each in ordered if each.by_frac > 0]
    work = [each for each in longer if each.figure != STEP and not each.figure.startswith("exposed_comm.")]
    steps = [each for each in longer if each.figure == STEP]
    lead = (work or steps or ordered)[0]
    return RoleOutlier(
        rank=rank,
        role=role,
        lead=lead,
        others=[each for each in ordered if each is not lead],
        comm_alone=not (work or steps),
        among_stages=among_stages,
    )


_MOST_GROUPS = 16
"""Of equal communication: more would be no summary."""
_NEAR = 0.25
"""Of the calls of one collective: a role of its own calls something twice as often, or not at all."""
_OUTER_FRAC = 0.05
"""Below the 5th percentile, and above the 95th."""
_Counts: TypeAlias = frozenset[tuple[Hashable, int]]
"""What a rank communicates, and how often."""
_Basis: TypeAlias = Literal["stages", "numbers", "calls", "kinds", "one", "unlike"]


def measure_roles(ranks: Sequence[Rank], job: Job | None, pipeline: PipelineAnalysis) -> RolesAnalysis | None:
    """None of up to MANY ranks. ranks: in the order of Diagnosis.ranks."""
    if len(ranks) <= MANY:
        return None
    places = place_ranks(ranks, job, pipeline)
    with_steps = sum(bool(rank.window.step_list) for rank in ranks)
    steps = with_steps == len(ranks)
    # Steps beside whole captures say nothing of each other.
    comparable = steps or not with_steps
    based_on, keys = _find_keys(ranks, places, comparable=comparable)
    members: dict[tuple[int, str], list[int]] = {key: [] for key in sorted(set(keys))}
    for i, key in enumerate(keys):
        members[key].append(i)
    shares = [shares_of(rank) for rank in ranks]
    lengths = [length_ns(rank, steps=steps) for rank in ranks]
    staged = based_on in ("stages", "numbers")
    alike = [staged and places.is_inner(places.stage[of[0]]) for of in members.values()]
    outliers, unjudged = judge_ranks(list(members.values()), alike, shares, lengths if comparable else None)
    return RolesAnalysis(
        based_on=based_on,
        steps=steps,
        roles=[_summarize(label, of, shares, lengths) for (_, label), of in members.items()],
        outliers=outliers,
        unjudged=unjudged,
        places=RolePlaces(
            sizes=dict(places.sizes),
            of={name: list(of) for name, of in places.of.items()},
            agreeing=places.agreeing,
            refuted=places.refuted,
        ),
    )


def _find_keys(
    ranks: Sequence[Rank], places: Places, *, comparable: bool
) -> tuple[_Basis, list[tuple[int, str]]]:
    """How roles are made; and by rank what orders its role, and what it is called. comparable: whether counts
    are of like stretches of time."""
    stages = {stage for stage in places.stage if stage is not None}
    if len(stages) > 1:
        unknown = (len(stages), "stage unknown")
        keys = [unknown if stage is None else (stage, places.stage_label(stage)) for stage in places.stage]
        return ("stages" if places.counted else "numbers"), keys
    kinds: list[_Counts] = [
        frozenset(((row.dimension, row.collective), 1) for row in rank.communication) for rank in ranks
    ]
    signatures: dict[_Basis, list[_Counts]] = {"kinds": kinds}
    if comparable:
        signatures = {"calls": _join_near([_count_calls(rank) for rank in ranks]), **signatures}
    for basis, signature in signatures.items():
        sizes = Counter(signature)
        if len(sizes) == 1:
            return "one", [(0, "all ranks")] * len(ranks)
        few = sum(size for size in sizes.values() if size < FEWEST_CENTRED)
        if len(sizes) <= _MOST_GROUPS and 2 * few < len(ranks):
            number = {each: i for i, (each, _) in enumerate(sizes.most_common())}
            return basis, [(number[each], f"group {number[each] + 1}") for each in signature]
    return "unlike", [(0, "all ranks")] * len(ranks)


def _join_near(counts: Sequence[_Counts]) -> list[_Counts]:
    """Ranks that are too few to be judged among those whose calls are nearest: a window that is cut elsewhere
    holds a call more. Where none are near they stay apart."""
    sizes = Counter(counts)
    large = [each for each, size in sizes.items() if size >= FEWEST_CENTRED]
    near = {}
    for each in (each for each, size in sizes.items() if size < FEWEST_CENTRED):
        like = [
            (off, -sizes[other], at)
            for at, other in enumerate(large)
            if (off := _measure_difference(each, other)) <= _NEAR
        ]
        near[each] = large[min(like)[2]] if like else each
    return [near.get(each, each) for each in counts]


def _measure_difference(one: _Counts, other: _Counts) -> float:
    """The largest difference in calls of one collective, as a share of them."""
    a, b = dict(one), dict(other)
    if a.keys() != b.keys():
        return 1.0
    return max((abs(a[key] - b[key]) / max(1, a[key], b[key]) for key in a), default=0.0)


def _count_calls(rank: Rank) -> _Counts:
    """Of each collective in one step; of the window where it has no steps."""
    counted: Counter[Hashable] = Counter()
    for row in rank.communication:
        counted[row.dimension, row.transport, row.collective] += row.count
    steps = max(1, rank.window.steps)
    often = ((key, round(count / steps)) for key, count in counted.items())
    return frozenset((key, count) for key, count in often if count)  # one in three steps is of no step


def _summarize(
    label: str, members: list[int], shares: Sequence[Sequence[float]], lengths_ns: Sequence[int]
) -> Role:
    columns = [sorted(shares[i][leaf] for i in members) for leaf in range(len(LEAVES))]
    middle = [median(column) for column in columns]
    lengths = sorted(lengths_ns[i] for i in members)
    last = len(members) - 1
    low, high = int(_OUTER_FRAC * last), last - int(_OUTER_FRAC * last)
    off = np.abs(np.array([shares[i] for i in members]) - middle).sum(axis=1)
    return Role(
        label=label,
        members=members,
        shares={
            leaf: RoleShare(median_frac=usual, low_frac=column[low], high_frac=column[high])
            for leaf, usual, column in zip(LEAVES, middle, columns, strict=True)
        },
        step_ns=median_low(lengths),
        step_low_ns=lengths[low],
        step_high_ns=lengths[high],
        typical=members[int(np.argmin(off))],
    )
