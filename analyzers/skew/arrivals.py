"""When each rank came to each matched collective, how long it stayed, and how much of that was waiting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.calls.collective_calls import CollectiveCalls
from perfdoc.analyzers.calls.matches import Matches
from perfdoc.analyzers.clocks.clocks import ClockAlignment
from perfdoc.traces.table import Bool


@dataclass(frozen=True, kw_only=True)
class Arrivals:
    """Columns beside those of Matches: by row and by collective."""

    start_ns: I64
    """By row, on the aligned clock of the row's component."""
    end_ns: I64
    own_ns: I64
    """By row: how long the rank was in it. Needs no alignment."""
    transfer_ns: I64
    """By collective: the shortest own of its ranks, which waited for nobody."""
    wait_ns: I64
    """By row: own - transfer."""
    first_ns: I64
    """By collective: when the first rank came."""
    last_ns: I64
    """By collective: when the last rank came."""
    end_spread_ns: I64
    """By collective: from the first end to the last."""
    in_window: Bool
    """By collective: began inside the windows of all its ranks; groups that were matched wrongly aside."""
    has_durations: Bool
    """By collective: when it was complete is known on all its ranks, and every given rank of its group is in
    it."""
    has_order: Bool
    """By collective: who came last can be told, the clocks' residual aside: its ranks' clocks were compared,
    nobody could leave before all had come, and every given rank of its group is in it."""
    step: I64
    """By collective: the number of the step, -1 unknown."""


def arrivals(matches: Matches, ranks: Sequence[CollectiveCalls], clocks: ClockAlignment) -> Arrivals:
    """The times of all matched collectives."""
    count = len(matches.row)
    start, end, own, step = (np.empty(count, np.int64) for _ in range(4))
    in_window, exact = np.empty(count, bool), np.empty(count, bool)
    component = np.array([c.component for c in clocks.clocks], np.int64)
    for i, (calls, mine) in enumerate(zip(ranks, matches.of_member, strict=True)):
        rows = matches.row[mine]
        start[mine] = clocks.aligned(i, calls.start_ns[rows])
        end[mine] = clocks.aligned(i, calls.end_ns[rows])
        own[mine] = calls.end_ns[rows] - calls.start_ns[rows]
        in_window[mine] = calls.in_window[rows]
        exact[mine] = calls.end_is_exact[rows]
        step[mine] = calls.step[rows]
    of_row = component[matches.member]
    transfer = _least(own, matches)
    first, last = _least(start, matches), _most(start, matches)
    believed = ~np.isin(matches.group, list(clocks.contradicted))
    return Arrivals(
        start_ns=start,
        end_ns=end,
        own_ns=own,
        transfer_ns=transfer,
        wait_ns=own - np.repeat(transfer, matches.count),
        first_ns=first,
        last_ns=last,
        end_spread_ns=_most(end, matches) - _least(end, matches),
        in_window=_all(in_window, matches) & believed,
        has_durations=_all(exact, matches) & matches.is_complete,
        has_order=matches.is_synchronising
        & matches.is_complete
        & (_least(of_row, matches) == _most(of_row, matches)),
        step=_least(step, matches),
    )


def _least(values: I64, matches: Matches) -> I64:
    """Smallest value of each collective."""
    return np.minimum.reduceat(values, matches.first[:-1]) if len(matches) else values[:0]


def _most(values: I64, matches: Matches) -> I64:
    """Largest value of each collective."""
    return np.maximum.reduceat(values, matches.first[:-1]) if len(matches) else values[:0]


def _all(values: Bool, matches: Matches) -> Bool:
    """Whether all rows of each collective hold."""
    return np.logical_and.reduceat(values, matches.first[:-1]) if len(matches) else values[:0]
