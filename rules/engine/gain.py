"""Time that a rule's advice is about: evidence of it, and the gain, predicted by replay or an upper bound.

Upper bounds that no cure exceeds, from the ledgers and waits of all ranks together.

What goes on one rank makes the others wait less, through any number of groups and stages, so the mean over
ranks is no bound. Two are, where on every rank r so much time x(r) goes:

- no rank gets along with less than its own time without it: of its step stays what is neither x(r) nor
  waiting w(r) for other ranks. So min over r of x(r) + w(r);
- along the critical path, which runs through the ranks, no more goes than is there: the sum of x(r). Where
  ranks that run one program lose the same at the same place of it, the path meets each place once: it holds
  the largest x(r) of each stage of the pipeline at most.

w(r) is all communication that is not known to be transfer, host waits included, up to what is not compute.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

import numpy as np

from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.measure_device import RankMeasurement as RankMeasurement
from perfdoc.results.figures import brief, per_cent
from perfdoc.results.replay import Gain as Gain
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.rule import Evidence, Verdict
from perfdoc.simulator.replay.proposals import CHANGES

Of = Callable[[RankMeasurement], int]
_INEXACT = 0.25


_ALIKE = 1.1
"""Kernels of one program differ by so much between ranks at most, place by place."""


def _idle_ns(rank: RankMeasurement) -> int:
    """All that its host may be late for: what it loses and what it waits in are both of it."""
    idle = rank.ledger.idle
    return idle.host + idle.gc + idle.data + idle.unexplained


def _stages(case: Case) -> int:
    """Of the pipeline; where that is not known and there are messages between stages, as many as ranks."""
    known = case.job.stages
    sends = case.job.may_be_piped or any(row.dimension == "pp" for r in case.ranks for row in r.communication)
    return known or (len(case.ranks) if sends else 1)


def waited_for_ms(
    case: Case, late: Callable[[RankMeasurement], bool], *, on_hosts: bool = True
) -> float | None:
    """What the ranks that wait for some late ones can save without these: of each its waiting, the least of
    all. None where every rank is late. on_hosts: see waiting_ns."""
    waits = waiting_ns(case, on_hosts=on_hosts)
    others = (r for r in case.ranks if not late(r))
    return min((waits[id(r)] / case.units_of(r) / 1e6 for r in others), default=None)


def waiting_ns(case: Case, *, on_hosts: bool = True) -> Mapping[int, int]:
    """By id of a rank's measurement what it may be waiting for other ranks in its window. on_hosts: where its
    host does nothing that is known, too, which may as well be its own pause."""
    if len(case.ranks) < 2:
        return {id(r): 0 for r in case.ranks}
    lacking, transfer = _with_missing(case), dict.fromkeys(case.job.labels, 0)
    for row in case.job.skew.waits:
        if row.dimension not in lacking and row.name in transfer:
            transfer[row.name] += row.transfer_ns
    pairs = zip(case.ranks, case.job.labels, strict=True)
    return {id(r): _of_rank(r, transfer[label], on_hosts=on_hosts) for r, label in pairs}


def _with_missing(case: Case) -> set[str]:
    """Dimensions of groups that have ranks without a capture: what is shortest on those at hand may be a wait
    for one of them."""
    matches = case.job.matches
    missing = np.array([*(group.missing > 0 for group in matches.groups), False])  # the last: of no group
    found = set(matches.dimension[missing[matches.group]].tolist())
    return {DIMENSIONS[i] for i in found}


def _of_rank(rank: RankMeasurement, transfer_ns: int, *, on_hosts: bool) -> int:
    split = rank.host.idle_split
    host_ns = (split.waiting_ns or 0) + (split.pausing_ns or 0) + rank.ledger.idle.unexplained
    communicating_ns = sum(row.total_ns for row in rank.communication)
    most = max(communicating_ns - transfer_ns, 0) + (host_ns if on_hosts else 0)
    return min(most, rank.ledger.total - rank.ledger.compute)


def predicted(case: Case, *keys: str) -> Gain | None:
    """The best of several predictions; None if there is none. Never their sum."""
    return best_of(p.gain for key in keys if (p := case.prediction(key)) is not None)


def _counts(gain: Gain) -> float:
    """What a millisecond of a predicted gain counts beside others."""
    return 1.0 if gain.key not in CHANGES or CHANGES[gain.key].exact else _INEXACT


def best_of(gains: Iterable[Gain]) -> Gain | None:
    """The largest prediction, of a change of numerics if four times as large; without one the largest upper
    bound; else None."""
    found = list(gains)
    replayed = [g for g in found if g.is_predicted]
    if replayed:
        return max(replayed, key=lambda g: ((g.mid_ms or 0.0) * _counts(g), g.low_ms or 0.0))
    ceilings = [g for g in found if g.method == "ceiling"]
    return max(ceilings, key=lambda g: g.high_ms or 0.0) if ceilings else None


def bounded(found: Gain | None, most: Gain | None) -> Gain | None:
    """A prediction; without one the smaller of two upper bounds of the same change: `most`, the rule's own,
    and what a withheld prediction leaves. It has the prediction's key: a report has one bound of a change."""
    if found is None or most is None or found.is_predicted:
        return found or most
    return replace(most, key=found.key) if (most.high_ms or 0.0) < (found.high_ms or 0.0) else found


def bound_of(case: Case, key: str, most: Gain | None) -> Gain | None:
    """An upper bound of a change that is not taken from its prediction, though there may be one: where that
    gains less, the bound is of a host that keeps up, which the capture may not show since it slows it."""
    replayed = predicted(case, key)
    if most is None or replayed is None:
        return most
    if not replayed.is_predicted:
        return bounded(replayed, most)
    less = (replayed.high_ms or 0.0) < (most.high_ms or 0.0) and not most.assumptions[0].endswith(LAUNCHES)
    return replace(most, key=key, assumptions=[*most.assumptions, *([KEEPS_UP] if less else [])])


KEEPS_UP, LAUNCHES = "the host keeps up untraced", ", and idle time before their launches"


def worth_frac(case: Case, *keys: str) -> float:
    """The largest predicted gain of these changes as a share of the step; 0 without a prediction."""
    shares = [
        p.mid_ns / p.step_ns
        for key in keys
        if (p := case.prediction(key)) is not None and p.mid_ns is not None and p.step_ns
    ]
    return max(shares, default=0.0)


def at_most(gain: Gain | None, why: str) -> Gain | None:
    """The upper bound of advice that covers only part of a predicted change: the prediction's upper end. It
    keeps the key, since all of the change is not to be had."""
    if gain is None or gain.high_ms is None:
        return None
    return replace(gain, low_ms=0.0, mid_ms=None, method="ceiling", assumptions=[why, *gain.assumptions])


def kept_gain(verdict: Verdict, allowed: Collection[str], so_already: Collection[str] = ()) -> Gain | None:
    """The gain of the advice in `allowed`: that of the best piece, never their sum.

    so_already: what it needs beside it and has.
    If none of them has a gain, the verdict's own; next to advice that is an upper bound, what a cause costs
    whatever cures it, or nothing.
    """
    gains = []
    for piece in verdict.advice:
        if piece.knob in allowed and piece.gain is not None:
            missing = [knob for knob in piece.together if knob not in (*allowed, *so_already)]
            why = f"predicted together with {', '.join(missing)}, which this configuration forbids"
            gains.append(at_most(piece.gain, why) if missing else piece.gain)
    best = best_of(g for g in gains if g is not None)
    own = verdict.gain
    if best is not None:
        return best if own is None or own.is_predicted else bounded(best, own)
    stands = own is None or not verdict.advice or own.method == "ceiling" or verdict.cause is not None
    return own if stands else None


def ceiling(
    case: Case,
    of: Of,
    what: str,
    *,
    anywhere: bool = False,
    in_turn: bool = False,
    exposed: bool = False,
    launches: Of = lambda _: 0,
) -> Gain | None:
    """An upper bound: the smaller of both for a step, or for a window without steps; None without a rank.

    of: x(r). anywhere: whether it is idle time of hosts, which ranks may lose at different places. exposed:
    whether it is communication that w(r) has, too.
    in_turn: whether hosts may wait meanwhile, as where ranks copy or write in turn. launches: idle time of
    hosts that goes with it, at different places. Of a single rank only its own time is known.
    """
    if not case.ranks:
        return None
    waits, beside = waiting_ns(case), waiting_ns(case, on_hosts=False)
    alone = min((of(r) + launches(r) + waits[id(r)]) / case.units_of(r) for r in case.ranks)
    if anywhere:  # what waits for a host is lost once, beside communication too; what a device computes stays
        once = ((max(of(r), _idle_ns(r)) + beside[id(r)]) / case.units_of(r) for r in case.ranks)
        alone = min(alone, *once)
    if anywhere or exposed:
        left = ((r.ledger.total - r.ledger.compute * (not r.on_host)) / case.units_of(r) for r in case.ranks)
        alone = min(alone, *left)
    each = [of(r) / case.units_of(r) for r in case.ranks]
    if len(each) > 1:
        of_all = max((case.job.world_size or 0) / len(each), 1.0)
        together = sum(each) * of_all
        if not anywhere:
            hosts = ((waits[id(r)] - beside[id(r)]) / case.units_of(r) for r in case.ranks if in_turn)
            together = min(together, _ALIKE * max(each) * _stages(case) + max(hosts, default=0))
        alone = min(alone, together + of_all * sum(launches(r) / case.units_of(r) for r in case.ranks))
    return upper_bound(alone / 1e6, what)


def upper_bound(high_ms: float, what: str) -> Gain:
    """What no cure exceeds. Not a prediction, and labelled so."""
    said = f"upper bound, not predicted: {what}"
    return Gain(low_ms=0.0, mid_ms=None, high_ms=high_ms, method="ceiling", assumptions=[said])


def time_share(case: Case, label: str, of: Callable[[RankMeasurement], int]) -> tuple[float, list[Evidence]]:
    """(share of the window, mean over ranks; the evidence of it). 0 where every window is empty."""
    share = case.share(of) or 0.0
    return share, time_evidence(case, label, share, of)


def time_evidence(
    case: Case, label: str, share: float, of: Callable[[RankMeasurement], int]
) -> list[Evidence]:
    """The share of the window, mean over ranks, and the time per step where there are steps.

    share: the result of `case.share(of)`.
    """
    evidence = [(f"{label}, mean over ranks", per_cent(share))]
    if (ms := case.per_step_ms(of)) is not None:
        evidence.append(("per step", brief(ms * 1e6)))
    return evidence
