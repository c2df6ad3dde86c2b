"""The end of a step that hides a wait: work behind the last collective that captures show may be held up by
another that they do not, such as the sum of the gradients' norms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfdoc.simulator.recorded.cells import RecordedJob
from perfdoc.simulator.recorded.walk import Plan, walk
from perfdoc.traces.table import F64

TOGETHER = 0.25
"""Ends that lie closer than this part of how far starts lie apart were held up for each other."""
TAIL_LANE = 1_000_000
"""No stream has this number."""


def with_meeting_at_end(job: RecordedJob, plan: Plan) -> RecordedJob:
    """The job with its last stretches of work as one that all ranks do together, where they end together
    however late each begins; the same job where they do not. plan: the job's."""
    last = [mine[-1] if mine and job.cells[mine[-1]].is_compute else -1 for mine in job.of_member]
    last = [c if c >= 0 and not job.cells[c].passes else -1 for c in last]
    if len(last) < 2 or min(last) < 0:
        return job
    takes = job.takes.copy()
    takes[last] = 0.0
    _, ends = walk(plan, lambda c: takes[c][None, :], (1, takes.shape[1]))
    begin: F64 = np.array([ends[m][0] for m in range(len(last))])
    end = begin + job.takes[last]
    apart, left = np.ptp(begin, axis=0), np.ptp(end, axis=0)
    if np.median(left) >= TOGETHER * np.median(apart):
        return job
    cells = list(job.cells)
    for c in last:
        cells[c] = replace(cells[c], kind="end of the step", lane=TAIL_LANE, partners=frozenset(last))
    met = job.takes.copy()
    met[last] = job.takes[last].min(axis=0)
    return replace(job, cells=tuple(cells), takes=met)
