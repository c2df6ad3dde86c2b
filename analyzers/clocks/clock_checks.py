"""Whether clocks fit: what ends still differ by, who leaves before others come, how wrong a clock can be."""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.clocks.clock_ends import Ends
from perfdoc.analyzers.clocks.clock_fit import FEWEST_FOR_OFFSET
from perfdoc.analyzers.clocks.clock_graph import F64
from perfdoc.traces.table import Bool

_MOST_VIOLATIONS_FRAC = 0.05
"""Of a group's collectives that a member left before another came: more, and they are not one collective."""
_SLACK_NS = 20_000
_SLACK_NOISES = 4.0
"""Who leaves before another comes by less than this, and than so many times the scatter of the best group's
ends, may do so because clocks are off."""
PERCENT = (5.0, 95.0)
"""Percentiles of the residual."""
MANY_ENDS = 40
FEW_ENDS = 24
LEAST_DOUBT = 1.25
TICK_NS = 1_000
"""No timestamp of a GPU or of the PyTorch profiler is trusted further."""


def from_the_others(ends: Ends, end_ns: I64) -> F64:
    """Each end minus the mean of the collective's other ends."""
    relative = (end_ns - end_ns[ends.first][ends.collective]).astype(np.float64)
    count = np.bincount(ends.collective, minlength=len(ends.group)).astype(np.float64)[ends.collective]
    total = np.bincount(ends.collective, relative, len(ends.group))[ends.collective]
    difference: F64 = relative - (total - relative) / np.maximum(count - 1, 1)
    return difference


def percentiles(values: F64) -> tuple[int | None, int | None]:
    """The two of PERCENT, rounded; None where there are no values."""
    if not len(values):
        return None, None
    low, high = np.percentile(values, PERCENT)
    return round(float(low)), round(float(high))


def reach_ns(values: F64) -> float:
    """How far off 0 what is left of ends lies, and so how far off what was fitted to them may be.

    From MANY_ENDS on the outermost twentieth of either side is left out: an end that is late by itself is no
    clock. Below FEW_ENDS they may all be late to one side by chance: of five a fit is off by three times what
    they still differ by about once in a thousand (Student's t). Random jobs of random clocks hold the factors
    against the truth (test_clock_residual).
    """
    if not len(values):
        return 0.0
    size = np.abs(np.percentile(values, PERCENT) if len(values) >= MANY_ENDS else values)
    return float(size.max()) * max(LEAST_DOUBT, FEW_ENDS / len(values))


def violating(ends: Ends, start_ns: I64, end_ns: I64, strict: Bool) -> set[int]:
    """Groups of which too many collectives were left by someone before someone else came.

    By more than clocks that were aligned through the best group can be off; for `strict` groups, whose ranks
    were never told, that group does not count.
    """
    if not len(end_ns):
        return set()
    early = np.maximum.reduceat(start_ns, ends.first) - np.minimum.reduceat(end_ns, ends.first)
    off = np.maximum.reduceat(np.abs(from_the_others(ends, end_ns)), ends.first)
    order = np.argsort(ends.group, kind="stable")
    present, first = np.unique(ends.group[order], return_index=True)
    of_group = dict(zip(present.tolist(), np.split(order, first[1:]), strict=True))
    # With few ends it is the clocks that are wrong.
    enough = {g: c for g, c in of_group.items() if len(c) >= FEWEST_FOR_OFFSET}
    noise = min((float(np.median(off[c])) for c in enough.values()), default=0.0)
    slack = {g: _SLACK_NS + (0.0 if strict[g] else _SLACK_NOISES * noise) for g in enough}
    return {g for g, c in enough.items() if float(np.mean(early[c] > slack[g])) > _MOST_VIOLATIONS_FRAC}


def bounds(ends: Ends, start_ns: I64, end_ns: I64, members: int) -> I64:
    """Largest possible error of each member's clock; the largest int64 where nothing bounds it.

    It may be set back until the member leaves as the last other one comes, and forward until it comes as the
    first other one leaves.
    """
    never = np.iinfo(np.int64).max
    back, forward = np.full(members, never), np.full(members, never)
    if len(end_ns):
        last_start = np.maximum.reduceat(start_ns, ends.first)[ends.collective]
        first_end = np.minimum.reduceat(end_ns, ends.first)[ends.collective]
        # Of the last to come only its own start is known here, which bounds nothing.
        other_start, other_end = start_ns < last_start, end_ns > first_end
        np.minimum.at(back, ends.member[other_start], (end_ns - last_start)[other_start])
        np.minimum.at(forward, ends.member[other_end], (first_end - start_ns)[other_end])
    widest: I64 = np.maximum(back, forward)
    return widest
