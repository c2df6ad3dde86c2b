"""Whether a change of the mean step, or of the median logged step, may come from scatter alone.

Both by `compare/slower.py`: of the mean step the steps are the samples; of logged steps, which have tails
and resemble their neighbours, medians of blocks of steps that follow one another. Steps of one run share its
clocks and its place, so the next run differs by more than this: what lies inside is noise, what lies outside
may be the run's own luck. Several runs on either side are for `perfdoc gate`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.steps.slower import CHANCE, Sample, change_between
from perfdoc.compare.diff.pairing import Pair
from perfdoc.compare.diff.result import Basis, Logged, Noise, duration
from perfdoc.compare.side import Loaded, is_of_steps, steady_steps_ns
from perfdoc.profiling.errors import UserError
from perfdoc.traces import TraceError

F64: TypeAlias = npt.NDArray[np.float64]
CONFIDENCE = 1 - CHANCE


def change_bounds_ns(before_ns: F64, after_ns: F64) -> tuple[float, float]:
    """Where the change of the mean lies; both sides have a value, one of them two or more.

    >>> change_bounds_ns(np.array([10.0, 10.0]), np.array([12.0, 12.0]))
    (2.0, 2.0)
    """
    one, two = (Sample.of(side.tolist()) for side in (before_ns, after_ns))
    return change_between(one, two, of=1.0).bounds_frac(CONFIDENCE)


def step_noise(before: Loaded, after: Loaded, pairs: Sequence[Pair], basis: Basis) -> Noise:
    """The scatter of steps on both sides, each step the mean over the compared ranks."""
    unknown = Noise(
        state="not_measured",
        reason="",
        confidence_frac=CONFIDENCE,
        before_steps=0,
        after_steps=0,
        before_spread_ns=None,
        after_spread_ns=None,
        low_ns=None,
        high_ns=None,
        within_noise=None,
    )
    if basis != "step":
        return replace(unknown, reason="the windows have no steps, and one window has no scatter")
    one = _durations(before, [p.before for p in pairs])
    two = _durations(after, [p.after for p in pairs])
    if one is None or two is None:
        return replace(unknown, reason="the ranks of one side have different numbers of steps")
    counted = replace(unknown, before_steps=len(one), after_steps=len(two))
    if min(len(one), len(two)) < 2:
        return replace(counted, reason="one step on a side has no scatter")
    low, high = change_bounds_ns(one, two)
    return replace(
        counted,
        state="measured",
        before_spread_ns=round(float(one.std(ddof=1))),
        after_spread_ns=round(float(two.std(ddof=1))),
        low_ns=round(low),
        high_ns=round(high),
        within_noise=low <= 0 <= high,
    )


def leaf_noise(before: Loaded, after: Loaded, pairs: Sequence[Pair]) -> Mapping[str, bool]:
    """By leaf, whether its change lies within the scatter of its steps; empty where that is not known."""
    if before.step_leaves is None or after.step_leaves is None:
        return {}
    one = _leaves(before.step_leaves, [p.before for p in pairs])
    two = _leaves(after.step_leaves, [p.after for p in pairs])
    return {
        leaf: low <= 0 <= high
        for leaf in one.keys() & two.keys()
        for low, high in [change_bounds_ns(one[leaf], two[leaf])]
    }


def _durations(side: Loaded, ranks: Sequence[int]) -> F64 | None:
    rows = [[s.duration_ns for s in side.diagnosis.ranks[i].window.step_list] for i in ranks]
    if len({len(r) for r in rows}) != 1 or not rows[0]:
        return None
    found: F64 = np.asarray(rows, np.float64).mean(axis=0)
    return found


def _leaves(by_rank: Sequence[Mapping[str, I64]], ranks: Sequence[int]) -> dict[str, F64]:
    """Mean over ranks for every step, by leaf; none where steps do not match or are fewer than two."""
    kept = [by_rank[i] for i in ranks]
    lengths = {len(values) for leaves in kept for values in leaves.values()}
    if len(lengths) != 1 or lengths.pop() < 2:
        return {}
    return {leaf: np.mean([leaves[leaf].astype(np.float64) for leaves in kept], axis=0) for leaf in kept[0]}


BLOCKS = 10
"""Of the steps of one side, each of one step or more."""


def compare_logged(before_ns: I64, after_ns: I64) -> Logged | None:
    """The change of the median logged step; None where a side has none."""
    if not len(before_ns) or not len(after_ns):
        return None
    sides = before_ns, after_ns
    medians = [round(float(np.median(x))) for x in sides]
    low = high = None
    if min(map(len, sides)) >= BLOCKS:
        blocks = [[float(np.median(b)) for b in np.array_split(x, BLOCKS)] for x in sides]
        samples = [
            replace(Sample.of(of_one), mean=median) for of_one, median in zip(blocks, medians, strict=True)
        ]
        bounds = change_between(samples[0], samples[1], of=1.0).bounds_frac(CONFIDENCE)
        low, high = round(bounds[0]), round(bounds[1])
    return Logged(
        median=duration(medians[0], medians[1]),
        before_steps=len(before_ns),
        after_steps=len(after_ns),
        low_ns=low,
        high_ns=high,
        within_noise=None if low is None or high is None else low <= 0 <= high,
    )


def of_logged_steps(before: str, after: str) -> Logged | None:
    """Of two logs or records, where a side holds no captures; None where `load` says what of it is neither.

    Raises TraceError where one side holds no such steps, UserError where it has too few.
    """
    if not any(map(is_of_steps, (before, after))):
        return None
    steps, wrong = [], []
    for side in (before, after):
        try:
            steps.append(steady_steps_ns(Path(side)))
            if not len(steps[-1]):
                said = "holds no steps beyond the warm-up" if Path(side).exists() else "does not exist"
                raise UserError(f"{side}: {said}. To compare logs or records of steps give two of them.")
        except TraceError as error:
            wrong.append(error)
    if len(wrong) == 1:
        raise wrong[0]
    return None if wrong else compare_logged(*steps)
