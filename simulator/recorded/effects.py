"""What makes passes longer than their peers': one rank, a whole stage, or the data; each told from the others
by what only it shows.

A slow rank is longer than the other replicas of its stage in all steps and all micro-batches. A long stage is
longer on all its replicas. Uneven data makes the forward and the backward pass of a micro-batch longer
together, and in the next step those of another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfdoc.results.what_if import CauseKind
from perfdoc.simulator.recorded.work import StageWork
from perfdoc.traces.table import F64

LEAST = 0.03
"""Above its peers: less is no effect."""
NEARLY_ALWAYS = 0.8
"""Of steps, and of micro-batches, in which a lasting effect shows."""
CORRELATED = 0.6
"""Of forward with backward lengths: from here on it is the data."""
MOSTLY = 0.5
"""Of what a rank takes longer in gaps: it is its host; in communication inside its passes: another rank's."""
ALIKE = 0.1
"""Of stages' times: as far apart, and they are compared as one."""
MAX_SLOW = 8
"""Ranks that are looked at one by one, those furthest above their peers."""


@dataclass(frozen=True, kw_only=True)
class Effect:
    """One of them, and the work of all stages without it."""

    kind: CauseKind
    members: tuple[int, ...]
    """Positions of ranks; empty nobody in particular."""
    stage: int | None
    ratio: float
    peers: int
    recurrence_frac: float
    correlation: float | None
    note: str
    factors: tuple[F64, ...]
    """By stage: what its work is multiplied by."""
    even: tuple[F64, ...] | None = None
    """The same with the excess of a long stage spread over all."""


def slow_ranks(works: Sequence[StageWork]) -> list[Effect]:
    """Ranks that take longer than the other ranks of their stage, whatever the step and the micro-batch, the
    slowest first. Not those that only wait for another one inside their passes."""
    found = []
    for at, work in enumerate(works):
        if len(work.members) < 2:
            continue
        for m in range(len(work.members)):
            others = np.delete(work.takes, m, axis=0)
            by_step = work.takes[m].sum(axis=0) / np.median(others.sum(axis=1), axis=0)
            middle = float(np.median(by_step))
            if middle < 1 + LEAST:
                continue
            half = 1 + (middle - 1) / 2
            by_item = work.takes[m].mean(axis=1) / np.maximum(np.median(others.mean(axis=2), axis=0), 1.0)
            weight = work.takes[m].mean(axis=1)
            everywhere = float(weight[by_item > half].sum() / weight.sum())
            lasting = float((by_step > half).mean())
            if min(lasting, everywhere) < NEARLY_ALWAYS:
                continue
            if _beyond(work.shared, m) <= MOSTLY * _beyond(work.takes, m):
                found.append(_slow_rank(works, at, m, middle, lasting))
    found.sort(key=lambda e: -e.ratio)
    return found


def _beyond(values: F64, m: int) -> float:
    """How much more one rank has of it than the others of its stage."""
    whole = values.sum(axis=(1, 2))
    return float(whole[m] - np.median(np.delete(whole, m)))


def slow_together(works: Sequence[StageWork], slow: Sequence[Effect]) -> list[Effect]:
    """Ranks that are slow alike: without one of them all wait for the next, so none alone has a price."""
    alike = [e for e in slow if e.ratio - 1 >= MOSTLY * (slow[0].ratio - 1)]
    if len(alike) < 2:
        return []
    members = tuple(sorted(m for e in alike for m in e.members))
    stages = [w for w in works if set(w.members) & set(members)]
    factors = without([np.ones_like(w.takes) for w in works], alike)
    return [
        Effect(
            kind="late_host" if all(e.kind == "late_host" for e in alike) else "slow_rank",
            members=members,
            stage=stages[0].stage if len(stages) == 1 and len(works) > 1 else None,
            ratio=float(np.median([e.ratio for e in alike])),
            peers=sum(len(w.members) for w in stages) - len(members),
            recurrence_frac=min(e.recurrence_frac for e in alike),
            correlation=None,
            note="",
            factors=tuple(factors),
        )
    ]


def _slow_rank(works: Sequence[StageWork], at: int, m: int, ratio: float, lasting: float) -> Effect:
    work = works[at]
    factors = [np.ones_like(w.takes) for w in works]
    for kind in work.kinds:
        rows = work.of_kind(kind)
        own = work.takes[m][rows].sum()
        peers = np.median(np.delete(work.takes, m, axis=0)[:, rows].sum(axis=(1, 2)))
        factors[at][m][rows] = min(1.0, peers / own) if own > 0 else 1.0
    peers, note = len(work.members) - 1, ""
    # Where all stages take as long, all ranks are its peers.
    others = [np.delete(w.takes, m, axis=0) if w is work else w.takes for w in works]
    means = [np.median(takes.sum(axis=1).mean(axis=1)) for takes in others]
    if max(means) <= (1 + ALIKE) * min(means):
        peers = sum(len(w.members) for w in works) - 1
    elif peers == 1:
        note = "compared with one other replica"
    return Effect(
        kind="late_host" if _beyond(work.gaps, m) > MOSTLY * _beyond(work.takes, m) else "slow_rank",
        members=(work.members[m],),
        stage=work.stage if len(works) > 1 else None,
        ratio=ratio,
        peers=peers,
        recurrence_frac=lasting,
        correlation=None,
        note=note,
        factors=tuple(factors),
    )


def long_stages(works: Sequence[StageWork], slow: Sequence[Effect]) -> list[Effect]:
    """The stage whose replicas all take longer than the other stages, slow ranks aside."""
    if len(works) < 2:
        return []
    takes = without([w.takes for w in works], slow)
    by_step = np.array([np.median(t.sum(axis=1), axis=0) for t in takes])
    total = by_step.mean(axis=1)
    at = int(total.argmax())
    others = np.delete(by_step, at, axis=0)
    ratio = float(total[at] / others.mean())
    own = takes[at].sum(axis=1).mean(axis=1)
    if ratio < 1 + LEAST or own.min() < (1 + (ratio - 1) / 2) * others.mean():
        return []
    lasting = float((by_step[at] > (1 + (ratio - 1) / 2) * others.mean(axis=0)).mean())
    if lasting < NEARLY_ALWAYS:
        return []
    factors = [np.ones_like(t) for t in takes]
    for kind in works[at].kinds:
        mean = [takes[i][:, w.of_kind(kind)].mean() for i, w in enumerate(works) if kind in w.kinds]
        own_mean = takes[at][:, works[at].of_kind(kind)].mean()
        if len(mean) == len(works):
            factors[at][:, works[at].of_kind(kind)] = min(1.0, float(np.mean(mean)) / own_mean)
        else:
            factors[at][:, works[at].of_kind(kind)] = float(total.mean() / total[at])
    even = [np.full_like(t, total.mean() / total[i]) for i, t in enumerate(takes)]
    alone = len(works[at].members) == 1
    return [
        Effect(
            kind="long_stage",
            members=works[at].members if alone else (),
            stage=works[at].stage,
            ratio=ratio,
            peers=len(works) - 1,
            recurrence_frac=lasting,
            correlation=None,
            note="one replica of it was captured: a slow GPU would look the same" if alone else "",
            factors=tuple(factors),
            even=tuple(even),
        )
    ]


def uneven_data(works: Sequence[StageWork]) -> list[Effect]:
    """Micro-batches that take longer than others of a rank, one in this step and another in the next."""
    factors, ratios, recurring = [], [], []
    for work in works:
        wanted = work.takes.copy()
        for kind in work.kinds:
            rows = work.of_kind(kind)
            several = wanted[:, rows]
            wanted[:, rows] = several.mean(axis=(1, 2), keepdims=True)
            longest = several.max(axis=(0, 1)) / np.maximum(several.mean(axis=(0, 1)), 1.0)
            ratios.append(float(np.median(longest)))
            recurring.append(longest > 1 + LEAST)
        factors.append(np.divide(wanted, work.takes, out=np.ones_like(wanted), where=work.takes > 0))
    ratio = max(ratios, default=1.0)
    correlation = pass_correlation(works)
    if ratio < 1 + LEAST or correlation is None or correlation < CORRELATED or _is_habit(works):
        return []
    return [
        Effect(
            kind="uneven_data",
            members=(),
            stage=None,
            ratio=ratio,
            peers=sum(len(w.members) for w in works),
            recurrence_frac=float(np.mean(recurring)),
            correlation=correlation,
            note="",
            factors=tuple(factors),
        )
    ]


def pass_correlation(works: Sequence[StageWork]) -> float | None:
    """Of forward and backward passes of the same micro-batches, each over its rank's mean; None where they
    are not told apart, or none differs."""
    pairs: list[F64] = []
    for work in works:
        numbers = [n for kind, n in work.items if kind == "forward" and ("backward", n) in work.items]
        if not numbers:
            continue
        both = [work.takes[:, [work.items.index((k, n)) for n in numbers]] for k in ("forward", "backward")]
        over = [b / np.maximum(b.mean(axis=(1, 2), keepdims=True), 1.0) - 1 for b in both]
        pairs.append(np.array([o.ravel() for o in over]))
    if not pairs:
        return None
    forward, backward = np.concatenate(pairs, axis=1)
    spread = float(forward.std() * backward.std())
    return float((forward * backward).mean() / spread) if spread > 0 else None


def _is_habit(works: Sequence[StageWork]) -> bool:
    """Whether the same micro-batches of the same ranks are long in every step: that is no data."""
    lasting = changing = 0.0
    for work in works:
        over = work.takes / np.maximum(work.takes.mean(axis=(1, 2), keepdims=True), 1.0)
        for kind in work.kinds:
            one = over[:, work.of_kind(kind)]
            one = one / one.mean(axis=(1, 2), keepdims=True)
            usual = one.mean(axis=2)
            lasting += float(usual.var()) * one.shape[1]
            changing += float((one - usual[:, :, None]).var()) * one.shape[1]
    steps = works[0].takes.shape[2] if works else 0
    return steps > 1 and lasting - changing / steps > changing


def without(takes: Sequence[F64], effects: Sequence[Effect]) -> list[F64]:
    """The work of all stages with effects taken away."""
    found = list(takes)
    for effect in effects:
        found = [t * f for t, f in zip(found, effect.factors, strict=True)]
    return found
