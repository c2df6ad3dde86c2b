"""Ranks that were not captured: how long the captured ones wait for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from perfdoc.analyzers.steps.scatter import SURE
from perfdoc.records import dataclass
from perfdoc.results.what_if import WhatIfCause
from perfdoc.simulator.recorded.cells import RecordedJob
from perfdoc.simulator.recorded.walk import Plan, step_ends
from perfdoc.traces.table import F64

ABSENT_FRAC = 0.1
"""Of the step: time in collectives with ranks that were not captured."""
LEAST_BYTES = 1 << 18
"""Of a collective: a smaller one takes as long whatever its size."""
SLOWER = 3.0
"""Times per byte, of two operations on the same links, that no waiting is needed for."""
MAX_UNSEEN_FRAC = 0.25
"""Of the measured step: more that no operation shows are launch delays, not waiting."""
NEARLY_LAST = 0.25
"""Of how much a step varies: who waits less came last, or nearly so."""
LAST_PASS_FRAC = 1 / 3
"""Of the excess of a micro-batch's passes: half of what a backward pass has, twice as long as a forward."""
BY_CHANCE = 0.2
"""How often somebody else comes nearly last."""


@dataclass(frozen=True, kw_only=True)
class Absent:
    """Of collectives in which ranks take part that were not captured; by step, ns."""

    rows: tuple[int, ...]
    """Their cells; empty where all ranks were captured."""
    times: float
    """How many times as many ranks take part as were captured; 1 unknown."""
    present_ns: F64
    """The step without waiting for them."""
    unseen_ns: F64
    """The measured step beyond the replayed one: a wait that no operation shows."""

    def of_uneven_data(self, recorded: F64) -> F64:
        """What of the waiting goes once sequence lengths are even: the longest of so many replicas, if their
        steps vary as those of the captured ones; of all steps where nobody knows how many."""
        each = np.sort(self.present_ns)
        below = np.arange(len(each) + 1) / len(each)
        longest = float(each @ np.diff(below**self.times)) if self.times > 1 else float(each[-1])
        waits = recorded - self.present_ns
        explained = min(max(longest - float(each.mean()), 0.0), float(waits.mean()))
        return np.asarray(waits * (explained / max(waits.mean(), 1.0)))


def absent_of(job: RecordedJob, plan: Plan, recorded: F64) -> Absent:
    """recorded: ends of the steps as they were replayed."""
    cells = job.cells
    rows = [i for i, c in enumerate(cells) if c.is_partly_absent]
    if not rows:
        return Absent(rows=(), times=1.0, present_ns=recorded, unseen_ns=np.zeros_like(recorded))
    takes = job.takes.copy()
    takes[rows] = unwaited_at(job, rows)
    unseen = np.maximum(job.span_ns - recorded, 0.0)
    if unseen.mean() > MAX_UNSEEN_FRAC * job.span_ns.mean():
        unseen = np.zeros_like(unseen)
    return Absent(
        rows=tuple(rows),
        times=max(max(cells[i].group_size / len(cells[i].partners) for i in rows), 1.0),
        present_ns=step_ends(plan, [takes])[0],
        unseen_ns=unseen,
    )


def unwaited_at(job: RecordedJob, rows: Sequence[int]) -> F64:
    """How long collectives with absent ranks take once all have come, by step."""
    found = np.minimum(_fastest(job, rows), _as_fast_as_others(job, rows)) + np.zeros(job.takes.shape[1])
    whole = whole_alike(job, rows)
    for at, i in enumerate(rows):
        if of := whole[job.cells[i].kind, job.cells[i].bytes]:
            found[at] = np.minimum(found[at], np.median(job.takes[of], axis=0))
    return found


def whole_alike(job: RecordedJob, rows: Sequence[int]) -> dict[tuple[str, int], list[int]]:
    """By kind and bytes of these cells the same collectives of all ranks, of the largest groups."""
    found: dict[tuple[str, int], list[int]] = {(job.cells[i].kind, job.cells[i].bytes): [] for i in rows}
    for i, cell in enumerate(job.cells):
        is_sum = cell.is_collective and cell.is_whole and len(cell.partners) > 1
        if is_sum and cell.bytes > 0 and (cell.kind, cell.bytes) in found:
            found[cell.kind, cell.bytes].append(i)
    most = {key: max((len(job.cells[i].partners) for i in of), default=0) for key, of in found.items()}
    return {key: [i for i in of if len(job.cells[i].partners) == most[key]] for key, of in found.items()}


def _fastest(job: RecordedJob, rows: Sequence[int]) -> F64:
    """By cell the shortest of all of its kind and size: once, it came last."""
    alike: dict[tuple[str, int], list[int]] = defaultdict(list)
    for at, i in enumerate(rows):
        alike[job.cells[i].kind, job.cells[i].bytes].append(at)
    found = np.empty((len(rows), 1))
    for of in alike.values():
        found[of] = job.takes[[rows[at] for at in of]].min()
    return found


def is_always_last(job: RecordedJob, member: int) -> bool:
    """Whether absent ranks wait for this one, and it never for them: more often than by chance."""
    mine = [i for i in job.of_member[member] if job.cells[i].is_collective]
    apart = [i for i in mine if not job.cells[i].is_whole]
    if not apart:
        return False
    waits = (job.takes[apart] - _fastest(job, apart)).sum(axis=0)
    work = job.takes[[i for i in job.of_member[member] if job.cells[i].is_compute]].sum(axis=0)
    each = 1 / max(2, *(job.cells[i].group_size for i in apart)) + BY_CHANCE
    return bool((waits <= NEARLY_LAST * work.std()).all()) and each ** len(waits) < SURE


def waiting_for_absent(job: RecordedJob, plan: Plan, absent: Absent, recorded: F64) -> list[WhatIfCause]:
    """The time in collectives in which ranks take part that were not captured: at most all of it is waiting
    for them. Not messages: stages wait for each other by the schedule, however sound they are."""
    if not absent.rows:
        return []
    rows = list(absent.rows)
    takes = np.array([job.takes, job.takes])
    takes[0, rows] = np.minimum(job.takes[rows], _as_fast_as_others(job, rows))
    takes[1, rows] = 0.0
    saved = np.maximum(recorded - step_ends(plan, list(takes)), 0.0)
    if saved[1].mean() < ABSENT_FRAC * recorded.mean():
        return []
    stage, ranks = _awaited(job, rows)
    return [
        WhatIfCause(
            kind="not_captured",
            kinds_of_wait=list(dict.fromkeys(job.cells[i].kind for i in rows)),
            ranks=ranks,
            stage=stage,
            peers=len(job.stage),
            step_ns=round(float((recorded - saved[1]).mean())),
            saved_ns=round(float(saved[1].mean())),
            low_ns=round(float((saved[0] - absent.unseen_ns).clip(0.0).mean())),
            high_ns=round(float(saved[1].max())),
        )
    ]


def _awaited(job: RecordedJob, rows: Sequence[int]) -> tuple[int | None, list[int]]:
    """(stage of the rank that all wait for, the ranks that it may be); None and empty where waits do not
    tell.

    Behind a slow stage the stages before it are as late as it is, with its last backward pass as long as it
    is; those after it have ended theirs before that one.
    """
    waits = (job.takes[rows] - unwaited_at(job, rows)).mean(axis=1)
    of_stage = np.array([job.stage[job.cells[i].member] for i in rows])
    if {*job.stage} != {*range(job.pp)}:
        return None, []
    each = [float(waits[of_stage == stage].sum()) / job.stage.count(stage) for stage in range(job.pp)]
    micro_batches = 1 + max((n for cell in job.cells for _, n in cell.passes), default=0)
    late = [ns >= (1 - LAST_PASS_FRAC / micro_batches) * max(each) for ns in each]
    if job.pp > 1 and late[0] and late[-1] and (job.pp == 2 or not all(late)):
        # The sum of the embeddings' gradients holds up the last stage with the first.
        late[-1] = False
    stage = sum(late) - 1
    if not all(late[: stage + 1]):
        return None, []
    is_sure = job.pp != 2 or not late[0]
    among = [i for i, of in zip(rows, of_stage, strict=True) if of == stage or not is_sure]
    return stage if is_sure else None, sorted({r for i in among for r in job.cells[i].missing})


def _as_fast_as_others(job: RecordedJob, rows: Sequence[int]) -> F64:
    """By cell, what it would take for its bytes if it were not far slower than the fastest of them all; its
    own time where sizes are not known: links alone may make it so long."""
    size = np.array([job.cells[i].bytes for i in rows], np.float64)
    takes = np.median(job.takes[rows], axis=1)
    known = size >= LEAST_BYTES
    if not known.any():
        return takes[:, None]
    least = float((takes[known] / size[known]).min())
    return np.where(known, np.maximum(SLOWER * least * size, 0.0), takes)[:, None]
