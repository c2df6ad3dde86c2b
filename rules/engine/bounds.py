"""Upper bounds that no cure exceeds, from the ledgers and waits of all ranks together.

What goes on one rank makes the others wait less, through any number of groups and stages, so the mean over
ranks is no bound. Two are, where on every rank r so much time x(r) goes:

- no rank gets along with less than its own time without it: of its step stays what is neither x(r) nor
  waiting w(r) for other ranks. So min over r of x(r) + w(r);
- along the critical path, which runs through the ranks, no more goes than is there: the sum of x(r). Where
  ranks that run one program lose the same at the same place of it, the path meets each place once: it holds
  the largest x(r) of each stage of the pipeline at most.

w(r) is all communication that is not known to be transfer, host waits included, up to what is not compute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.measure_device import RankMeasurement
from perfdoc.rules.engine.case import Case

Of = Callable[[RankMeasurement], int]


_ALIKE = 1.1
"""Kernels of one program differ by so much between ranks at most, place by place."""


def most_saved_ms(case: Case, of: Of, *, anywhere: bool) -> float | None:
    """The smaller of both bounds for a step, or for a window without steps; None without a rank.

    of: x(r). anywhere: whether ranks may lose it at different places, as what hosts do. Of a single rank only
    its own time is known.
    """
    if not case.ranks:
        return None
    units = [r.window.steps if case.unit == "step" else 1 for r in case.ranks]
    waits = waiting_ns(case)
    alone = min((of(r) + waits[id(r)]) / n for r, n in zip(case.ranks, units, strict=True))
    each = [of(r) / n for r, n in zip(case.ranks, units, strict=True)]
    if len(each) == 1:
        return alone / 1e6
    together = sum(each) * max((case.job.world_size or 0) / len(each), 1.0)
    if not anywhere:
        together = min(together, _ALIKE * max(each) * _stages(case))
    return min(alone, together) / 1e6


def _stages(case: Case) -> int:
    """Of the pipeline; where that is not known and there are messages between stages, as many as ranks."""
    known = case.job.stages or case.job.facts.pp
    sends = any(row.dimension == "pp" for r in case.ranks for row in r.communication)
    return known or (len(case.ranks) if sends else 1)


def waited_for_ms(case: Case, late: Callable[[RankMeasurement], bool]) -> float | None:
    """What the ranks that wait for some late ones can save without these: of each its waiting, the least of
    all. None where every rank is late."""
    waits = waiting_ns(case)
    units = ((r, r.window.steps if case.unit == "step" else 1) for r in case.ranks if not late(r))
    return min((waits[id(r)] / n / 1e6 for r, n in units), default=None)


def waiting_ns(case: Case) -> Mapping[int, int]:
    """By id of a rank's measurement what it may be waiting for other ranks in its window."""
    if len(case.ranks) < 2:
        return {id(r): 0 for r in case.ranks}
    lacking, transfer = _with_missing(case), dict.fromkeys(case.job.labels, 0)
    for row in case.job.skew.waits:
        if row.dimension not in lacking and row.name in transfer:
            transfer[row.name] += row.transfer_ns
    return {id(r): _of_rank(r, transfer[label]) for r, label in zip(case.ranks, case.job.labels, strict=True)}


def _with_missing(case: Case) -> set[str]:
    """Dimensions of groups that have ranks without a capture: what is shortest on those at hand may be a wait
    for one of them."""
    matches = case.job.matches
    groups = [i for i, group in enumerate(matches.groups) if group.missing]
    found = np.unique(matches.dimension[np.isin(matches.group, groups)]).tolist()
    return {DIMENSIONS[i] for i in found}


def _of_rank(rank: RankMeasurement, transfer_ns: int) -> int:
    split = rank.host.idle_split
    host_ns = (split.waiting_ns or 0) + (split.pausing_ns or 0)
    communicating_ns = sum(row.total_ns for row in rank.communication)
    most = max(communicating_ns - transfer_ns, 0) + host_ns + rank.ledger.idle.unexplained
    return min(most, rank.ledger.total - rank.ledger.compute)
