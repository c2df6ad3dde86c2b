"""A rank whose host pauses now and then, while all others wait for it."""

from collections.abc import Collection, Sequence

import numpy as np

from perfdoc.records import dataclass
from perfdoc.results.figures import plural
from perfdoc.results.waits import LATE_WORDS, LateCause, waits_by_schedule
from perfdoc.rules.engine.gain import Gain, RankMeasurement, upper_bound, waited_for_ms
from perfdoc.rules.engine.rule import Case
from perfdoc.rules.facts.culprit import LEADS_FRAC
from perfdoc.rules.facts.culprit_words import listed
from perfdoc.rules.facts.graphs import between_steps_ns
from perfdoc.rules.facts.loading import awaiting_ns


@dataclass(frozen=True, kw_only=True)
class Pausing:
    """Ranks that all others wait for now and then."""

    names: list[str]
    wait_frac: float
    cause: LateCause
    at: str
    """Behind it: at how many collectives, where these are few."""
    at_once: bool = True
    """Whether they do in the same steps."""

    @property
    def who(self) -> str:
        """`rank 1 and rank 2`"""
        return listed(self.names)

    @property
    def does(self) -> str:
        """Behind it."""
        together = f"whose hosts pause {'together' if self.at_once else 'in different steps'}"
        return f"which {LATE_WORDS[self.cause]}" if self.is_one else together

    @property
    def cure(self) -> str:
        """What to do."""
        who = "One rank that logs, evaluates or saves stops" if self.is_one else "They stop"
        return f"{who} all: log, evaluate and save on another thread, or less often."

    @property
    def is_one(self) -> bool:
        """Whether it is a single rank."""
        return len(self.names) == 1


def in_pauses(case: Case) -> Pausing | None:
    """The rank that nearly all waiting is for, alone or at few collectives, because of its host: what chance
    does not do, though it may not come back. And the names of it and of those that pause about as long:
    whoever is the last one has all the waiting, and without it the next one has."""
    found = case.job.skew
    hosts = [late for late in (found.latest, *found.also_late) if late is not None and late.cause in _HOSTS]
    alone = bool(hosts) and hosts[0].wait_frac >= _NEARLY_ALL
    hosts = hosts[:1] if alone else hosts
    wait_frac = sum(late.wait_frac for late in hosts)
    if not hosts or wait_frac < _NEARLY_ALL:
        return None
    once = any(r.window.runs_once or r.window.steps == 1 for r in case.ranks)
    told = sum(not waits_by_schedule(w.dimension, case.job.stages) for w in found.waits)
    few = found.distinguishable <= _FEW_FRAC * found.compared
    if once or told < len(case.ranks) or not (few or alone):
        return None
    named = {late.name for late in hosts}
    idle = dict(zip(case.job.labels, map(_silent_ns, case.ranks), strict=False))
    least = _AS_LONG * min(idle.get(name, 0) for name in named)
    names = [name for name in idle if name in named or idle[name] >= least > 0]
    gain = most_waited(case, names, on_hosts=False)
    lost = None if gain is None else case.share_of_unit(gain.size_ms)
    if (lost or 0.0) < LEADS_FRAC:
        return None
    they = [r for r, name in zip(case.ranks, case.job.labels, strict=False) if name in names]
    at = f", at {found.distinguishable:,} of {found.compared:,} collectives" if few else ""
    at_once = _in_same_steps(they)
    return Pausing(names=names, wait_frac=wait_frac, cause=hosts[0].cause, at=at, at_once=at_once)


def _in_same_steps(ranks: Sequence[RankMeasurement]) -> bool:
    """Whether what the host loses of each one lies in steps in which the others lose as much."""
    lost = [r.step_ledgers.leaf_ns["idle.host"] for r in ranks if r.step_ledgers.state == "measured"]
    if len(lost) < 2 or len({len(each) for each in lost}) > 1:
        return True
    return float(np.min(lost, axis=0).sum()) >= (1 - _AS_LONG) * float(np.mean(lost, axis=0).sum())


def _silent_ns(rank: RankMeasurement) -> int:
    idle = rank.ledger.idle
    return awaiting_ns(rank) + between_steps_ns(rank) + idle.gc + idle.data


_HOSTS = ("host", "gc", "data", "copies")
_AS_LONG = 0.7
"""As what a late rank loses by its host: those that lose as much pause beside it."""
_NEARLY_ALL = 0.9
"""Of all waiting."""
_FEW_FRAC = 0.35
"""Of the collectives: those at which a rank pauses."""


def most_waited(case: Case, late: Collection[str], *, on_hosts: bool = True) -> Gain | None:
    """No rank that waits for them saves more than all that it waits, in whatever dimension. One that pauses
    beside a late rank waits little for it, and keeps its own pause: on_hosts is False of pauses."""
    labels = {id(r): label for r, label in zip(case.ranks, case.job.labels, strict=False)}
    most = waited_for_ms(case, lambda r: labels.get(id(r)) in late, on_hosts=on_hosts)
    said = "all waiting of the rank that waits least, of the others"
    return None if most is None else upper_bound(most, said)


def least_far(case: Case) -> str:
    """Who launched least of a step that does not end, where all launch alike; empty where nobody did."""
    counts = {n: r.hung for r, n in zip(case.ranks, case.job.labels, strict=True) if r.hung is not None}
    got = sorted({mine for mine, _ in counts.values()})
    late = [name for name, (mine, _) in counts.items() if [mine] == got[:1]]
    piped = case.job.may_be_piped or (case.job.stages or 1) > 1
    alike = len({usual for _, usual in counts.values()}) == 1 and len(counts) == len(case.ranks)
    if piped or not alike or 2 * len(late) > len(counts):
        return ""
    return f"{listed(late)} got least far: {plural(got[0], 'launch', 'launches')} in it, others {got[1]:,}."
