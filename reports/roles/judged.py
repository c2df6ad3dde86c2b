"""Who is held against whom: a role of enough ranks against itself, smaller ones with the help of others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median, median_low

from perfdoc.reports.leaves import COMPUTE, LEAVES
from perfdoc.reports.roles.outliers import (
    FEWEST,
    FEWEST_CENTRED,
    STEP,
    Deviation,
    Outlier,
    Spread,
    deviations,
    in_order,
    outlier,
)

_COMMUNICATION = [leaf.family == "exposed_comm" for leaf in LEAVES]
_Values = Callable[[Sequence[int]], list[float]]
"""One figure of some ranks."""


def judged(
    roles: Sequence[Sequence[int]],
    alike: Sequence[bool],
    shares: Sequence[Sequence[float]],
    steps_ns: Sequence[int] | None,
) -> tuple[list[Outlier], list[int]]:
    """Ranks that differ, those first that spend more themselves; and those that cannot be judged, those first
    that compute most.

    roles: their members. alike: by role, whether it does what others of which this is said do (inner stages
    of a pipeline): where their members are too few they are judged together. shares: by rank, by leaf.
    steps_ns: by rank; None where lengths cannot be compared.
    """
    small = [at for at, members in enumerate(roles) if len(members) < FEWEST_CENTRED]
    together = [i for at in small if alike[at] for i in roles[at]]
    if len(together) < FEWEST:
        together = []
    among_stages = set(together)
    role_of = {i: at for at, members in enumerate(roles) for i in members}
    found: dict[int, list[Deviation]] = {}
    for figure, values in _figures(shares, steps_ns):
        within = None
        if any(FEWEST_CENTRED <= len(members) < FEWEST for members in roles):
            within = _within(roles, values)
        for members in (*roles, together):
            if len(members) < FEWEST_CENTRED:
                continue
            spread = None if len(members) >= FEWEST else within
            for place, far in deviations(values(members), figure, spread).items():
                found.setdefault(members[place], []).append(far)
    left = {i for at in small for i in roles[at]} - among_stages
    return (
        in_order(
            [
                outlier(i, role_of[i], each, _COMMUNICATION, among_stages=i in among_stages)
                for i, each in found.items()
            ]
        ),
        sorted(left, key=lambda i: (-shares[i][COMPUTE], i)),
    )


def _figures(
    shares: Sequence[Sequence[float]], steps_ns: Sequence[int] | None
) -> Iterator[tuple[int, _Values]]:
    def lengths(members: Sequence[int]) -> list[float]:
        assert steps_ns is not None
        own = [steps_ns[i] for i in members]
        usual = max(1, median_low(own))
        return [length / usual for length in own]

    def of(leaf: int) -> _Values:
        return lambda members: [shares[i][leaf] for i in members]

    if steps_ns is not None:
        yield STEP, lengths
    for leaf in range(len(LEAVES)):
        yield leaf, of(leaf)


def _within(roles: Sequence[Sequence[int]], values: _Values) -> Spread:
    """Spread in all roles, each against its own median; in small ones each against the others of its role:
    the median of three is one of them."""
    off: list[float] = []
    for members in roles:
        if len(members) < FEWEST_CENTRED:
            continue
        own = values(members)
        if len(own) < FEWEST:
            off += [abs(one - median(own[:at] + own[at + 1 :])) for at, one in enumerate(own)]
        else:
            usual = median(own)
            off += [abs(one - usual) for one in own]
    return Spread(mad=median(off), of=len(off))
