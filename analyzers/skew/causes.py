"""Why a rank is late: what it spends longer on than the ranks that wait for it, over all its lateness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.clocks.alignment import ClockAlignment
from perfdoc.analyzers.communication.calls import CollectiveCalls
from perfdoc.analyzers.communication.matches import Matches
from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.instances.rough import Outline
from perfdoc.analyzers.skew.arrivals import Arrivals
from perfdoc.results.ranks import IDLE_CAUSES, LEAVES
from perfdoc.results.waits import LateCause
from perfdoc.traces.table import Bool

EXPLAINS_FRAC = 0.5
"""Of its lateness; what makes up this share is named as the cause."""
_IDLE = np.array([LEAVES.index(f"idle.{cause}") for cause in IDLE_CAUSES])
_KNOWN = [cause for cause in IDLE_CAUSES if cause != "unexplained"]


@dataclass(frozen=True, kw_only=True)
class RankTime:
    """What is known of one rank's time, on its capture's clock."""

    window_start_ns: int
    outline: Outline

    def idle_before(self, at_ns: int) -> I64:
        """Idle time of the window until then, by cause as in IDLE_CAUSES."""
        inside = np.clip(at_ns - self.outline.start_ns, 0, self.outline.end_ns - self.outline.start_ns)
        spent = np.bincount(self.outline.code, inside, len(LEAVES))
        return np.asarray(spent[_IDLE], np.int64)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All that ranks are compared by."""

    ranks: Sequence[CollectiveCalls]
    matches: Matches
    times: Arrivals
    waited_ns: I64
    """By rank and dimension, inside the window."""
    waits_known: Bool
    """By dimension: whether it has collectives whose waiting is known."""
    spent: Sequence[RankTime]
    """Of each rank; empty where only compute and waiting are known."""
    window_start_ns: Sequence[int]
    """Of each rank on the aligned clock; empty like `spent`."""


def compare_ranks(
    ranks: Sequence[CollectiveCalls],
    matches: Matches,
    times: Arrivals,
    clocks: ClockAlignment,
    spent: Sequence[RankTime],
) -> Comparison:
    """Everything in the order of the ranks."""
    starts = [int(clocks.aligned(i, np.array([each.window_start_ns]))[0]) for i, each in enumerate(spent)]
    known = (times.in_window & times.has_durations)[matches.collective]
    dimension = matches.dimension[matches.collective[known]].astype(np.int64)
    waited = np.zeros((len(ranks), len(DIMENSIONS)), np.int64)
    np.add.at(waited, (matches.member[known], dimension), times.wait_ns[known])
    return Comparison(
        ranks=ranks,
        matches=matches,
        times=times,
        waited_ns=waited,
        waits_known=np.bincount(dimension, minlength=len(DIMENSIONS)) > 0,
        spent=spent,
        window_start_ns=starts,
    )


def measure_extras(compared: Comparison, member: int, dimension: int, collectives: I64) -> dict[str, int]:
    """By cause, how much longer than the median of the others of its groups; negative where shorter.

    compute and idle time: until the last of the collectives (indices into Matches) in each group, summed over
    groups. before: how much later its window begins. waiting: in other dimensions, over the whole window.
    """
    matches, times = compared.matches, compared.times
    extras: dict[str, int] = {}
    groups = np.unique(matches.group[collectives]).tolist()
    idle = np.zeros(len(_IDLE), np.int64)
    compute = 0.0
    for group in groups:
        shared = collectives[matches.group[collectives] == group]
        last = int(shared[times.first_ns[shared].argmax()])
        rows = slice(int(matches.first[last]), int(matches.first[last + 1]))
        members, calls = matches.member[rows].tolist(), matches.row[rows].tolist()
        own = members.index(member)
        pairs = list(zip(members, calls, strict=True))
        computed = np.array([compared.ranks[m].compute_before_ns[call] for m, call in pairs])
        compute += _beyond_others(computed, own)
        if compared.spent:
            waited = [
                compared.spent[m].idle_before(int(compared.ranks[m].start_ns[call])) for m, call in pairs
            ]
            idle += np.array([round(_beyond_others(cause, own)) for cause in np.transpose(waited)])
    extras["compute"] = round(compute)
    others = sorted({m for group in groups for m in matches.groups[group].members} - {member})
    if np.delete(compared.waits_known, dimension).any() and others:
        elsewhere = compared.waited_ns.sum(axis=1) - compared.waited_ns[:, dimension]
        extras["waiting"] = round(float(elsewhere[member] - np.median(elsewhere[others])))
    if compared.spent and others:
        begin = compared.window_start_ns
        extras["before"] = round(begin[member] - float(np.median([begin[m] for m in others])))
        extras.update({cause: int(idle[IDLE_CAUSES.index(cause)]) for cause in _KNOWN})
    return extras


def _beyond_others(values: I64, own: int) -> float:
    return float(values[own] - np.median(np.delete(values, own)))


def find_cause(extras: Mapping[str, int], lateness_ns: float) -> LateCause:
    """The largest of them, if it makes up `EXPLAINS_FRAC` of the lateness; waiting only where none of its own
    does."""
    needed = max(1.0, EXPLAINS_FRAC * lateness_ns)
    own = max((name for name in extras if name != "waiting"), key=lambda name: extras[name])
    for cause in (own, "waiting"):
        if extras.get(cause, 0) >= needed:
            return cause  # type: ignore[return-value]
    return "other"
