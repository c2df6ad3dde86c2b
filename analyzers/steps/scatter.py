"""Steps in which a rank takes longer than its peers, and whether by more than data do from step to step."""

from __future__ import annotations

from functools import lru_cache
from math import comb

import numpy as np

from perfdoc.analyzers.base.binomial import at_least
from perfdoc.analyzers.steps.slower import student_t
from perfdoc.traces.table import F64, Bool

LEAST = 0.03
"""Above its peers: less is no effect."""
NEARLY_ALWAYS = 0.8
"""Of steps, and of micro-batches, in which a lasting effect shows."""
LEAST_AT_TIMES = 0.1
"""The same of a rank that is slow in some steps only."""
FEWEST_STEPS = 2
SURE = 0.02
"""Probability, over all ranks, that one is slow in so many of the steps in which any is."""
BAND = (0.1, 0.9)
"""Quantiles over steps."""
CHANCE = 0.007
"""Of sound jobs, in which any rank is so long by chance in one of two looks; in either: of a hundred one."""
OF_MEDIAN = np.pi / 2
"""Variance of a median over that of a mean."""
FEWEST_SLOW, CHOICES = 3, 10
"""Steps, where a rank is slow in half of them or more; choices of how long slow is, each with its part."""
APART_FRAC = 0.7
"""Of the mean difference of slow steps from the others that the nearest two of them are apart."""
CLEAR, MOST_ALIKE = 2.0, 0.9
"""Standard errors of what one step has in common with the next one; and how much of it is believed."""
_t = lru_cache(maxsize=4096)(student_t)


def slow_steps(over: F64, own: F64, others: F64) -> Bool | None:
    """The steps in which a rank is slow; None where it is in none, or no more often than the others are.
    over, own: of the rank by step. others: `over` of the other ranks."""
    if is_nearly_always(over):
        return np.ones(len(over), bool)
    top = float(np.quantile(over, BAND[1]))
    slow: Bool = over > 1 + (top - 1) / 2
    count = int(slow.sum())
    if top < 1 + LEAST_AT_TIMES or count < FEWEST_STEPS or not slow.any() or slow.all():
        return None
    # It is its own time that changes, not that of the only other one.
    if own[slow].mean() < (1 + (top - 1) / 2) * own[~slow].mean():
        return None
    # Of those that are so in a step each rank is equally likely to be one.
    also = np.append(others > 1 + (top - 1) / 2, slow[None, :], axis=0)
    each = also.mean(axis=0)[also.any(axis=0)]
    return slow if at_least(count, len(each), float(each.mean())) * len(also) < SURE else None


def is_nearly_always(over: F64) -> bool:
    """Whether it takes longer in nearly all steps."""
    middle = float(np.median(over))
    return middle >= 1 + LEAST and float((over > 1 + (middle - 1) / 2).mean()) >= NEARLY_ALWAYS


def beyond_chance(takes: F64, m: int) -> Bool | None:
    """The steps in which that is so, if data scatter alike on all ranks: all, or half where no other rank is
    ever as long; None of none. Steps in which a rank has no work do not count. Never of one rank or one
    step: nothing scatters there. takes: by rank and step."""
    works: Bool = np.all(takes > 0, axis=0)
    logs = np.log(takes[:, works])
    if min(logs.shape) < 2:
        return None
    if _is_beyond(logs, m, 1):
        return np.ones(len(works), bool)
    over = logs - np.median(np.delete(logs, m, axis=0), axis=0)
    half = over[m].max() / 2
    slow = over[m] > half
    count, ways = int(slow.sum()), CHOICES * comb(len(slow), int(slow.sum()))
    if count < FEWEST_SLOW or not len(slow) <= 2 * count < 2 * len(slow) or (over > half).sum() > count:
        return None
    works[works] = slow
    # It is its own time that changes, not that of the only other one.
    more = logs[m, slow].mean() - logs[m, ~slow].mean()
    # Of as many slow steps as others none is between: it is one thing or the other.
    apart = 2 * count > len(slow) or logs[m, slow].min() - logs[m, ~slow].max() >= APART_FRAC * more
    return works if more >= half and apart and _is_beyond(logs[:, slow], m, ways) else None


def _is_beyond(logs: F64, m: int, ways: int) -> bool:
    """By Student's t of what ranks scatter by around what each takes in all steps; or of the rest, where
    steps long on all ranks are no scatter: of few ranks the first has more degrees of freedom. If the rank
    itself scatters more than its peers, by that."""
    ranks, steps = logs.shape
    each = logs.mean(axis=1)
    beyond = float(each[m] - np.median(np.delete(each, m)))
    around = logs - each[:, None]
    looks = ((around, ranks * (steps - 1)), (around - around.mean(axis=0), (ranks - 1) * (steps - 1)))
    sure, of_both = 1 - CHANCE / ranks / ways, np.sqrt((1 + OF_MEDIAN / (ranks - 1)) / steps)
    return beyond > 0 and any(beyond > _t(free, sure) * of_both * _scatter(of, free, m) for of, free in looks)


def _scatter(rest: F64, free: int, m: int) -> float:
    """Standard deviation; a mean over steps varies more where long ones come after long ones: data that are
    sorted. The mean of few steps takes off of what they have in common: without any it is -1 / steps."""
    steps, squares = rest.shape[1], (rest**2).sum(axis=1)
    variance = max(squares.sum() / free, squares[m] / (steps - 1))
    shared = (rest[:, 1:] * rest[:, :-1]).sum() / max(squares.sum(), 1e-30)
    if steps >= 4 and shared + 1 / steps > CLEAR / np.sqrt(free):
        alike = min((shared * steps + 1) / (steps - 3), MOST_ALIKE)
        variance *= (1 + alike) / (1 - alike)
    return float(np.sqrt(variance))
