"""Since when a job is slower: levels of its step times, and whether the last one is above an earlier one.

Levels: the exact least-squares segmentation of the series by dynamic programming (optimal partitioning,
Jackson and others 2005), each further level at the price of Schwarz's criterion. Single slow steps are
clipped before. What it proposes is then judged as `perfdoc gate` judges runs: means of blocks of steps must
differ by more than their scatter explains, and by their order.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.steps.figures import MAD_TO_SIGMA
from perfdoc.analyzers.steps.slower import Sample, change_between, slower_by_order
from perfdoc.records import dataclass

MIN_LEVEL = 12
"""Steps of a level."""
PRACTICAL_FRAC = 0.03
"""A smaller change is no reason to act."""
CHANCE = 0.0005
"""Of equal levels to be called different."""
_PENALTY = 4.0
"""Times the variance and log n: two for a level and its place, doubled since steps are not independent."""
_REACH = 5
"""Steps to each side of one for its local median."""
_CLIP_SIGMAS = 3.0
_RECENT = 48
"""Last steps that say how it is now, where the last level is shorter and lies no higher than others."""
_STALL = 3.0
"""Times what others near it take: a longer step counts as so long."""
_STALL_REACH = 25
"""Steps to each side of one that say what is usual there."""
_REPEATED_FRAC = 0.1
"""Long steps that are more than this are what steps take there, each of them whole."""
MOST_STEPS = 2_000
_BLOCKS = 12
"""Of a level, at most: blocks are long, so that what one step does to the next stays inside of them."""

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Slower:
    """The last level is above an earlier one."""

    onset: int
    """Position of the first step of what lasts."""
    before: I64
    """Positions of the level that was."""
    after: I64
    """Positions of the level that is."""
    price: float
    """By how much a step is longer, in the series' unit."""
    frac: float
    """Of the level before."""


def levels(values: F64, *, clip: bool = True) -> list[int]:
    """Where levels may begin, 0 first. clip: leave single values out; else rare ones count as well.

    >>> levels(np.array([1.0] * 30 + [2.0] * 30))
    [0, 30]
    """
    n = len(values)
    if n < 2 * MIN_LEVEL:
        return [0]
    if clip:
        values = clipped(values)
        # What is left around the local median, which follows levels: of steps that alternate all of it.
        sigma = float(np.std(values - _local(values)))
    else:
        sigma = float(np.std(np.diff(values))) / np.sqrt(2)
    sigma = max(sigma, 1e-3 * float(np.median(np.abs(values))), 1e-12)
    return _segmented((values - values.mean()) / sigma, _PENALTY * np.log(n))


def _segmented(values: F64, penalty: float) -> list[int]:
    n = len(values)
    sums, squares = (np.concatenate(([0.0], np.cumsum(v))) for v in (values, values * values))
    best = np.full(n + 1, np.inf)
    best[0] = -penalty
    origin = np.zeros(n + 1, np.int64)
    for end in range(MIN_LEVEL, n + 1):
        starts = np.arange(end - MIN_LEVEL + 1)
        total = sums[end] - sums[starts]
        cost = best[starts] + (squares[end] - squares[starts]) - total * total / (end - starts) + penalty
        origin[end] = int(np.argmin(cost))
        best[end] = cost[origin[end]]
    found, end = [], n
    while end > 0:
        end = int(origin[end])
        found.append(end)
    return found[::-1]


def clipped(values: F64) -> F64:
    """Values within three scaled MADs of the median of those around them."""
    local = _local(values)
    rest = values - local
    bound = _CLIP_SIGMAS * max(MAD_TO_SIGMA * float(np.median(np.abs(rest))), 1e-3 * float(np.median(local)))
    return np.asarray(local + np.clip(rest, -bound, bound), np.float64)


def without_stalls(times: F64) -> F64:
    """Steps that are far longer than a tenth of those around them count as three times these: a pause for a
    checkpoint is no level, while one of every ten steps, or of every two, is paid again and again."""
    windows = _around(times, min(_STALL_REACH, len(times) - 1), "reflect")
    return np.minimum(times, _STALL * np.quantile(windows, 1 - _REPEATED_FRAC, axis=1, method="lower"))


def _local(values: F64) -> F64:
    """The median of each value and those around it."""
    return np.asarray(np.median(_around(values, _REACH, "edge"), axis=1), np.float64)


def _around(values: F64, reach: int, mode: Literal["edge", "reflect"]) -> F64:
    """Each value with so many to each side of it, by rows; mode: what stands beyond the ends."""
    padded = np.pad(values, reach, mode=mode)
    return np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1)


def slower(times: F64, begins: Sequence[int], rare: F64 | None = None) -> Slower | None:
    """Whether the last level of a series is above the lowest one before it, and since when it is.

    times: of steps. begins: where levels begin, of this or of another series of the same steps. rare: that
    other series, of what only some steps pay.
    """
    times = without_stalls(times)
    bounds = [*joined(times, begins), len(times)]
    spans = [np.arange(a, b) for a, b in itertools.pairwise(bounds)]
    means = [float(times[span].mean()) for span in spans]
    if len(spans) < 2:
        return None
    lowest = int(np.argmin(means[:-1]))
    floor = means[lowest] * (1 + PRACTICAL_FRAC / 2)
    first = next((i for i in range(lowest + 1, len(spans)) if min(means[i:]) > floor), None)
    if first is None:
        return None
    before = spans[lowest]
    after = np.arange(max(int(spans[first][0]), len(times) - max(len(spans[-1]), _RECENT)), len(times))
    if len(before) < MIN_LEVEL or len(after) < MIN_LEVEL:
        return None
    if not differ(times[before], times[after]):
        return None
    price = float(times[after].mean() - times[before].mean())
    return Slower(
        onset=_onset(times, before, spans[first])
        if rare is None
        else _first(rare, before, spans[first], price),
        before=before,
        after=after,
        price=price,
        frac=price / float(times[before].mean()),
    )


def joined(times: F64, begins: Sequence[int]) -> list[int]:
    """The levels that differ by more than the scatter of each explains: steps of one part of a job may
    scatter more than those of another, by which alone it falls into levels."""
    bounds = [*begins, len(times)]
    while len(bounds) > 2:
        parts = [blocks(times[a:b]) for a, b in itertools.pairwise(bounds)]
        changes = [change_between(Sample.of(a), Sample.of(b)) for a, b in itertools.pairwise(parts)]
        clear = [abs(change.slower_frac) / change.noise_frac(CHANCE) for change in changes]
        if min(clear) >= 1:
            break
        del bounds[int(np.argmin(clear)) + 1]
    return bounds[:-1]


def _onset(times: F64, before: I64, span: I64) -> int:
    """Where two levels meet most likely, near where the later one began. Each has a scatter of its own, so
    that the first of uneven steps is found though it is a short one."""
    times = clipped(times)
    near = np.arange(max(int(span[0]) - MIN_LEVEL, int(before[0]) + 1), int(span[0]) + MIN_LEVEL)
    near = near[near < len(times)]

    def unlikely(level: I64) -> F64:
        sigma = max(float(times[level].std()), 2e-3 * abs(float(times[level].mean())), 1e-12)
        rest = (times - times[level].mean()) / sigma
        return np.asarray(rest * rest + 2 * np.log(sigma), np.float64)

    better = np.concatenate(([0.0], np.cumsum(unlikely(before) - unlikely(span))))
    return int(near[np.argmin(better[near])])


def _first(rare: F64, before: I64, span: I64, price: float) -> int:
    """The first step, near where a level began, that pays half the price more than any one did before."""
    begin = max(int(span[0]) - MIN_LEVEL, int(before[0]) + MIN_LEVEL)
    more = np.flatnonzero(rare[begin:] > rare[before[before < begin]].max() + price / 2)
    return begin + int(more[0]) if len(more) else int(span[0])


def differ(before: F64, after: F64) -> bool:
    """Whether steps became longer, by more than their scatter and more than is practical."""
    old, new = blocks(before), blocks(after)
    change = change_between(Sample.of(old), Sample.of(new), also_alone=len(old) > 2)
    return change.slower_frac > max(PRACTICAL_FRAC, change.noise_frac(CHANCE)) and slower_by_order(
        old, new, 10 * CHANCE
    )


def blocks(values: F64) -> list[float]:
    """Means of up to twelve stretches, of four steps or more each."""
    count = min(max(len(values) // 4, 1), _BLOCKS)
    return [float(part.mean()) for part in np.array_split(values, count)]
