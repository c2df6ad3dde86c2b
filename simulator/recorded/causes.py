"""Which of the effects make the step longer, and each one's price by the replay without it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from perfdoc.analyzers.steps.scatter import BAND
from perfdoc.results.what_if import CauseKind, WhatIfCause
from perfdoc.simulator.recorded.absent import Absent, is_always_last, waiting_for_absent
from perfdoc.simulator.recorded.absent_stages import with_late_stages
from perfdoc.simulator.recorded.cells import RecordedJob
from perfdoc.simulator.recorded.effects import (
    MAX_SLOW,
    MOSTLY,
    Effect,
    excess_of,
    long_stages,
    slow_alone,
    slow_ranks,
    uneven_data,
    without,
)
from perfdoc.simulator.recorded.experts import uneven_experts, without_waits
from perfdoc.simulator.recorded.in_turn import late_in_turn
from perfdoc.simulator.recorded.links import slow_links
from perfdoc.simulator.recorded.walk import Plan, step_ends
from perfdoc.simulator.recorded.work import StageWork, scaled, usual_of, work_of
from perfdoc.traces.table import F64, among

WORTH_FRAC = 0.02
"""Of the step: what saves less is no cause."""
ABSENT_NOTE = "of the captured ranks alone; the longest of all replicas' micro-batches may not be among them"
REPLAYED_FRAC = 0.03
"""Of what a rank's cure saves, either way: the replay follows kernels, not their launches."""
_OF_RANKS = ("slow_rank", "late_host")


def causes_of(
    job: RecordedJob, plan: Plan, absent: Absent, recorded: F64, names: Sequence[int | str]
) -> list[WhatIfCause]:
    """The cause whose absence saves most first, and each further one's price once those before it are gone.

    recorded: ends of the steps as they were replayed, with waits for absent ranks that no operation shows.
    names: ranks' numbers, or where those without one are.
    """
    works = work_of(job)
    slow = slow_ranks(works)
    alone = _without_whole_replicas(job, slow, len(works))
    together = _slow_together(works, alone)
    if together and all(w.is_by_place for w in works):  # they wait for each other in turn
        alone = [*together, *(e for e in alone if not {*e.members} <= {*together[0].members})]
    turns = late_in_turn(works, alone)
    if turns and {*turns[0].members} > {m for e in alone for m in e.members}:  # sums show not all of them
        alone, together = turns, []
    experts = uneven_experts(works, slow)
    calm = [replace(w, takes=takes) for w, takes in zip(works, without(works, experts), strict=True)]
    left = [*with_late_stages(job, alone[:MAX_SLOW], recorded), *long_or_slow(job, calm, slow), *experts]
    left += [*uneven_data(calm, without_waits(calm, slow), slow), *slow_links(job)]
    uneven = absent.of_uneven_data(recorded)
    gone: list[Effect] = []
    found: list[WhatIfCause] = []
    before = recorded
    while left:
        links = [link for e in gone for link in e.links]
        variants = [scaled(job, works, without(works, [*gone, e]), [*links, *e.links]) for e in left]
        is_even = np.array([any(e.kind == "uneven_data" for e in [*gone, effect]) for effect in left])
        ends = step_ends(plan, variants) + absent.unseen_ns - np.outer(is_even, uneven)
        best = int(ends.mean(axis=1).argmin())
        saved = before - ends[best]
        if saved.mean() < WORTH_FRAC * recorded.mean():
            if not together or any(e.kind in _OF_RANKS for e in gone):
                break
            # None alone: all of them at once.
            left, together = [e for e in left if e.kind not in _OF_RANKS] + together, []
            continue
        effect, most = left[best], before - absent.unseen_ns + is_even[best] * uneven
        ways = [replace(effect, factors=effect.even)] if effect.even is not None else []
        ways += [effect.otherwise] if effect.otherwise is not None else []
        changed = [scaled(job, works, without(works, [*gone, e]), [*links, *e.links]) for e in ways]
        others = [most - ends for ends in step_ends(plan, changed)] if ways else []
        even = others.pop(0) if effect.even is not None else None
        rows = [i for i, c in enumerate(job.cells) if c.lane >= 0 and not c.is_whole]
        if effect.kind == "uneven_data" and rows:
            # At most all communication with ranks that were not captured is waiting for their data.
            left[best] = replace(effect, note=ABSENT_NOTE)
            variants[best][rows] = 0.0
            others.append(before - step_ends(plan, [variants[best]])[0])
        if effect.kind == "slow_rank":  # it may begin late as it is slow: cured, the next one would
            now = scaled(job, works, without(works, gone), links)
            others.append(np.subtract(*step_ends(replace(plan, begins_ns=0.0), [now, variants[best]])))
        if effect.kind == "late_host":  # at a step's start too, before its first operation
            begins = np.where(among(np.arange(plan.members), effect.members)[:, None], 0.0, plan.begins_ns)
            others.append(most - step_ends(replace(plan, begins_ns=begins), [variants[best]])[0])
            left[best] = replace(effect, excess_ns=effect.excess_ns + float((others[-1] - saved).mean()))
        found.append(_cause(job, left[best], recorded, names, [saved, *others], even))
        gone.append(left.pop(best))
        before = ends[best]
    if any(e.kind == "uneven_data" for e in gone):
        recorded = recorded - uneven
    return [*found, *waiting_for_absent(job, plan, absent, recorded)]


def long_or_slow(job: RecordedJob, works: Sequence[StageWork], slow: Sequence[Effect]) -> list[Effect]:
    """A long stage; or the slow rank that it is, where only that one was captured and all wait for it."""
    return [
        slow_alone(works, e) if e.members and is_always_last(job, e.members[0]) else e
        for e in long_stages(works, slow)
    ]


def usual_work(job: RecordedJob) -> F64:
    """How long operations take without the ranks that are slow: as on replicas that were not captured."""
    works = work_of(job)
    slow = slow_ranks(works)
    slow += [e for e in long_or_slow(job, works, slow) if e.kind == "slow_rank"]
    return scaled(job, works, without(works, slow)) if slow else job.takes


def _without_whole_replicas(job: RecordedJob, slow: Sequence[Effect], stages: int) -> list[Effect]:
    """Not where all stages of a pipeline are slow: what they have in common is their data."""
    count = Counter(job.replica[m] for e in slow for m in e.members)
    return [e for e in slow if stages < 2 or any(count[job.replica[m]] < stages for m in e.members)]


def _cause(
    job: RecordedJob,
    effect: Effect,
    recorded: F64,
    names: Sequence[int | str],
    ways: Sequence[F64],
    even: F64 | None,
) -> WhatIfCause:
    """ways: what a step saves, then in other ways to see it. even: with a long stage's excess spread."""
    saved = ways[0]
    low, high = np.quantile(np.array(ways), BAND, axis=1)
    scatter = REPLAYED_FRAC * float(saved.mean()) if effect.kind in _OF_RANKS else 0.0
    least = min(float(low.min()), float(saved.mean()) - scatter)
    most = max(float(high.max()), float(saved.mean()) + scatter, effect.excess_ns)
    return WhatIfCause(
        kind=effect.kind,
        ranks=[*effect.ranks, *(n for m in effect.members if isinstance(n := names[m], int))],
        captures=[n for m in effect.members if isinstance(n := names[m], str)],
        stage=effect.stage,
        ratio=effect.ratio,
        peers=effect.peers,
        step_ns=round(float(recorded.mean() - saved.mean())),
        saved_ns=round(float(saved.mean())),
        low_ns=round(max(least, 0.0)),
        high_ns=round(max(most, 0.0) + effect.unseen_ns),
        even_ns=None if even is None else round(float((recorded - even).mean())),
        recurrence_frac=effect.recurrence_frac,
        correlation=effect.correlation,
        note=effect.note,
        kinds_of_wait=list(effect.operations),
        since="" if effect.since is None else job.step_names[effect.since],
    )


def _slow_together(works: Sequence[StageWork], slow: Sequence[Effect]) -> list[Effect]:
    """Those of them that are nearly as slow as the slowest, as one effect, since without one of them all wait
    for the next; none where it is alone."""
    alike = [e for e in slow if e.ratio - 1 >= MOSTLY * (slow[0].ratio - 1)]
    if len(alike) < 2:
        return []
    members = tuple(sorted(m for e in alike for m in e.members))
    stages = [w for w in works if set(w.members) & set(members)]
    own = [np.prod([e.own[i] for e in alike], axis=0) for i in range(len(works))]
    kind: CauseKind = "late_host" if all(e.kind == "late_host" for e in alike) else "slow_rank"
    found = Effect(
        kind=kind,
        members=members,
        stage=stages[0].stage if len(stages) == 1 and len(works) > 1 else None,
        ratio=float(np.median([e.ratio for e in alike])),
        peers=sum(len(w.members) for w in stages) - len(members),
        recurrence_frac=min(e.recurrence_frac for e in alike),
        own=tuple(own),
        excess_ns=sum(excess_of(w, factors, kind) for w, factors in zip(works, own, strict=True)),
    )
    if not all(w.is_by_place for w in works):
        return [found]
    return [replace(found, otherwise=replace(found, own=tuple(_otherwise(w, members) for w in works)))]


def _otherwise(work: StageWork, members: Collection[int]) -> F64:
    """What own work is multiplied by if these ranks are as their peers. Of one step it may be chance where in
    it they are late: as long as their peers' in sum. Of several: at each place of each step."""
    late = np.isin(work.members, list(members))
    own = work.own if work.own.shape[2] > 1 else work.own.sum(axis=1, keepdims=True)
    found = np.ones_like(work.own)
    if late.any() and not late.all():
        found[late] = np.minimum(1.0, usual_of(own[~late]) / np.maximum(own[late], 1.0))
    return found
