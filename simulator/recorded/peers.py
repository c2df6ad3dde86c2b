"""How long operations take at their peers: the ideal of the what-if study.

Lin et al. 2025 (arXiv 2505.05713): passes at their mean over all ranks, micro-batches and steps,
communication at its median, once all that take part have come.
"""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np

from perfdoc.analyzers.pipeline.known_schedules import Pass
from perfdoc.simulator.recorded.absent import unwaited_at
from perfdoc.simulator.recorded.cells import RecordedJob
from perfdoc.traces.table import F64


def unwaited(job: RecordedJob) -> F64:
    """How long cells take without waiting, inside a pass, for the ranks that go through it together."""
    takes = job.takes.copy()
    for rows in gone_through_together(job):
        takes[rows] -= job.shares[rows] - job.shares[rows].min(axis=0)
    return takes


def gone_through_together(job: RecordedJob) -> list[list[int]]:
    """Cells of the same work of ranks of a unit; none of a rank that is alone in it."""
    count: Counter[tuple[object, ...]] = Counter()
    together: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for i, cell in enumerate(job.cells):
        if cell.is_compute:
            what = cell.member, cell.passes, cell.place if not cell.passes else 0
            together[job.units[cell.member], *what[1:], count[what]].append(i)
            count[what] += 1
    return [rows for rows in together.values() if len(rows) > 1]


def ideal_of(job: RecordedJob, takes: F64) -> F64:
    """By cell and step. takes: how long they take without waiting for others."""
    ideal = takes.copy()
    mean = _mean_passes(job, takes)
    together: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for i, cell in enumerate(job.cells):
        if cell.is_compute:
            # A pass, or what stands at the same place on the ranks that do the same.
            alone = (cell.member, job.stage[cell.member], "place", cell.place)
            together[(cell.member, *cell.passes) if cell.passes else alone].append(i)
    places: dict[tuple[int, int], list[int]] = defaultdict(list)
    for rows in together.values():
        cell = job.cells[rows[0]]
        if cell.passes:
            whole = takes[rows].sum(axis=0)
            wanted = sum(mean[is_forward] for is_forward, _ in cell.passes)
            factor = np.divide(wanted, whole, out=np.ones_like(whole), where=whole > 0)
            ideal[rows] = takes[rows] * factor
        else:
            places[job.stage[cell.member], cell.place] += rows
    for rows in places.values():
        ideal[rows] = takes[rows].mean()
    kinds: dict[str, list[int]] = defaultdict(list)
    for i, cell in enumerate(job.cells):
        if cell.lane >= 0:
            kinds[cell.kind].append(i)
    for rows in kinds.values():
        whole = [i for i in rows if job.cells[i].is_whole]
        ideal[rows] = np.median(takes[whole]) if whole else unwaited_at(job, rows)
    return ideal


def _mean_passes(job: RecordedJob, takes: F64) -> dict[bool, float]:
    """Mean forward and backward pass. Where the two of some stage cannot be told apart, their sum is the mean
    over all ranks and its parts are as in the others."""
    each: dict[tuple[int, tuple[Pass, ...]], float] = defaultdict(float)
    for i, cell in enumerate(job.cells):
        if cell.passes:
            each[cell.member, cell.passes] += float(takes[i].mean())
    both = [lasts for (_, passes), lasts in each.items() if len(passes) > 1]
    single = {
        kind: [lasts for (_, passes), lasts in each.items() if len(passes) == 1 and passes[0][0] is kind]
        for kind in (True, False)
    }
    forward, backward = (float(np.mean(v)) if v else 0.0 for v in (single[True], single[False]))
    if not both:
        return {True: forward, False: backward}
    pairs = min(len(single[True]), len(single[False]))
    mean = (sum(both) + pairs * (forward + backward)) / (len(both) + pairs)
    scale = mean / (forward + backward) if forward + backward else 0.0
    half = mean / 2
    return {True: forward * scale or half, False: backward * scale or half}
