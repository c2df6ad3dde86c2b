"""Ranks that the others wait for, again and again or most of all, and why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from perfdoc.analyzers.base.binomial import at_least
from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.communication.matches import Matches
from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.skew.causes import Arrivals, Comparison, Lateness, find_cause, measure_extras
from perfdoc.results.waits import LateRank, Straggler, StragglersState, waits_by_schedule

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
_COUNTED_AGAIN = 0.5
"""Of its delays, which count one lateness again where collectives overlap: its lateness is that at least."""
_MIN_FRAC = 0.5
"""Of all waiting, for one rank: with less none is named."""
_LEAST_ODDS = 2.0
"""The same, over the odds of each rank of the job: of two ranks one is waited for half of the time anyway."""

Latest: TypeAlias = Mapping[tuple[str, str], int]
"""By a straggler's name and dimension the collective (index into Matches) to which it alone came latest after
everybody else; it is missing where it never came last alone."""


@dataclass(frozen=True, kw_only=True)
class Stragglers:
    """The stragglers, most waited for first; and what the answer is if there are none."""

    found: list[Straggler]
    state: StragglersState
    reason: str
    late_rank: LateRank | None
    """The rank that most of the waiting is for, recurrent or not; None where none stands out."""
    latest: Latest


def find_stragglers(compared: Comparison, late: Lateness, pp: int | None) -> Stragglers:
    """Look for them in every dimension. pp: stages of the pipeline; None unknown."""
    matches = compared.matches
    looked, resolved = len(late.collective), int(late.is_resolved.sum())
    if not looked:
        reason = "no collective shows the order of arrival: see `limits`"
        return Stragglers(found=[], state="not_compared", reason=reason, late_rank=None, latest={})
    if not resolved:
        reason = f"{looked:,} collectives were compared; the skew of all of them is within clock error"
        return Stragglers(found=[], state="not_distinguishable", reason=reason, late_rank=None, latest={})
    differ = f"arrivals at {resolved:,} of {looked:,} collectives differ by more than clock error"
    every = _habits(matches, late)
    habits = [
        habit
        for habit in every
        if habit.count >= FEWEST
        and habit.probability(len(matches.members)) < _LARGEST_CHANCE
        and habit.odds_ratio >= _ODDS_RATIO
        and habit.share_of_wait > habit.fair_share
    ]
    found = [_straggler(compared, late, habit) for habit in habits]
    late_rank = _late_rank(compared, late, every, found, pp)
    if found:
        latest = {
            (straggler.name, straggler.dimension): at
            for straggler, habit in zip(found, habits, strict=True)
            if (at := _latest(late, habit.rows)) is not None
        }
        found.sort(key=lambda s: (-s.wait_caused_ns, s.rank is None, s.rank or 0, s.name, s.dimension))
        return Stragglers(found=found, state="found", reason=differ, late_rank=late_rank, latest=latest)
    few = "too few to call anything recurrent" if resolved < FEWEST else "no rank is last repeatedly"
    return Stragglers(found=[], state="none", reason=f"{differ}; {few}", late_rank=late_rank, latest={})


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


def _straggler(compared: Comparison, late: Lateness, habit: _Habit) -> Straggler:
    matches, mine = compared.matches, habit.rows
    who = matches.members[habit.member]
    alone = late.delay_ns[mine][late.delay_ns[mine] > 0]
    lateness_ns = round(float(np.median(late.behind_ns[mine])) * len(mine))
    extras = _extras(compared, late, habit)
    cause = find_cause(extras, max(lateness_ns, _COUNTED_AGAIN * alone.sum()))
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
        collectives=habit.count,
        resolution_ns=int(late.resolution_ns[late.of[mine]].max()),
        lateness_ns=lateness_ns,
        extra_compute_ns=extras["compute"],
        extra_wait_ns=extras.get("waiting"),
        cause=cause,
        cause_ns=extras.get(cause),
        borne_out=_is_borne_out(compared.times, late, mine),
    )


def _extras(compared: Comparison, late: Lateness, habit: _Habit) -> dict[str, int]:
    return measure_extras(compared, habit.member, habit.dimension, late.collective[late.of[habit.rows]])


def _late_rank(
    compared: Comparison,
    late: Lateness,
    habits: Sequence[_Habit],
    stragglers: Sequence[Straggler],
    pp: int | None,
) -> LateRank | None:
    """Stages of a pipeline wait for each other by its schedule: their messages, and groups that may span
    them, are left out. Its cause is that of the dimension in which most is waited for it."""
    habits = [habit for habit in habits if not waits_by_schedule(DIMENSIONS[habit.dimension], pp)]
    caused = np.zeros(len(compared.ranks))
    for habit in habits:
        caused[habit.member] += late.caused_ns[habit.rows].sum()
    total = float(caused.sum())
    if not total or len(compared.ranks) < 2:
        return None
    member = int(np.argmax(caused))
    frac = float(caused[member]) / total
    if frac < _MIN_FRAC or frac * (len(compared.ranks) - 1) < _LEAST_ODDS * (1 - frac):
        return None
    who = compared.matches.members[member]
    known = [s for s in stragglers if s.name == who.name and not waits_by_schedule(s.dimension, pp)]
    if known:
        worst = max(known, key=lambda s: (s.cause != "waiting", s.wait_caused_ns))
        lateness_ns, cause, cause_ns = worst.lateness_ns, worst.cause, worst.cause_ns
    else:
        habit = max(
            (habit for habit in habits if habit.member == member),
            key=lambda habit: late.caused_ns[habit.rows].sum(),
        )
        extras = _extras(compared, late, habit)
        lateness_ns = round(float(late.delay_ns[habit.rows].sum()))
        cause = find_cause(extras, lateness_ns)
        cause_ns = extras.get(cause)
    return LateRank(
        rank=who.rank,
        name=who.name,
        wait_frac=frac,
        lateness_ns=lateness_ns,
        cause=cause,
        cause_ns=cause_ns,
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
