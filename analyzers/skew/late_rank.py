"""The rank that the others wait for most in the window, recurrent or not, and what it does meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.instances.rough import Outline
from perfdoc.analyzers.matching.calls import CollectiveCalls
from perfdoc.analyzers.matching.matches import Matches
from perfdoc.analyzers.skew.arrivals import Arrivals, Lateness
from perfdoc.results.ranks import LEAVES
from perfdoc.results.waits import LateRank, waits_by_schedule

_MIN_FRAC = 0.5
"""Of all waiting, for one rank: with less none is named."""
_ODDS_RATIO = 2.0
"""The same, over the odds of each rank of the job: of two ranks one is waited for half of the time anyway."""


@dataclass(frozen=True, kw_only=True)
class Doing:
    """What is known of one rank's time, on its capture's clock."""

    window_start_ns: int
    outline: Outline


def late_rank(
    ranks: Sequence[CollectiveCalls],
    matches: Matches,
    times: Arrivals,
    late: Lateness,
    doing: Sequence[Doing],
    pp: int | None = None,
) -> LateRank | None:
    """Who that is; None where no rank stands out. Stages of a pipeline wait for each other by its schedule:
    their messages, and groups that may span them, are left out.

    pp: stages; None unknown. Other arguments in the order of the ranks; see `arrivals` and `lateness`.
    """
    of_collective = late.collective[late.of]
    is_kept = np.array([not waits_by_schedule(dimension, pp) for dimension in DIMENSIONS])
    kept = is_kept[matches.dimension[of_collective]]
    caused = np.where(kept, late.caused_ns, 0.0)
    total = float(caused.sum())
    if not total or len(ranks) < 2:
        return None
    each = np.bincount(matches.member[late.row], caused, len(ranks))
    who = int(np.argmax(each))
    frac = float(each[who]) / total
    if frac < _MIN_FRAC or frac * (len(ranks) - 1) < _ODDS_RATIO * (1 - frac):
        return None
    mine = np.flatnonzero(matches.member[late.row] == who)
    at = int(mine[np.argmax(caused[mine])])
    collective = int(of_collective[at])
    behind = int(times.last_ns[collective] - times.first_ns[collective])
    came = int(ranks[who].start_ns[matches.row[late.row[at]]])
    name, part = _mostly(doing[who], came - behind, came) if doing else ("", 0)
    member = matches.members[who]
    return LateRank(
        rank=member.rank,
        name=member.name,
        wait_frac=frac,
        operation=matches.operations[matches.operation[collective]],
        behind_ns=behind,
        doing=name,
        doing_ns=part if name else None,
    )


def _mostly(doing: Doing, begin_ns: int, end_ns: int) -> tuple[str, int]:
    """What takes most of a stretch: a leaf, `before` the window, or communication, which no outline shows."""
    spent = {"before": max(min(doing.window_start_ns, end_ns) - begin_ns, 0)}
    drawn = doing.outline
    inside = np.minimum(drawn.end_ns, end_ns) - np.maximum(
        drawn.start_ns, max(begin_ns, doing.window_start_ns)
    )
    for code in np.unique(drawn.code).tolist():
        spent[LEAVES[code]] = int(np.maximum(inside, 0)[drawn.code == code].sum())
    spent["communication"] = end_ns - begin_ns - sum(spent.values())
    name = max(spent, key=lambda key: spent[key])
    return name, spent[name]
