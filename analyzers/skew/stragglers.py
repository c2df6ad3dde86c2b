"""Ranks that the others wait for, again and again or most of all, and why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from perfdoc.analyzers.base.binomial import at_least
from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.communication.matches import Matches
from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.skew.arrivals import Arrivals, Lateness
from perfdoc.analyzers.skew.causes import Explained, RankTime, explain
from perfdoc.records import dataclass
from perfdoc.results.waits import LateRank, Straggler, StragglersState, waits_by_schedule
from perfdoc.traces.table import median, unique

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
_MIN_FRAC = 0.5
"""Of all waiting, for those that are named together: with less none is named."""
_EACH_FRAC = 0.1
"""Of all waiting: a rank that so much is for is named beside the first one."""
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
    late_ranks: list[LateRank]
    """Those that most of the waiting is for, recurrent or not, most first; none where none stands out."""
    latest: Latest


def find_stragglers(
    matches: Matches, times: Arrivals, late: Lateness, spent: Sequence[RankTime], pp: int | None
) -> Stragglers:
    """Look for them in every dimension. spent: of each rank, to tell why one is late; empty unknown. pp:
    stages of the pipeline; None unknown."""
    looked, resolved = len(late.collective), int(late.is_resolved.sum())
    if not looked:
        reason = "no collective shows the order of arrival: see `limits`"
        return Stragglers(found=[], state="not_compared", reason=reason, late_ranks=[], latest={})
    if not resolved:
        reason = f"{looked:,} collectives were compared; the skew of all of them is within clock error"
        return Stragglers(found=[], state="not_distinguishable", reason=reason, late_ranks=[], latest={})
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
    found = [_straggler(matches, times, late, spent, habit) for habit in habits]
    named = _late_ranks(matches, late, spent, every, found, pp)
    if found:
        latest = {
            (straggler.name, straggler.dimension): at
            for straggler, habit in zip(found, habits, strict=True)
            if (at := _latest(late, habit.rows)) is not None
        }
        found.sort(key=lambda s: (-s.wait_caused_ns, s.rank is None, s.rank or 0, s.name, s.dimension))
        return Stragglers(found=found, state="found", reason=differ, late_ranks=named, latest=latest)
    few = "too few to call anything recurrent" if resolved < FEWEST else "no rank is last repeatedly"
    return Stragglers(found=[], state="none", reason=f"{differ}; {few}", late_ranks=named, latest={})


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
    matches: Matches, times: Arrivals, late: Lateness, spent: Sequence[RankTime], habit: _Habit
) -> Straggler:
    mine = habit.rows
    who = matches.members[habit.member]
    alone = late.delay_ns[mine][late.delay_ns[mine] > 0]
    why = _explained(matches, late, spent, habit)
    return Straggler(
        rank=who.rank,
        name=who.name,
        dimension=DIMENSIONS[habit.dimension],
        wait_caused_ns=round(float(late.caused_ns[mine].sum())),
        delay_ns=round(float(alone.sum())),
        typical_delay_ns=round(float(median(alone))) if len(alone) else 0,
        recurrence_frac=habit.recurrence_frac,
        chance_frac=habit.chance_frac,
        chance_probability=habit.probability(len(matches.members)),
        collectives=habit.count,
        resolution_ns=int(late.resolution_ns[late.of[mine]].max()),
        lateness_ns=why.lateness_ns,
        extra_compute_ns=why.compute_ns,
        extra_wait_ns=why.elsewhere_ns,
        cause=why.cause,
        cause_ns=why.cause_ns,
        causes_ns=dict(why.causes_ns),
        borne_out=_is_borne_out(times, late, mine),
        compute_is_sure=why.compute_is_sure,
    )


def _explained(matches: Matches, late: Lateness, spent: Sequence[RankTime], habit: _Habit) -> Explained:
    groups = unique(matches.group[late.collective[late.of[habit.rows]]]).tolist()
    others = {member for group in groups for member in matches.groups[group].members}
    return explain(spent, habit.member, others, DIMENSIONS[habit.dimension])


def _late_ranks(
    matches: Matches,
    late: Lateness,
    spent: Sequence[RankTime],
    habits: Sequence[_Habit],
    stragglers: Sequence[Straggler],
    pp: int | None,
) -> list[LateRank]:
    """Stages of a pipeline wait for each other by its schedule: their messages, and groups that may span
    them, are left out. The cause of each is that of the dimension in which most is waited for it."""
    habits = [habit for habit in habits if not waits_by_schedule(DIMENSIONS[habit.dimension], pp)]
    caused = np.zeros(len(matches.members))
    for habit in habits:
        caused[habit.member] += late.caused_ns[habit.rows].sum()
    total = float(caused.sum())
    if not total or len(caused) < 2:
        return []
    frac = caused / total
    stands_out = (frac >= _EACH_FRAC) & (frac * (len(frac) - 1) >= _LEAST_ODDS * (1 - frac))
    if frac[stands_out].sum() < _MIN_FRAC:
        return []
    order = np.argsort(-frac, kind="stable")
    found = []
    for member in order[stands_out[order]].tolist():
        mine = [habit for habit in habits if habit.member == member]
        found.append(_late_rank(matches, late, spent, mine, stragglers, float(frac[member])))
    return found


def _late_rank(
    matches: Matches,
    late: Lateness,
    spent: Sequence[RankTime],
    habits: Sequence[_Habit],
    stragglers: Sequence[Straggler],
    wait_frac: float,
) -> LateRank:
    """habits: its own, one a dimension."""
    who = matches.members[habits[0].member]
    dimensions = [DIMENSIONS[habit.dimension] for habit in habits]
    known = [s for s in stragglers if s.name == who.name and s.dimension in dimensions]
    if known:
        why: Straggler | Explained = max(known, key=lambda s: (s.cause != "waiting", s.wait_caused_ns))
    else:
        habit = max(habits, key=lambda habit: late.caused_ns[habit.rows].sum())
        why = _explained(matches, late, spent, habit)
    return LateRank(
        rank=who.rank,
        name=who.name,
        wait_frac=wait_frac,
        lateness_ns=why.lateness_ns,
        cause=why.cause,
        cause_ns=why.cause_ns,
        causes_ns=dict(why.causes_ns),
        compute_is_sure=why.compute_is_sure,
    )


def _is_borne_out(times: Arrivals, late: Lateness, rows: I64) -> bool:
    """Whether each part of the capture shows it again. The collectives of a slow moment are not independent:
    a rank that lost its core for one step was last in hundreds of them."""
    in_time = rows[np.argsort(times.first_ns[late.collective[late.of[rows]]], kind="stable")]
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
