"""A rank whose host pauses now and then, while all others wait for it."""

from collections.abc import Collection

from perfdoc.results.waits import LateRank, waits_by_schedule
from perfdoc.rules.engine.gain import Gain, upper_bound, waited_for_ms
from perfdoc.rules.engine.rule import Case
from perfdoc.rules.facts.culprit import LEADS_FRAC


def in_pauses(case: Case) -> LateRank | None:
    """The rank that nearly all waiting is for, at few collectives, because of its host: what chance does not
    do, though it may not come back."""
    late, found = case.job.skew.latest, case.job.skew
    if late is None or late.cause not in ("host", "gc", "data", "copies") or late.wait_frac < _NEARLY_ALL:
        return None
    once = any(r.window.runs_once or r.window.steps == 1 for r in case.ranks)
    told = sum(not waits_by_schedule(w.dimension, case.job.stages) for w in found.waits)
    if once or told < len(case.ranks) or found.distinguishable > _FEW_FRAC * found.compared:
        return None
    gain = most_waited(case, {late.name}, on_hosts=False)
    lost = None if gain is None else case.share_of_unit(gain.size_ms)
    return late if (lost or 0.0) >= LEADS_FRAC else None


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
