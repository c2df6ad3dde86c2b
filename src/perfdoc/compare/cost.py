"""What the steady steps of a run cost together: their mean, their tail, and how they change within the run.

A median is blind to what fewer than half of the steps do. The mean is what training costs, but one stall (a
file system that hung once) moves it for ever: the few steps that are many times as long as the others are
left out of it, and counted, and the mean with them is kept beside it.

In a job of several ranks each figure is that of the rank where it is largest. The mean of one rank over steps
is time that passed; a mean over steps of the slowest rank of each step would count a late step twice, on the
rank that was late and on those that began the next step late.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.traces.table import Bool

STALL_TIMES = 10
"""A step that takes this many medians is a stall: the steps before and after say nothing of it."""
MOST_STALLS_FRAC = 0.01
"""Where more steps than this (and more than one) stall, stalls are how this run is: none is left out."""
MIN_P95_STEPS = 20
MIN_P99_STEPS = 100
"""Of fewer steps a percentile is the slowest one."""
MIN_THIRD = 4
"""Steps in a third of a run; fewer say nothing of a change within it."""


def cost_of(ranks_ns: I64) -> dict[str, Any]:
    """The fields of RunFigures that follow from the steady steps: a row a rank, a column a step, in order.

    Worked, of one rank: 9 steps of 10, one of 30 and one of 500, which is 50 medians and one of eleven: the
    mean is (9 * 10 + 30) / 10 = 12, with it 620 / 11 = 56.

    >>> found = cost_of(np.array([[10] * 9 + [30, 500]]))
    >>> found["mean_step_ns"], found["whole_mean_step_ns"], found["left_out_steps"], found["left_out_ns"]
    (12, 56, 1, 500)
    """
    stalled = np.array([_stalled(row) for row in ranks_ns])
    means = [float(row[~out].mean()) for row, out in zip(ranks_ns, stalled, strict=True)]
    worst = int(np.argmax(means))
    count = ranks_ns.shape[1]
    p95, p99 = np.percentile(ranks_ns, (95, 99), axis=1).max(axis=1).tolist()
    return {
        "mean_step_ns": round(means[worst]),
        "whole_mean_step_ns": round(float(ranks_ns.mean(axis=1).max())),
        "left_out_steps": int(stalled[worst].sum()),
        "left_out_ns": int(ranks_ns[worst][stalled[worst]].sum()),
        "p95_step_ns": round(p95) if count >= MIN_P95_STEPS else None,
        "p99_step_ns": round(p99) if count >= MIN_P99_STEPS else None,
        "late_ratio": _late_ratio(ranks_ns, stalled),
    }


def kept(times_ns: I64) -> Bool:
    """Which steps of one rank count in its mean: all but the stalls."""
    return ~_stalled(times_ns)


def _stalled(times_ns: I64) -> Bool:
    found: Bool = times_ns > STALL_TIMES * np.median(times_ns)
    most = max(math.floor(MOST_STALLS_FRAC * len(times_ns)), 1)
    return found if found.sum() <= most else np.zeros(len(times_ns), bool)


def _late_ratio(ranks_ns: I64, stalled: Bool) -> float | None:
    """Mean of the last third of the steps by that of the first, without stalls; None of a short run."""
    third = ranks_ns.shape[1] // 3
    if third < MIN_THIRD:
        return None
    found = []
    for row, out in zip(ranks_ns, stalled, strict=True):
        first, last = row[:third][~out[:third]], row[-third:][~out[-third:]]
        found.append(float(last.mean() / first.mean()))
    return max(found)
