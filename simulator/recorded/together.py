"""Ranks that are slow alike: without one of them all wait for the next, so none alone has a price."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from perfdoc.results.what_if import CauseKind
from perfdoc.simulator.recorded.effects import MOSTLY, Effect, excess_of
from perfdoc.simulator.recorded.work import StageWork, usual_of
from perfdoc.traces.table import F64


def slow_together(works: Sequence[StageWork], slow: Sequence[Effect]) -> list[Effect]:
    """Those of them that are nearly as slow as the slowest, as one effect; none where it is alone."""
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
