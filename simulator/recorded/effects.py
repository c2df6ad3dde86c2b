"""What makes passes longer than their peers': one rank, a whole stage, or the data; each told from the others
by what only it shows.

A slow rank is longer than the other replicas of its stage in all micro-batches, of all steps or of many. A
long stage is longer on all its replicas. Uneven data makes the forward and the backward pass of a micro-batch
longer together, and in the next step those of another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from perfdoc.analyzers.steps.scatter import LEAST, NEARLY_ALWAYS, beyond_chance, is_nearly_always, slow_steps
from perfdoc.records import dataclass
from perfdoc.results.what_if import CauseKind
from perfdoc.simulator.recorded.work import Link, StageWork, as_peers, pauses_of_peers, usual_of
from perfdoc.traces.table import F64, Bool, among

ERRORS = 4.0
"""Standard errors of a mean: uneven data makes each rank the longest, or wait, in turn."""
CORRELATED = 0.6
"""Of forward with backward lengths: from here on it is the data."""
MOSTLY = 0.5
"""Of what a rank takes longer in gaps: it is its host."""
ALIKE = 0.1
"""Of stages' times: as far apart, and they are compared as one."""
LEAST_DENSE = 0.1
"""Of the work: with less beside experts a slow device shows in experts alone."""
MAX_SLOW = 8
"""Ranks that are looked at one by one, those furthest above their peers."""


@dataclass(frozen=True, kw_only=True)
class Effect:
    """One of them, and the work of all stages without it."""

    kind: CauseKind
    members: tuple[int, ...] = ()
    """Positions of ranks; empty nobody in particular."""
    stage: int | None = None
    ratio: float = 1.0
    peers: int = 0
    recurrence_frac: float = 1.0
    correlation: float | None = None
    note: str = ""
    since: int | None = None
    """The step from which on it lasts; None where it was always there, or comes and goes."""
    factors: tuple[F64, ...] = ()
    """By stage: what its work is multiplied by; empty nothing."""
    own: tuple[F64, ...] = ()
    """By stage: what only the own work of its ranks is multiplied by; empty nothing."""
    even: tuple[F64, ...] | None = None
    """The same with the excess of a long stage spread over all."""
    otherwise: Effect | None = None
    """The same seen in another way that the captures allow as well: the band holds both."""
    ranks: tuple[int, ...] = ()
    """Of ranks that were not captured: their global ranks."""
    operations: tuple[str, ...] = ()
    """Of a slow link: what is slow on it."""
    links: tuple[Link, ...] = ()
    unseen_ns: float = 0.0
    """At most as much more is saved where no captured rank sees it."""
    excess_ns: float = 0.0
    """Of a step, at most so much is saved; the replay may show less where collectives run beside work, or
    ranks wait for each other in turn. 0 unknown."""


def slow_ranks(works: Sequence[StageWork]) -> list[Effect]:
    """Ranks whose own work takes longer than that of the others of their stage, whatever the micro-batch, in
    all steps or in some of them, the slowest first. Who waits for another one inside a pass is none."""
    dense = [_without_experts(w) for w in works]
    ratios = [_over_peers(d) if len(d) > 1 else np.empty((0, 0)) for d in dense]
    found = []
    for at, (work, over) in enumerate(zip(works, ratios, strict=True)):
        for m in range(len(over)):
            others = [np.delete(r, m, axis=0) if r is over else r for r in ratios if len(r)]
            own = dense[at].sum(axis=1)
            steps = slow_steps(own, m, over[m], np.concatenate(others))
            if work.is_by_place:
                steps = _never_by_chance(work, steps, over[m], own, m)
            elif steps is not None and (
                _is_chance(work, dense[at][:, :, steps], m) or not _is_everywhere(work, dense[at], m, steps)
            ):
                steps = None
            if steps is not None:
                found.append(_slow_rank(works, at, m, over[m], steps))
    found.sort(key=lambda e: -e.ratio)
    return found


def _without_experts(work: StageWork) -> F64:
    """Own work that a rank's experts, which have as many tokens as are sent to them, have no part in; with
    them where little else is left."""
    rest = work.own - work.experts
    return rest if rest.sum() >= LEAST_DENSE * work.own.sum() else work.own


def _over_peers(own: F64) -> F64:
    """By rank and step: how many times as long as the median of the others."""
    each = own.sum(axis=1)
    others = [usual_of(np.delete(each, m, axis=0)) for m in range(len(each))]
    return np.asarray(each / np.maximum(others, 1.0))


def _never_by_chance(work: StageWork, steps: Bool | None, over: F64, own: F64, m: int) -> Bool | None:
    """The steps in which a rank is slow, whatever its data are. Where it is so in all, uneven data may hide
    it in some; or make it seem so where it is not. Of one step nothing is known of data, unless peers are
    given the same; a late host is none. own: of all ranks by step."""
    alike = [r for r, number in enumerate(work.data) if number == work.data[m] and r != m]
    if alike and is_nearly_always(own[m] / np.maximum(usual_of(own[alike]), 1.0)):
        return np.ones(len(over), bool)
    if steps is not None and (not steps.all() or (len(steps) == 1 and _is_host(work, m))):
        return steps
    found = beyond_chance(own, m)
    return found if found is not None and np.median(over[found]) >= 1 + LEAST else None


def _is_chance(work: StageWork, own: F64, m: int) -> bool:
    """Whether passes of a kind scatter so much, as with uneven data, that a rank may have been given longer
    ones in all steps. Those of one micro-batch are long together, of whatever kind."""
    scaled = own / np.maximum(own.mean(axis=(0, 2), keepdims=True), 1.0)
    means = scaled.mean(axis=(1, 2))
    for kind in work.kinds:
        scaled[:, work.of_kind(kind)] -= scaled[:, work.of_kind(kind)].mean(axis=(1, 2), keepdims=True)
    errors = (scaled**2).mean(axis=(1, 2)) * len(work.kinds) / scaled[0].size
    scatter = np.sqrt(errors[m] + np.delete(errors, m).mean() / (len(errors) - 1))
    return bool(means[m] - usual_of(np.delete(means, m)) < ERRORS * scatter)


def _is_everywhere(work: StageWork, own: F64, m: int, steps: Bool) -> bool:
    """Whether nearly all passes of these steps are longer than the others', or nearly all of a kind and of no
    other kind, not only some micro-batches'."""
    mine, others = own[m][:, steps], np.delete(own, m, axis=0)[:, :, steps]
    half = 1 + (float(np.median(mine.sum(axis=0) / usual_of(others.sum(axis=1)))) - 1) / 2
    weight = mine.mean(axis=1)
    longer = weight * (weight / np.maximum(usual_of(others.mean(axis=2)), 1.0) > half)
    rows = [work.of_kind(kind) for kind in work.kinds]
    shares = np.array([longer[of].sum() / max(weight[of].sum(), 1.0) for of in rows])
    if shares.max() < NEARLY_ALWAYS or ((shares < NEARLY_ALWAYS) & (shares > 1 - NEARLY_ALWAYS)).any():
        return False
    if steps.all():
        return True
    each = mine / np.maximum(usual_of(others), 1.0)
    return float(mine[each > half].sum()) >= NEARLY_ALWAYS * float(mine.sum())


def _is_host(work: StageWork, m: int) -> bool:
    """Whether what it takes longer than the others of its stage is mostly gaps."""
    gaps, own = (values.sum(axis=(1, 2)) for values in (work.gaps, work.own))
    beyond = [float(each[m] - usual_of(np.delete(each, m))) for each in (gaps, own)]
    return beyond[0] > MOSTLY * beyond[1]


def _slow_rank(works: Sequence[StageWork], at: int, m: int, over: F64, steps: Bool) -> Effect:
    """over: by step how many times as long as its peers. steps: those in which it is slow."""
    work = works[at]
    ratio = float(np.median(over[steps]))
    own = _without_experts(work)
    # A rank that is slow in every step may have two levels: each is made as its peers are.
    high, is_always = over > 1 + (ratio - 1) / 2, bool(over.min() >= 1 + LEAST) and bool(steps.all())
    usual = np.repeat(own[:, :, steps].mean(axis=2, keepdims=True), len(steps), axis=2)
    for level in (high, ~high) if is_always and work.is_by_place else ():
        usual[:, :, level] = own[:, :, level].mean(axis=2, keepdims=True) if level.any() else 0.0
    factors = as_peers(works, at, usual, m, steps)
    # Or as they are in each step, without the pauses in which they may have waited for it.
    unpaused = own - pauses_of_peers(work, own, m)
    by_step = as_peers(works, at, unpaused, m, steps)
    by_step[at][...] *= np.divide(unpaused, own, out=np.ones_like(own), where=own > 0)
    first = int(np.argmax(steps))
    peers, note = len(work.members) - 1, ""
    # Where all stages take as long, all ranks are its peers.
    others = [np.delete(w.own, m, axis=0) if w is work else w.own for w in works]
    means = [np.median(own.sum(axis=1).mean(axis=1)) for own in others]
    if max(means) <= (1 + ALIKE) * min(means):
        peers = sum(len(w.members) for w in works) - 1
    elif peers == 1:
        note = "compared with one other replica"
    if work.shares_experts[m] and not work.is_experts.any():
        note = "it shares experts: more tokens for its own would look the same"
    kind: CauseKind = "late_host" if _is_host(work, m) else "slow_rank"
    found = Effect(
        kind=kind,
        members=(work.members[m],),
        stage=work.stage if len(works) > 1 else None,
        ratio=ratio,
        peers=peers,
        recurrence_frac=1.0 if is_always else float(high.mean()),
        note=note,
        since=first if first and steps[first:].all() else None,
        own=factors,
        excess_ns=excess_of(work, factors[at], kind),
    )
    return replace(found, otherwise=replace(found, own=by_step))


def excess_of(work: StageWork, factors: F64, kind: CauseKind) -> float:
    """Of a step: all that its late ranks take longer between their collectives, a late host in gaps too;
    where several are late, at each place the latest. 0 for passes. factors: what own work is scaled by."""
    if not work.is_by_place:
        return 0.0
    beyond = (1 - factors) * _without_experts(work)
    if kind == "late_host":
        late = (factors < 1).any(axis=(1, 2))
        peers = usual_of(work.gaps[~late]) if not late.all() else work.gaps.min(axis=0)
        beyond[late] = np.maximum(beyond[late], work.gaps[late] - peers)
    return float(beyond.max(axis=0).sum(axis=0).mean())


def long_stages(works: Sequence[StageWork], slow: Sequence[Effect]) -> list[Effect]:
    """The stage whose replicas all take longer than the other stages, slow ranks aside."""
    if len(works) < 2:
        return []
    takes = without(works, slow)
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
    factors = [np.full_like(t, total.mean() / total[at] if t is takes[at] else 1.0) for t in takes]
    even = [np.full_like(t, total.mean() / total[i]) for i, t in enumerate(takes)]
    alone = len(works[at].members) == 1
    alike = {1: "one replica of it was captured: a slow GPU would look the same"}
    alike[2] = "two replicas of it were captured: two slow GPUs would look the same"
    found = Effect(
        kind="long_stage",
        members=works[at].members if alone else (),
        stage=works[at].stage,
        ratio=ratio,
        peers=len(works) - 1,
        recurrence_frac=lasting,
        note=alike.get(len(works[at].members), ""),
        factors=tuple(factors),
        even=tuple(even),
    )
    return [replace(found, otherwise=slow_alone(works, found)) if alone else found]


def slow_alone(works: Sequence[StageWork], stage: Effect) -> Effect:
    """A long stage as the slow rank that it is, the only one captured of it: as fast as other stages."""
    factors = tuple(np.full_like(w.takes, 1 / stage.ratio if w.stage == stage.stage else 1.0) for w in works)
    note = "compared with other stages: its replicas were not captured, and wait for it in every step"
    return replace(stage, kind="slow_rank", note=note, factors=factors, even=None)


def uneven_data(works: Sequence[StageWork], even: Sequence[F64], slow: Sequence[Effect] = ()) -> list[Effect]:
    """Micro-batches that take longer than others, one in this step and another in the next. even: what passes
    take if no rank of a unit waits for another one's data. slow: ranks that stay as slow as they are."""
    factors, longest = [], []
    apart = [m for e in slow for m in e.members]
    for work, alone in zip(works, even, strict=True):
        wanted, own = alone.copy(), alone.copy()
        for kind in work.kinds:
            rows = work.of_kind(kind)
            several = alone[:, rows]
            own[:, rows] = each = several.mean(axis=(1, 2), keepdims=True)
            # Over replicas too, but for those whose mean is further off than lengths by chance make it.
            scatter = several.std(axis=(1, 2), keepdims=True) / np.sqrt(several[0].size)
            by_chance = abs(each - np.median(each, axis=0)) <= ERRORS * scatter
            pooled = ~among(np.array(work.members), apart) & by_chance[:, 0, 0]
            each[pooled] = each[pooled].mean(axis=0) if pooled.any() else 0.0
            wanted[:, rows] = each
            longest.append(several.max(axis=(0, 1)) / np.maximum(several.mean(axis=(0, 1)), 1.0))
        ways = np.array([wanted, own])
        factors.append(np.divide(ways, work.takes, out=np.ones_like(ways), where=work.takes > 0))
    ratio = max((float(np.median(over)) for over in longest), default=1.0)
    correlation = pass_correlation(works)
    if ratio < 1 + LEAST or correlation is None or correlation < CORRELATED or _is_habit(works):
        return []
    return [
        Effect(
            kind="uneven_data",
            ratio=ratio,
            peers=sum(len(w.members) for w in works),
            recurrence_frac=float(np.mean([over > 1 + LEAST for over in longest])),
            correlation=correlation,
            factors=tuple(f for f, _ in factors),
            # Whose data are longer by chance may be a slow rank: even lengths leave it as it is.
            otherwise=Effect(kind="uneven_data", factors=tuple(f for _, f in factors)),
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


def without(works: Sequence[StageWork], effects: Sequence[Effect]) -> list[F64]:
    """How long the work of all stages takes with effects taken away. The ranks of a unit go on when the
    slowest of them does."""
    found = []
    for i, work in enumerate(works):
        scale = np.prod([e.factors[i] for e in effects if e.factors], axis=0)
        own, takes = work.own * scale, work.takes * scale
        slow = [e.own[i] for e in effects if e.own]
        if slow:
            faster = own * np.prod(slow, axis=0)
            takes = takes - work.slowest_of_unit(own) + work.slowest_of_unit(faster)
        found.append(np.maximum(takes, 0.0))
    return found
