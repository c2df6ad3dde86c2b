"""Whether a change of the mean step, or of the median logged step, may come from scatter alone.

The mean step is compared by Welch's interval over steps, the median logged step by a bootstrap, since logged
steps have tails (both in `compare/significance.py`). Steps of one run share its clocks and its place, so the
next run differs by more than this: what lies inside is noise, what lies outside may be the run's own luck.
Several runs on either side are for `perfdoc gate`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.compare.diff.pairing import Pair
from perfdoc.compare.diff.result import Basis, Logged, Noise, duration
from perfdoc.compare.side import Loaded
from perfdoc.compare.significance import CONFIDENCE, F64, of_medians, welch


def step_noise(before: Loaded, after: Loaded, pairs: Sequence[Pair], basis: Basis) -> Noise:
    """The scatter of steps on both sides, each step the mean over the compared ranks."""
    if basis != "step":
        return _unknown("the windows have no steps, and one window has no scatter")
    one = _durations(before, [p.before for p in pairs])
    two = _durations(after, [p.after for p in pairs])
    if one is None or two is None:
        return _unknown("the ranks of one side have different numbers of steps")
    few = min(len(one), len(two))
    if few < 2:
        return _unknown("one step on a side has no scatter", len(one), len(two))
    found = welch(one, two)
    return Noise(
        state="measured",
        reason="",
        confidence_frac=CONFIDENCE,
        before_steps=len(one),
        after_steps=len(two),
        before_spread_ns=round(float(one.std(ddof=1))),
        after_spread_ns=round(float(two.std(ddof=1))),
        low_ns=round(found.low_ns),
        high_ns=round(found.high_ns),
        within_noise=found.holds_zero,
    )


def leaf_noise(before: Loaded, after: Loaded, pairs: Sequence[Pair]) -> Mapping[str, bool]:
    """By leaf, whether its change lies within the scatter of its steps; empty where that is not known."""
    if before.step_leaves is None or after.step_leaves is None:
        return {}
    one = _leaves(before.step_leaves, [p.before for p in pairs])
    two = _leaves(after.step_leaves, [p.after for p in pairs])
    return {leaf: welch(one[leaf], two[leaf]).holds_zero for leaf in one.keys() & two.keys()}


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


def _unknown(reason: str, before: int = 0, after: int = 0) -> Noise:
    return Noise(
        state="not_measured",
        reason=reason,
        confidence_frac=CONFIDENCE,
        before_steps=before,
        after_steps=after,
        before_spread_ns=None,
        after_spread_ns=None,
        low_ns=None,
        high_ns=None,
        within_noise=None,
    )


MIN_STEPS = 10
"""A median of fewer steps has no interval worth its name."""


def logged(before_ns: I64, after_ns: I64) -> Logged | None:
    """The change of the median logged step; None where a side has none."""
    if not len(before_ns) or not len(after_ns):
        return None
    medians = [round(float(np.median(x))) for x in (before_ns, after_ns)]
    low = high = None
    if min(len(before_ns), len(after_ns)) >= MIN_STEPS:
        found = of_medians(before_ns, after_ns)
        low, high = round(found.low_ns), round(found.high_ns)
    return Logged(
        median=duration(medians[0], medians[1]),
        before_steps=len(before_ns),
        after_steps=len(after_ns),
        low_ns=low,
        high_ns=high,
        within_noise=None if low is None or high is None else low <= 0 <= high,
    )
