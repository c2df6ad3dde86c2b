"""Whether a rank takes longer than its peers by more than data do, which differ from step to step."""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.steps.slower import student_t
from perfdoc.traces.table import F64

CHANCE = 0.01
"""Of sound jobs, in which any rank is so long by chance."""
OF_MEDIAN = np.pi / 2
"""Variance of a median over that of a mean."""


def is_beyond_chance(takes: F64, m: int) -> bool:
    """Whether that is so, if what each takes scatters from step to step alike. Steps that are long on all
    ranks are no scatter, nor is what a rank takes in all of them: Student's t of the rest, in logarithms.
    Never of one rank or one step: nothing scatters there. takes: by rank and step."""
    ranks, steps = takes.shape
    free = (ranks - 1) * (steps - 1)
    if not free:
        return False
    logs = np.log(np.maximum(takes, 1.0))
    each = logs.mean(axis=1)
    rest = logs - each[:, None] - logs.mean(axis=0) + each.mean()
    variance = float((rest**2).sum()) / free / steps * (1 + OF_MEDIAN / (ranks - 1))
    beyond = float(each[m] - np.median(np.delete(each, m)))
    return beyond > student_t(free, 1 - CHANCE / ranks) * float(np.sqrt(variance))
