"""Ranks that differ from those that do the same work, by a robust rule: outliers do not move it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

import numpy as np

from perfdoc.results.ranks import LEAVES
from perfdoc.results.roles import (
    FEWEST,
    FEWEST_CENTRED,
    LEAST_FRAC,
    LEAST_MAD,
    STEP,
    RoleDeviation,
    RoleOutlier,
)
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
