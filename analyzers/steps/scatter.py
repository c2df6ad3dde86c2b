"""Steps in which a rank takes longer than its peers, and whether by more than data do from step to step."""

from __future__ import annotations

from functools import lru_cache
from math import comb, log, log1p, pi, sqrt, tan

import numpy as np

from perfdoc.analyzers.base.binomial import at_least
from perfdoc.traces.table import F64, Bool, median

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
OWN_CHANCE = 2 * CHANCE
"""The same of one rank whose data scatter more than its peers': they are not one of many."""
OF_MEDIAN = np.pi / 2
"""Variance of a median over that of a mean."""
OF_LONGEST = 1 - 2 / np.pi
"""Variance of how much longer the longest steps are, over that of as many steps: they are chosen."""
FEWEST_SLOW = 3
"""Steps, where a rank is slow in half of them or more."""
APART_FRAC = 0.5
"""Of the mean difference of slow steps from the others that the nearest two of them are apart."""
LEAST_FREE = 3
"""Degrees of freedom that a few ranks' differences have at least: two that are alike by chance say little."""
LASTING = 100.0
"""Variance of a mean of steps that each share 0.98 with the next one, over that of steps that share nothing:
(1 + 0.98) / (1 - 0.98). What lies further off than such data do drifts no more, it lasts."""
SURE_OF_STEPS = 30
"""Degrees of freedom of what steps scatter by, of all ranks."""
CLEAR, CLEAR_OF_RANKS, MOST_ALIKE = 2.0, 3.0, 0.9
"""Standard errors of a variance, or of what a step shares with the next one; of a variance of ranks' means;
how much of what steps share is believed."""


@lru_cache(maxsize=4096)
def student_t(freedom: int, confidence: float) -> float:
    """What Student's t of so many degrees of freedom stays below; confidence: from 0.5 to less than 1.

    With t = sqrt(f) tan(a) the density of the angle is cos(a)^(f - 1), which is summed by the trapezoidal
    rule; right to six digits.

    >>> round(student_t(4, 0.99), 3)
    3.747
    """
    angle = np.linspace(0, min(pi / 2, 40 / sqrt(freedom)), 40_001)
    density = np.abs(np.cos(angle)) ** (freedom - 1)
    below = np.concatenate(([0.0], np.cumsum(density[1:] + density[:-1])))
    at = float(np.interp((2 * confidence - 1) * below[-1], below, angle))
    return sqrt(freedom) * tan(at)


def slow_steps(takes: F64, m: int, over: F64, others: F64) -> Bool | None:
    """The steps in which a rank is slow; None where it is in none, or no more often than the others are.
    takes: of the ranks of its role, by rank and step. over: how many times as long as its peers it takes, by
    step. others: `over` of the other ranks, of other roles too."""
    return np.ones(len(over), bool) if is_nearly_always(over) else _at_times(takes, m, over, others)


def _at_times(takes: F64, m: int, over: F64, others: F64) -> Bool | None:
    """The same of some steps only."""
    top = float(np.quantile(over, BAND[1]))
    slow: Bool = over > 1 + (top - 1) / 2
    count, steps = int(slow.sum()), len(slow)
    is_half = count >= FEWEST_SLOW and 2 * count >= steps
    if top < 1 + LEAST:
        return None
    logs = np.log(np.maximum(takes, 1.0))
    is_long = top >= 1 + (LEAST if is_half else LEAST_AT_TIMES) and FEWEST_STEPS <= count < steps
    if (
        not is_long
        or not _are_two_levels(logs, m, slow, over, comb(steps, count))
        or not _stands_out(_longest(logs, count), m, OF_LONGEST * _of_steps(logs))
    ):
        return _from_one_on(logs, m, over)
    also = others > 1 + (top - 1) / 2
    # Who takes clearly longer in the others as well is slow in all.
    found = slow | bool(over[~slow].min() >= 1 + max(LEAST, (top - 1) / 4))
    if is_half and not also.any():
        return found
    # Of those that are so in a step each rank is equally likely to be one.
    also = np.append(also, slow[None, :], axis=0)
    each = also.mean(axis=0)[also.any(axis=0)]
    return found if at_least(count, len(each), float(each.mean())) * len(also) < SURE else None


def _from_one_on(logs: F64, m: int, over: F64) -> Bool | None:
    """The steps from the one on from which its time is longer till the end: there are few such ways to choose
    steps, and data that scatter lie in no order, so that levels need not be apart."""
    steps = logs.shape[1]
    at = np.arange(FEWEST_STEPS, steps - FEWEST_SLOW + 1)
    if not len(at):
        return None
    own = _beside_others(logs)
    before = np.cumsum(own, axis=1)[:, at - 1]
    more = (own.sum(axis=1, keepdims=True) - before) / (steps - at) - before / at
    more *= np.sqrt(at * (steps - at) / steps)
    slow: Bool = np.arange(steps) >= at[int(more[m].argmax())]
    is_so = is_nearly_always(over[slow]) and _are_two_levels(logs, m, slow, over, len(at), in_order=True)
    return slow if is_so and _stands_out(more.max(axis=1), m, OF_LONGEST * _of_steps(logs)) else None


def _longest(logs: F64, count: int) -> F64:
    """By rank: how much longer so many of its steps, the longest, are than the rest; in errors of a step."""
    own, steps = np.sort(_beside_others(logs), axis=1), logs.shape[1]
    more = own[:, -count:].mean(axis=1) - own[:, :-count].mean(axis=1)
    found: F64 = more * sqrt(count * (steps - count) / steps)
    return found


def _beside_others(logs: F64) -> F64:
    """Without what a step is longer on all ranks; of two nobody knows."""
    return logs - np.median(logs, axis=0) if len(logs) > 2 else logs


def _are_two_levels(logs: F64, m: int, slow: Bool, over: F64, ways: int, *, in_order: bool = False) -> bool:
    """Whether the time of a rank is one thing or the other, and not data that scatter: by Student's t of the
    difference, shared by all ways to choose such steps and by all ranks; or of the rest, where steps
    long on all ranks are no scatter. If the rank scatters more than its peers, by that alone. Beyond t lies
    less than (1 + t^2 / f)^((1 - f) / 2) / (t sqrt(2 pi)). in_order: it is all steps from one on."""
    ranks, steps = logs.shape
    # It is its own time that changes, not that of the only other one.
    of_own, both = (
        log(each[slow].mean() / max(each[~slow].mean(), 1e-9)) for each in (np.exp(logs[m]), over)
    )
    if of_own < both / 2:
        return False
    count, peers = int(slow.sum()), np.delete(logs, m, axis=0)
    least = log(ranks * ways) - log(CHANCE)
    for left, usual in enumerate((0.0, np.median(peers, axis=0))[: ranks - 1]):
        own = logs[m] - usual
        more = float(own[slow].mean() - own[~slow].mean())
        mine = (own - np.where(slow, own[slow].mean(), own[~slow].mean()))[None, :]
        theirs = peers - usual - (peers - usual).mean(axis=1, keepdims=True)
        rest, free = np.append(mine, theirs, axis=0), steps - 2 + (ranks - 1 - left) * (steps - 1)
        apart = float(own[slow].min() - own[~slow].max())
        as_peers = (1 + CLEAR * sqrt(2 / steps)) * median((theirs**2).sum(axis=1))
        if (apart < (APART_FRAC + 1 / steps) * more and not in_order) or (mine**2).sum() > as_peers:
            rest, free = mine, steps - 2
        error = sqrt(steps / count / (steps - count))
        alone = sqrt(float((mine**2).sum()) / (steps - 2)) * error
        if in_order and more < student_t(steps - 2, 1 - CHANCE) * alone:
            continue
        t = more / max(_scatter(rest, free, 0)[0] * error, 1e-6)
        if t > 0 and (free - 1) / 2 * log1p(t * t / free) + log(t * sqrt(2 * pi)) >= least:
            return True
    return False


def is_nearly_always(over: F64) -> bool:
    """Whether it takes longer in nearly all steps."""
    middle = float(median(over))
    return middle >= 1 + LEAST and float((over > 1 + (middle - 1) / 2).mean()) >= NEARLY_ALWAYS


def beyond_chance(takes: F64, m: int) -> Bool | None:
    """The steps in which that is so, if data scatter alike on all ranks: some, or all; None of none. Steps in
    which a rank has no work do not count. Never of one rank or one step: nothing scatters there. takes: by
    rank and step."""
    works: Bool = np.all(takes > 0, axis=0)
    own = takes[:, works]
    if min(own.shape) < 2:
        return None
    over = _over_peers(own)
    some = _at_times(own, m, over[m], np.delete(over, m, axis=0))
    if some is not None:
        works[works] = some
        return works
    logs = np.log(own)
    of_means = _of_steps(logs) / logs.shape[1]
    is_so = _is_beyond(logs, m) or _is_far_above(logs, m)
    is_so = is_so and _stands_out(logs.mean(axis=1), m, of_means)
    return np.ones(len(works), bool) if is_so else None


def _over_peers(takes: F64) -> F64:
    """By rank and step: how many times as long as the median of the others."""
    ranks, place, each = len(takes), takes.argsort(axis=0).argsort(axis=0), np.sort(takes, axis=0)
    # Without a rank those above it are one place lower.
    middle = ((ranks - 2) // 2, (ranks - 1) // 2)
    found: F64 = 2 * takes / sum(np.take_along_axis(each, i + (place <= i), axis=0) for i in middle)
    return found


def _is_far_above(logs: F64, m: int) -> bool:
    """Whether in nearly all steps it is further above its peers' median than any of them is from it: more
    often than any rank, and data of one rank, are by chance; the latter by Student's t if steps are few."""
    (ranks, steps), peers = logs.shape, np.delete(logs, m, axis=0)
    over = logs[m] - (usual := np.median(peers, axis=0))
    count = int((over > np.maximum(log1p(LEAST), np.abs(peers - usual).max(axis=0))).sum())
    if ranks < 3 or count < NEARLY_ALWAYS * steps or at_least(count, steps, 1 / ranks) * ranks > CHANCE:
        return False
    limit = student_t(steps - 1, 1 - CHANCE) * float(over.std(ddof=1)) / sqrt(steps)
    return at_least(count, steps, 0.5) <= CHANCE or float(over.mean()) > limit


def _stands_out(each: F64, m: int, by_steps: float) -> bool:
    """Whether a rank's figure is further above those below it than they differ: data that stay long for a
    while on one rank make ranks differ by more than steps do, up to `LASTING`. Grubbs' test, from the
    outermost inwards as Rosner does it: one of several slow ranks hides no other. by_steps: their variance as
    steps explain it; if those below differ by no more, that is enough."""
    order = np.argsort(each, kind="stable")
    first = order.tolist().index(m)
    for i in range(first, max(len(each) // 2, 2) - 1, -1):
        below = each[order[:i]]
        apart = float(below.var(ddof=1))
        if i == first and apart <= (1 + CLEAR_OF_RANKS * sqrt(2 / (i - 1))) * by_steps:
            return True
        sure, far = 1 - CHANCE / (i + 1), float(each[order[i]] - below.mean()) / sqrt(1 + 1 / i)
        drifts = student_t(max(i - 1, LEAST_FREE), sure) * sqrt(max(apart, by_steps))
        if far > min(drifts, student_t(SURE_OF_STEPS, sure) * sqrt(LASTING * by_steps)):
            return True
    return len(each) == 2


def _of_steps(logs: F64) -> float:
    """Variance of a rank's step around its rank's mean and around what the step takes on all ranks."""
    rest = logs - logs.mean(axis=1, keepdims=True) - logs.mean(axis=0) + logs.mean()
    ranks, steps = logs.shape
    return float((rest**2).sum() / max((ranks - 1) * (steps - 1), 1))


def _is_beyond(logs: F64, m: int) -> bool:
    """By Student's t of what ranks scatter by around what each takes in all steps; or of the rest, where
    steps long on all ranks are no scatter: of few ranks the first has more degrees of freedom. If the rank
    itself scatters more than its peers, by that."""
    ranks, steps = logs.shape
    each = logs.mean(axis=1)
    beyond = float(each[m] - median(np.delete(each, m)))
    around = logs - each[:, None]
    looks = ((around, ranks * (steps - 1)), (around - around.mean(axis=0), (ranks - 1) * (steps - 1)))
    sure, of_both = 1 - CHANCE / ranks, np.sqrt((1 + OF_MEDIAN / (ranks - 1)) / steps)
    for of, free in looks:
        scatter, is_own = _scatter(of, free, m)
        limit = student_t(free, sure)
        if is_own and ranks > 2:  # and of few degrees of freedom, if its peers' say nothing of it
            limit = max(limit, student_t(steps - 1, 1 - OWN_CHANCE))
        if beyond > limit * of_both * scatter:
            return beyond > 0
    return False


def _scatter(rest: F64, free: int, m: int) -> tuple[float, bool]:
    """Standard deviation; a mean over steps varies more where long ones come after long ones: data that are
    sorted. The mean of few steps takes off of what they have in common: without any it is -1 / steps."""
    steps, squares = rest.shape[1], (rest**2).sum(axis=1)
    pooled, own = squares.sum() / free, squares[m] / (steps - 1)
    variance = max(pooled, own)
    shared = (rest[:, 1:] * rest[:, :-1]).sum() / max(squares.sum(), 1e-30)
    if steps >= 4 and shared + 1 / steps > CLEAR / np.sqrt(free):
        alike = min((shared * steps + 1) / (steps - 3), MOST_ALIKE)
        variance *= (1 + alike) / (1 - alike)
    return float(np.sqrt(variance)), bool(own > pooled)
