"""Ranks that the others wait for again and again, and whether their own computing explains it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from perfdoc.analyzers.base.binomial import at_least
from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.base.rows import row_keys
from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.matching.calls import CollectiveCalls
from perfdoc.analyzers.matching.matches import Matches
from perfdoc.analyzers.skew.arrivals import Arrivals, Lateness
from perfdoc.results.waits import LateCause, Straggler, StragglersState
from perfdoc.traces.table import F64

FEWEST = 5
"""Collectives in which arrivals can be resolved apart; of fewer nothing recurrent is said."""
_LARGEST_CHANCE = 0.01
"""Probability that chance alone makes any of the ranks come last so often."""
_ODDS_RATIO = 2.0
"""The odds of coming last must be so many times those of chance: in ten thousand collectives the smallest
bias is significant, and matters to nobody."""
_BLOCKS = 4
"""Parts of the capture, each with as many of the collectives. Of two equal ranks one and the same is later in
all four in one capture of eight."""
_EXPLAINS_FRAC = 0.5
"""Of its lateness; what makes up this share is named as the cause."""

Latest: TypeAlias = Mapping[tuple[str, str], int]
"""By a straggler's name and dimension the collective (index into Matches) to which it alone came latest after
everybody else; it is missing where it never came last alone."""


@dataclass(frozen=True, kw_only=True)
class Stragglers:
    """The stragglers, most waited for first; and what the answer is if there are none."""

    found: list[Straggler]
    state: StragglersState
    reason: str
    latest: Latest


def find_stragglers(
    ranks: Sequence[CollectiveCalls], matches: Matches, times: Arrivals, late: Lateness
) -> Stragglers:
    """Look for them in every dimension. Arguments: see `arrivals` and `lateness`."""
    looked, resolved = len(late.collective), int(late.is_resolved.sum())
    if not looked:
        reason = "no collective shows the order of arrival: see `limits`"
        return Stragglers(found=[], state="not_compared", reason=reason, latest={})
    if not resolved:
        reason = f"{looked:,} collectives were compared; the skew of all of them is within clock error"
        return Stragglers(found=[], state="not_distinguishable", reason=reason, latest={})
    compared = f"arrivals at {resolved:,} of {looked:,} collectives differ by more than clock error"
    habits = [
        habit
        for habit in _habits(matches, late)
        if habit.count >= FEWEST
        and habit.probability(len(matches.members)) < _LARGEST_CHANCE
        and habit.odds_ratio >= _ODDS_RATIO
        and habit.share_of_wait > habit.fair_share
    ]
    if habits:
        elsewhere = {d: _waited_elsewhere(matches, times, d) for d in {habit.dimension for habit in habits}}
        found = [
            _straggler(ranks, matches, times, late, habit, elsewhere[habit.dimension]) for habit in habits
        ]
        latest = {
            (straggler.name, straggler.dimension): at
            for straggler, habit in zip(found, habits, strict=True)
            if (at := _latest(late, habit.rows)) is not None
        }
        found.sort(key=lambda s: (-s.wait_caused_ns, s.rank is None, s.rank or 0, s.name, s.dimension))
        return Stragglers(found=found, state="found", reason=compared, latest=latest)
    few = "too few to call anything recurrent" if resolved < FEWEST else "no rank is last repeatedly"
    return Stragglers(found=[], state="none", reason=f"{compared}; {few}", latest={})


@dataclass(frozen=True, kw_only=True)
class _Habit:
    """How often one rank came last in one dimension."""

    member: int
    dimension: int
    rows: I64
    """Rows of Lateness."""
    recurrence_frac: float
    chance_frac: float
    share_of_wait: float
    """Of all that was waited for anybody in these collectives."""
    fair_share: float
    """Of that, if all ranks caused as much."""

    @property
    def count(self) -> int:
        """Collectives."""
        return len(self.rows)

    @property
    def odds_ratio(self) -> float:
        """Odds of coming last over those of chance."""
        return _odds_ratio(self.recurrence_frac, self.chance_frac)

    def probability(self, ranks: int) -> float:
        """That chance alone makes any of so many ranks come last so often: the exact binomial, for each rank.

        Where the collectives' chances differ by size or by ranks that came together, no less than that."""
        last = round(self.recurrence_frac * self.count)
        if last < self.count * self.chance_frac + 1:  # what Hoeffding's bound holds from
            return 1.0
        return min(1.0, ranks * at_least(last, self.count, self.chance_frac))


def _habits(matches: Matches, late: Lateness) -> list[_Habit]:
    member = matches.member[late.row].astype(np.int64)
    dimension = matches.dimension[matches.collective[late.row]].astype(np.int64)
    key = member * len(DIMENSIONS) + dimension
    order = np.argsort(key, kind="stable")
    present, first = np.unique(key[order], return_index=True)
    total = np.bincount(late.of, late.caused_ns, len(late.collective))
    found = []
    for k, mine in zip(present.tolist(), np.split(order, first[1:]), strict=True):
        waited = float(total[late.of[mine]].sum())
        found.append(
            _Habit(
                member=k // len(DIMENSIONS),
                dimension=k % len(DIMENSIONS),
                rows=mine,
                recurrence_frac=float(late.is_late[mine].mean()),
                chance_frac=float(late.chance[mine].mean()),
                fair_share=float(late.fair_frac[mine].mean()),
                share_of_wait=float(late.caused_ns[mine].sum()) / waited if waited else 0.0,
            )
        )
    return found


def _straggler(
    ranks: Sequence[CollectiveCalls],
    matches: Matches,
    times: Arrivals,
    late: Lateness,
    habit: _Habit,
    waited_elsewhere: F64 | None,
) -> Straggler:
    who, mine = matches.members[habit.member], habit.rows
    alone = late.delay_ns[mine][late.delay_ns[mine] > 0]
    lateness_ns = round(float(np.median(late.behind_ns[mine])) * len(mine))
    others = _others(matches, late, habit)
    extra_compute = _extra_compute_ns(ranks, matches, times, late, habit)
    extra_wait = _extra_wait_ns(waited_elsewhere, habit, others)
    cause: LateCause = "other"
    needed = max(1.0, _EXPLAINS_FRAC * lateness_ns)
    if extra_compute is not None and extra_compute >= needed:
        cause = "compute"
    elif extra_wait is not None and extra_wait >= needed:
        cause = "waiting"
    return Straggler(
        rank=who.rank,
        name=who.name,
        dimension=DIMENSIONS[habit.dimension],
        wait_caused_ns=round(float(late.caused_ns[mine].sum())),
        delay_ns=round(float(alone.sum())),
        typical_delay_ns=round(float(np.median(alone))) if len(alone) else 0,
        recurrence_frac=habit.recurrence_frac,
        chance_frac=habit.chance_frac,
        chance_probability=habit.probability(len(matches.members)),
        steps_frac=_steps_frac(matches, times, late, habit),
        collectives=habit.count,
        resolution_ns=int(late.resolution_ns[late.of[mine]].max()),
        lateness_ns=lateness_ns,
        extra_compute_ns=extra_compute,
        extra_wait_ns=extra_wait,
        cause=cause,
        borne_out=_is_borne_out(times, late, mine),
    )


def _is_borne_out(times: Arrivals, late: Lateness, rows: I64) -> bool:
    """Whether each part of the capture shows it again. The collectives of a slow moment are not independent:
    a rank that lost its core for one step was last in hundreds of them."""
    collective = late.collective[late.of[rows]]
    in_time = rows[np.argsort(times.first_ns[collective], kind="stable")]
    parts = np.array_split(in_time, _BLOCKS)
    return all(_odds_ratio(late.is_late[p].mean(), late.chance[p].mean()) >= _ODDS_RATIO for p in parts)


def _odds_ratio(often: float, chance: float) -> float:
    """Odds of coming last over those of chance."""
    if chance <= 0 or often >= 1:
        return math.inf if often > 0 else 0.0
    return often * (1 - chance) / ((1 - often) * chance)


def _latest(late: Lateness, rows: I64) -> int | None:
    at = int(np.argmax(late.delay_ns[rows]))
    return int(late.collective[late.of[rows[at]]]) if late.delay_ns[rows[at]] > 0 else None


def _collectives(late: Lateness, habit: _Habit) -> I64:
    """Index into Matches of the collectives of a habit."""
    return late.collective[late.of[habit.rows]]


def _others(matches: Matches, late: Lateness, habit: _Habit) -> I64:
    """Members that it shares these collectives with."""
    groups = np.unique(matches.group[_collectives(late, habit)])
    everyone = {m for g in groups.tolist() for m in matches.groups[g].members}
    return np.array(sorted(everyone - {habit.member}), np.int64)


def _extra_compute_ns(
    ranks: Sequence[CollectiveCalls], matches: Matches, times: Arrivals, late: Lateness, habit: _Habit
) -> int | None:
    """Computing between the arrivals at the first and the last of the collectives, beyond the others' median;
    summed over groups."""
    collectives = _collectives(late, habit)
    extra = 0.0
    for group in np.unique(matches.group[collectives]).tolist():
        mine = collectives[matches.group[collectives] == group]
        begin = _computed_before(ranks, matches, int(mine[times.first_ns[mine].argmin()]))
        end = _computed_before(ranks, matches, int(mine[times.first_ns[mine].argmax()]))
        computed = {m: end[m] - begin[m] for m in begin.keys() & end.keys()}
        own = computed.pop(habit.member, None)
        if own is None or not computed:
            return None
        extra += own - float(np.median(list(computed.values())))
    return round(extra)


def _computed_before(ranks: Sequence[CollectiveCalls], matches: Matches, collective: int) -> dict[int, int]:
    """For each member of a collective the time that it had computed before it came."""
    rows = slice(int(matches.first[collective]), int(matches.first[collective + 1]))
    pairs = zip(matches.member[rows].tolist(), matches.row[rows].tolist(), strict=True)
    return {member: int(ranks[member].compute_before_ns[row]) for member, row in pairs}


def _waited_elsewhere(matches: Matches, times: Arrivals, dimension: int) -> F64 | None:
    """By member, the waiting in other dimensions than this; None where there are no collectives of any."""
    elsewhere = times.in_window & times.has_durations & (matches.dimension != dimension)
    rows = elsewhere[matches.collective]
    if not rows.any():
        return None
    waited = np.bincount(matches.member[rows], times.wait_ns[rows], len(matches.members))
    return waited.astype(np.float64, copy=False)


def _extra_wait_ns(waited: F64 | None, habit: _Habit, others: I64) -> int | None:
    """Waiting in other dimensions, beyond the others' median."""
    if waited is None or not len(others):
        return None
    return round(float(waited[habit.member] - np.median(waited[others])))


def _steps_frac(matches: Matches, times: Arrivals, late: Lateness, habit: _Habit) -> float | None:
    """Share of (group, step) in which the member caused the most waiting."""
    at = np.unique(late.of[habit.rows])
    at = at[times.step[late.collective[at]] >= 0]
    if not len(at):
        return None
    # Rows of Lateness are in the order of its collectives: a job has as many habits as it has groups, and
    # each looks at its own rows only.
    low, high = np.searchsorted(late.of, at), np.searchsorted(late.of, at, "right")
    count = high - low
    rows = np.arange(count.sum()) + np.repeat(low - np.cumsum(count) + count, count)
    of = late.collective[late.of[rows]]
    first, case = row_keys(matches.group[of].astype(np.int64), times.step[of])
    members, member = np.unique(matches.member[late.row[rows]], return_inverse=True)
    caused = np.bincount(
        case * len(members) + member.ravel(), late.caused_ns[rows], len(first) * len(members)
    ).reshape(len(first), -1)
    own = caused[:, np.searchsorted(members, habit.member)]
    worst = (own >= caused.max(axis=1)) & (own > 0)
    return float(worst.mean())
