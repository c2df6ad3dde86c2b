"""When each rank came to each matched collective, and who came last."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.clocks.alignment import ClockAlignment
from perfdoc.analyzers.communication.calls import CollectiveCalls
from perfdoc.analyzers.communication.matches import Matches
from perfdoc.records import dataclass
from perfdoc.traces.table import F64, Bool, among, distinct


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
    in_window: Bool
    """By collective: began inside the windows of all its ranks; groups that were matched wrongly aside."""
    has_durations: Bool
    """By collective: when it was complete is known on all its ranks, and every given rank of its group is in
    it."""
    has_order: Bool
    """By collective: who came last is known, the clocks' residual aside: its ranks' clocks were compared,
    nobody could leave before all had come, and every given rank of its group is in it."""
    by_ends: Bool
    """By collective: its ranks' clocks are not tied by ends of collectives, so its own end stands for all:
    who was in it for the shortest time came last. Starts and ends are as if all had left together."""
    step: I64
    """By collective: the number of the step, -1 unknown."""


def arrivals(matches: Matches, ranks: Sequence[CollectiveCalls], clocks: ClockAlignment) -> Arrivals:
    """The times of all matched collectives."""
    count = len(matches.row)
    start, end, own, step = (np.empty(count, np.int64) for _ in range(4))
    in_window, exact = np.empty(count, bool), np.empty(count, bool)
    component = np.array([c.component for c in clocks.clocks], np.int64)
    cluster = np.array([c.cluster for c in clocks.clocks], np.int64)
    for i, (calls, mine) in enumerate(zip(ranks, matches.of_member, strict=True)):
        rows = matches.row[mine]
        start[mine] = clocks.aligned(i, calls.start_ns[rows])
        end[mine] = clocks.aligned(i, calls.end_ns[rows])
        own[mine] = calls.end_ns[rows] - calls.start_ns[rows]
        in_window[mine] = calls.in_window[rows]
        exact[mine] = calls.end_is_exact[rows]
        step[mine] = calls.step[rows]
    of_row, tied = component[matches.member], cluster[matches.member]
    transfer = _least(own, matches)
    believed = ~among(matches.group, list(clocks.contradicted))
    one_clock = _least(of_row, matches) == _most(of_row, matches)
    together = matches.is_synchronising | _leave_together(matches, start, end, one_clock)
    ordered = together & matches.is_complete
    has_durations = _all(exact, matches) & matches.is_complete
    by_ends = ordered & has_durations & (_least(tied, matches) != _most(tied, matches))
    alike = np.repeat(by_ends, matches.count)
    end = np.where(alike, np.repeat(_most(end, matches), matches.count), end)
    start = np.where(alike, end - own, start)
    first, last = _least(start, matches), _most(start, matches)
    return Arrivals(
        start_ns=start,
        end_ns=end,
        own_ns=own,
        transfer_ns=transfer,
        wait_ns=own - np.repeat(transfer, matches.count),
        first_ns=first,
        last_ns=last,
        in_window=_all(in_window, matches) & believed,
        has_durations=has_durations,
        has_order=ordered & (by_ends | one_clock),
        by_ends=by_ends,
        step=_least(step, matches),
    )


def _leave_together(matches: Matches, start: I64, end: I64, one_clock: Bool) -> Bool:
    """Whether a collective is of a kind that its group's ranks leave together though they come apart: an
    exchange of all with all, whatever the name says. Neighbours alone leave a ring or a pipeline so."""
    came, left = (_most(t, matches) - _least(t, matches) for t in (start, end))
    apart = one_clock & (matches.count >= _A_CROWD) & (came > _ENDS_NS)
    kind = matches.group.astype(np.int64) * (len(matches.operations) + 1) + matches.operation
    seen, of = distinct(kind)
    several, as_one = (np.bincount(of, w, len(seen)) for w in (apart, apart & (left <= _ENDS_FRAC * came)))
    return ((several >= _SEEN) & (as_one >= _NEARLY_ALL * several))[of]


def _least(values: I64, matches: Matches) -> I64:
    """Smallest value of each collective."""
    return np.minimum.reduceat(values, matches.first[:-1]) if len(matches) else values[:0]


def _most(values: I64, matches: Matches) -> I64:
    """Largest value of each collective."""
    return np.maximum.reduceat(values, matches.first[:-1]) if len(matches) else values[:0]


def _all(values: Bool, matches: Matches) -> Bool:
    """Whether all rows of each collective hold."""
    return np.logical_and.reduceat(values, matches.first[:-1]) if len(matches) else values[:0]


_ENDS_NS = 100_000
"""Ranks leave a collective within this time of each other, or within that of its transfer."""
_A_CROWD, _SEEN, _NEARLY_ALL, _ENDS_FRAC = 3, 5, 0.95, 0.1
"""Ranks of which all leave together (two do so in an exchange of any kind); collectives, the part of them and
the part of how far apart the ranks came by which they may leave apart, that show it."""


@dataclass(frozen=True, kw_only=True)
class Lateness:
    """Columns by row and by collective, over the collectives whose order of arrival can be looked at."""

    collective: I64
    """Index into Matches, by collective."""
    resolution_ns: I64
    """By collective: clock error of its arrivals."""
    is_resolved: Bool
    """By collective: the first and the last came further apart than the resolution."""
    row: I64
    """Row of Matches, by collective and member; only of collectives with more skew than clock error."""
    of: I64
    """Position in `collective`, by row."""
    is_late: Bool
    """By row: came last, alone or within the resolution together with others that are not the majority: then
    the few that came before are early, and nobody is late."""
    chance: F64
    """By row: the probability of that, if all ranks are equally likely to be among so many that come last."""
    caused_ns: F64
    """By row: time that the others together had been in the collective when the last rank came; shared
    equally by those that came last within the resolution, 0 for the others."""
    fair_frac: F64
    """By row: 1 / ranks of the collective."""
    delay_ns: F64
    """By row: how much later than everyone else the rank came, if it came last alone; else 0."""


def lateness(matches: Matches, times: Arrivals, resolution_ns: Sequence[int | None]) -> Lateness:
    """Look at every collective in the window whose order of arrival is resolved.

    resolution_ns: by group; None where its members are not compared.
    """
    of_group = np.array([-1 if r is None else r for r in resolution_ns], np.int64)
    of_each = of_group[matches.group]
    of_each = np.where(times.by_ends, np.maximum(times.transfer_ns, _ENDS_NS), of_each)
    looked = np.flatnonzero(times.in_window & times.has_order & (of_each >= 0))
    own = of_each[looked]
    is_resolved = (times.last_ns - times.first_ns)[looked] > own
    collective = looked[is_resolved]
    count = matches.count[collective]
    first = np.concatenate(([0], np.cumsum(count)[:-1])) if len(count) else count
    of = np.repeat(np.arange(len(collective)), count)
    row = matches.first[collective][of] + np.arange(len(of)) - first[of]
    start = times.start_ns[row] - times.first_ns[collective][of]
    last = (times.last_ns - times.first_ns)[collective][of]
    comes_last = start >= last - own[is_resolved][of]
    together = np.bincount(of, comes_last, len(collective))[of]
    end = times.end_ns[row] - times.first_ns[collective][of]
    waited = np.where(comes_last, 0, np.maximum(np.minimum(end, last) - start, 0))
    total = np.bincount(of, waited, len(collective))[of]
    second = np.zeros(len(collective), np.int64)
    np.maximum.at(second, of, np.where(comes_last, 0, start))
    ranks = count[of].astype(np.float64)
    is_minority = 2 * together <= ranks
    return Lateness(
        collective=looked,
        resolution_ns=own,
        is_resolved=is_resolved,
        row=row,
        of=np.flatnonzero(is_resolved)[of],
        is_late=comes_last & is_minority,
        chance=np.where(is_minority, together / ranks, 0.0),
        caused_ns=np.where(comes_last, total / np.maximum(together, 1), 0.0),
        fair_frac=1.0 / ranks,
        delay_ns=np.where(comes_last & (together == 1), last - second[of], 0).astype(np.float64),
    )
