"""Which of the effects make the step longer, and each one's price by the replay without it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from perfdoc.results.what_if import WhatIfCause
from perfdoc.simulator.recorded.cells import RecordedJob
from perfdoc.simulator.recorded.effects import (
    BAND,
    MAX_SLOW,
    Effect,
    long_stages,
    slow_ranks,
    slow_together,
    uneven_data,
    without,
)
from perfdoc.simulator.recorded.walk import Plan, step_ends
from perfdoc.simulator.recorded.work import scaled, work_of
from perfdoc.traces.table import F64

WORTH_FRAC = 0.02
"""Of the step: what saves less is no cause."""
ABSENT_FRAC = 0.1
"""Of the step: time in collectives with ranks that were not captured."""
LEAST_BYTES = 1 << 18
"""Of a collective: a smaller one takes as long whatever its size."""
SLOWER = 3.0
"""Times per byte, of two operations on the same links, that no waiting is needed for."""
_OF_RANKS = ("slow_rank", "late_host")


def causes_of(job: RecordedJob, plan: Plan, recorded: F64, names: Sequence[int | None]) -> list[WhatIfCause]:
    """The cause whose absence saves most first, and each further one's price once those before it are gone.

    recorded: ends of the steps as they were replayed.
    """
    works = work_of(job)
    absent = _of_absent_ranks(job, plan, recorded)
    if not works:
        return absent
    slow = slow_ranks(works)
    alone = _without_whole_replicas(job, slow, len(works))
    left = [*alone[:MAX_SLOW], *long_stages(works, slow), *uneven_data(works)]
    together = slow_together(works, alone)
    gone: list[Effect] = []
    found: list[WhatIfCause] = []
    before = recorded
    while left:
        variants = [scaled(job, works, without(works, [*gone, e])) for e in left]
        ends = step_ends(plan, variants)
        best = int(ends.mean(axis=1).argmin())
        saved = before - ends[best]
        if saved.mean() < WORTH_FRAC * recorded.mean():
            if not together or any(e.kind in _OF_RANKS for e in gone):
                break
            # None alone: all of them at once.
            left = [e for e in left if e.kind not in _OF_RANKS] + together
            together = []
            continue
        even = left[best].even
        moved = None
        if even is not None:
            spread = [w * e for w, e in zip(without(works, gone), even, strict=True)]
            (moved,) = recorded - (before - step_ends(plan, [scaled(job, works, spread)]))
        found.append(_cause(job, left[best], saved, recorded, names, moved))
        gone.append(left.pop(best))
        before = ends[best]
    return [*found, *absent]


def _without_whole_replicas(job: RecordedJob, slow: Sequence[Effect], stages: int) -> list[Effect]:
    """Not where all stages of a pipeline are slow: what they have in common is their data."""
    count = Counter(job.replica[m] for e in slow for m in e.members)
    return [e for e in slow if stages < 2 or any(count[job.replica[m]] < stages for m in e.members)]


def _of_absent_ranks(job: RecordedJob, plan: Plan, recorded: F64) -> list[WhatIfCause]:
    """The time in collectives in which ranks take part that were not captured: at most all of it is waiting
    for them. Not messages: stages wait for each other by the schedule, however sound they are."""
    apart = [cell.lane >= 0 and not cell.is_whole and cell.kind != "messages" for cell in job.cells]
    rows = np.flatnonzero(apart).tolist()
    if not rows:
        return []
    variants = []
    for least in (_as_fast_as_others(job, rows), np.zeros((len(rows), 1))):
        takes = job.takes.copy()
        takes[rows] = np.minimum(takes[rows], least)
        variants.append(takes)
    ends = step_ends(plan, variants)
    saved = recorded - ends[1]
    if saved.mean() < ABSENT_FRAC * recorded.mean():
        return []
    return [
        WhatIfCause(
            kind="not_captured",
            kinds_of_wait=list(dict.fromkeys(job.cells[i].kind for i in rows)),
            ranks=[],
            stage=None,
            ratio=None,
            peers=len(job.stage),
            step_ns=round(float(ends[1].mean())),
            saved_ns=round(float(saved.mean())),
            low_ns=round(float((recorded - ends[0]).mean())),
            high_ns=round(float(saved.max())),
            even_ns=None,
            recurrence_frac=1.0,
            correlation=None,
            note="",
        )
    ]


def _as_fast_as_others(job: RecordedJob, rows: Sequence[int]) -> F64:
    """By cell, what it would take for its bytes if it were not far slower than the fastest of them all; its
    own time where sizes are not known: links alone may make it so long."""
    size = np.array([job.cells[i].bytes for i in rows], np.float64)
    takes = np.median(job.takes[rows], axis=1)
    known = size >= LEAST_BYTES
    if not known.any():
        return takes[:, None]
    fastest = float((takes[known] / size[known]).min())
    return np.where(known, np.maximum(SLOWER * fastest * size, 0.0), takes)[:, None]


def _cause(
    job: RecordedJob,
    effect: Effect,
    saved: F64,
    recorded: F64,
    names: Sequence[int | None],
    moved: F64 | None,
) -> WhatIfCause:
    low, high = np.quantile(saved, BAND)
    return WhatIfCause(
        kind=effect.kind,
        ranks=[n for m in effect.members if (n := names[m]) is not None],
        stage=effect.stage,
        ratio=effect.ratio,
        peers=effect.peers,
        step_ns=round(float(recorded.mean() - saved.mean())),
        saved_ns=round(float(saved.mean())),
        low_ns=round(float(low)),
        high_ns=round(float(high)),
        even_ns=None if moved is None else round(float(moved.mean())),
        recurrence_frac=effect.recurrence_frac,
        correlation=effect.correlation,
        note=effect.note,
        since="" if effect.since is None else job.step_names[effect.since],
    )
