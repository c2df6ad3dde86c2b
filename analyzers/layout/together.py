"""Whether all ranks take part in the same collectives, where no capture tells any group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfdoc.analyzers.communication.calls import CollectiveCalls
from perfdoc.analyzers.communication.matches import Matches
from perfdoc.traces.table import median

_LEAST = 8
"""Collectives from which on ends that coincide are no chance."""
_CLOSE_NS = 100_000
_CLOSER_THAN_STARTS = 4
"""Ranks of one collective begin it when they come and leave it together."""


def ranks_together(matches: Matches, calls: Sequence[CollectiveCalls]) -> int | None:
    """How many ranks leave all of their collectives together, all that were captured; None where they do not,
    or a capture tells its groups.

    Each rank's clock may be off by a constant. Two groups of a job that do the same end at different times.
    """
    ranks = len(calls)
    if ranks < 2 or any(c.groups for c in calls) or len(matches.members) != ranks:
        return None
    whole = np.flatnonzero((matches.count == ranks) & matches.is_synchronising)
    if len(whole) < _LEAST or len(whole) * 2 < len(matches):
        return None
    at = matches.first[whole][:, None] + np.arange(ranks)
    member, row = matches.member[at], matches.row[at]
    start, end = np.empty(at.shape), np.empty(at.shape)
    for i, of_rank in enumerate(calls):
        mine = member == i
        start[mine], end[mine] = of_rank.start_ns[row[mine]], of_rank.end_ns[row[mine]]
    apart = end - end[:, :1]
    spread = np.ptp(apart - median(apart.T), axis=1)
    of_starts = np.ptp(start - start[:, :1] - median(apart.T), axis=1)
    close = float(median(spread))
    return ranks if close <= min(_CLOSE_NS, float(median(of_starts)) / _CLOSER_THAN_STARTS) else None
