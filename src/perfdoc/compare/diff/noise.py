"""Whether a change of the mean step, or of the median logged step, may come from scatter alone.

Welch's interval: with means m, variances v and n steps on either side, the change of the mean step lies in

    (m2 - m1) +- t(0.995, f) * sqrt(v1/n1 + v2/n2)

where steps are independent and scatter normally; f as Welch and Satterthwaite have it. Steps of one run share
its clocks and its place, so the next run differs by more than this: what lies inside is noise, what lies
outside may be the run's own luck. Several runs on either side are for `perfdoc gate`.

Of logged steps the medians are compared, as the gate does, since logged steps have tails. The interval is a
bootstrap's: each side's steps are drawn again with replacement, and the medians' differences of all draws
have their 0.5 % and 99.5 % bounds. What draws a side is its own content, so that the way back is exactly the
negative.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from perfdoc.analyzers.base.intervals import I64
from perfdoc.compare.diff.result import Basis, Logged, Noise, duration
from perfdoc.compare.pairing import Pair
from perfdoc.compare.side import Loaded

CONFIDENCE = 0.99
F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Where the change of a mean lies; ns."""

    low_ns: float
    high_ns: float

    @property
    def holds_zero(self) -> bool:
        """Whether no change at all is inside."""
        return self.low_ns <= 0 <= self.high_ns


def welch(before: F64, after: F64) -> Interval:
    """The interval of the change of the mean; both sides have two values or more.

    >>> welch(np.array([10.0, 10.0]), np.array([12.0, 12.0]))
    Interval(low_ns=2.0, high_ns=2.0)
    """
    change = float(after.mean() - before.mean())
    parts = [float(x.var(ddof=1)) / len(x) for x in (before, after)]
    error = math.sqrt(sum(parts))
    if error == 0:
        return Interval(low_ns=change, high_ns=change)
    freedom = sum(parts) ** 2 / sum(p**2 / (len(x) - 1) for p, x in zip(parts, (before, after), strict=True))
    from scipy.stats import t  # 0.4 s to import, so only where it is used

    reach = float(t.ppf((1 + CONFIDENCE) / 2, freedom)) * error
    return Interval(low_ns=change - reach, high_ns=change + reach)


def step_noise(before: Loaded, after: Loaded, pairs: Sequence[Pair], basis: Basis) -> Noise:
    """The scatter of steps on both sides, each step the mean over the compared ranks."""
    if basis != "step":
        return _unknown("the windows are not made of steps, and one window shows no scatter")
    one = _durations(before, [p.before for p in pairs])
    two = _durations(after, [p.after for p in pairs])
    if one is None or two is None:
        return _unknown("the ranks of one side have different numbers of steps")
    few = min(len(one), len(two))
    if few < 2:
        return _unknown("one step on a side shows no scatter", len(one), len(two))
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


def _leaves(by_rank: Sequence[Mapping[str, npt.NDArray[np.int64]]], ranks: Sequence[int]) -> dict[str, F64]:
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
DRAWS = 2000


def logged(before_ns: I64, after_ns: I64) -> Logged | None:
    """The change of the median logged step; None where a side has none."""
    if not len(before_ns) or not len(after_ns):
        return None
    medians = [round(float(np.median(x))) for x in (before_ns, after_ns)]
    low = high = None
    if min(len(before_ns), len(after_ns)) >= MIN_STEPS:
        change = _drawn_medians(after_ns) - _drawn_medians(before_ns)
        tail = (1 - CONFIDENCE) / 2
        low, high = (round(float(q)) for q in np.quantile(change, (tail, 1 - tail)))
    return Logged(
        median=duration(medians[0], medians[1]),
        before_steps=len(before_ns),
        after_steps=len(after_ns),
        low_ns=low,
        high_ns=high,
        within_noise=None if low is None or high is None else low <= 0 <= high,
    )


def _drawn_medians(times_ns: I64) -> npt.NDArray[np.float64]:
    seed = int.from_bytes(hashlib.sha256(times_ns.astype("<i8").tobytes()).digest()[:8], "little")
    drawn = np.random.default_rng(seed).integers(0, len(times_ns), (DRAWS, len(times_ns)))
    found: npt.NDArray[np.float64] = np.median(times_ns[drawn], axis=1)
    return found
