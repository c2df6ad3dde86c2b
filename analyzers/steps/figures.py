"""Figures of a series of step times, and the steps that took much longer than the others.

All of them rest on order statistics: step times have a long upper tail, which means and standard deviations
follow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.ledger.steps import StepLedgers, distinct_names
from perfdoc.analyzers.steps.log import LoggedSteps
from perfdoc.records import dataclass
from perfdoc.results.ranks import LEAVES
from perfdoc.results.step_times import Distribution, LeafGrowth, OutlierStep
from perfdoc.traces.table import at_percent, median

MAD_TO_SIGMA = 1.4826
"""The median absolute deviation of a normal distribution times this is its standard deviation."""
MIN_WARMUP_STEPS = 8
"""Fewer steps than this show no warm-up: half of them must be steady enough to measure the rest by."""
SLOW_SIGMAS = 4.0
OUTLIER_SIGMAS = 5.0
MIN_EXCESS_FRAC = 0.02
"""A step within 2 % of the median is neither slow nor an outlier, however steady the others are."""
MIN_OUTLIER_STEPS = 5
FEW_STEPS, FEW_TIMES = 3, 2
"""Of so many and more the longest is an outlier if it is so many times as long as any other."""
CONFIDENCE = 0.9
_NORMAL_90 = 1.645
_MANY = 500


def distribution(times_ns: I64) -> Distribution | None:
    """The distribution of step times; None where there is none."""
    if not len(times_ns):
        return None
    p10, median, p90 = (round(float(v)) for v in at_percent(times_ns, (10, 50, 90)))
    mean = float(times_ns.mean())
    return Distribution(
        count=len(times_ns),
        median_ns=median,
        p10_ns=p10,
        p90_ns=p90,
        min_ns=int(times_ns.min()),
        max_ns=int(times_ns.max()),
        variation_frac=float(times_ns.std()) / mean if mean else 0.0,
        mean_ns=round(mean),
    )


def warmup_steps(times_ns: I64) -> int | None:
    """How many of the first steps are warm-up; None where there are too few steps to tell.

    The second half of the steps says what is normal: its median, and its median absolute deviation (MAD). A
    step is slow if it is above the median by more than 4 scaled MADs and 2 %. The change-point is the length
    of the start in which slow steps outnumber the others by most (the shortest such), so one quick step does
    not end the warm-up, and a slow one later on does not belong to it. At most half of the steps are warm-up.

    >>> warmup_steps(np.array([90, 40, 11, 10, 10, 10, 10, 10, 30, 10]))
    3
    """
    if len(times_ns) < MIN_WARMUP_STEPS:
        return None
    half = len(times_ns) // 2
    slow = times_ns[:half] > _threshold(times_ns[half:], SLOW_SIGMAS)
    lead = np.concatenate(([0], np.cumsum(np.where(slow, 1, -1))))
    return int(np.argmax(lead))


def outliers(times_ns: I64) -> I64:
    """Positions of steps above the median by more than 5 scaled MADs and 2 %; of few steps, whose scatter is
    not known, that of one that takes twice as long as any other."""
    if len(times_ns) < FEW_STEPS:
        return np.empty(0, np.int64)
    if len(times_ns) < MIN_OUTLIER_STEPS:
        return np.flatnonzero(times_ns > FEW_TIMES * np.sort(times_ns)[-2])
    return np.flatnonzero(times_ns > _threshold(times_ns, OUTLIER_SIGMAS))


def _threshold(times_ns: I64, sigmas: float) -> float:
    middle = float(median(times_ns))
    sigma = MAD_TO_SIGMA * float(median(np.abs(times_ns - middle)))
    return middle + max(sigmas * sigma, MIN_EXCESS_FRAC * middle)


def median_range(times_ns: I64) -> tuple[int, int]:
    """Two of the values between which the true median lies with at least 90 % confidence, whatever the
    distribution: order statistics k and n + 1 - k, k the largest that gives it; the extremes where none does.

    The count of values below the median is binomial with p = 1/2. Below five values even the extremes give
    less (3: 75 %).
    """
    ordered = np.sort(times_ns)
    k = _rank_of_bound(len(ordered))
    return int(ordered[k - 1]), int(ordered[-k])


def _rank_of_bound(n: int) -> int:
    if n > _MANY:  # the normal approximation is within one rank
        return int(n / 2 - _NORMAL_90 * math.sqrt(n) / 2)
    tail, k = 0.0, 0
    while k < n // 2:
        tail += math.comb(n, k) / 2**n
        if 1 - 2 * tail < CONFIDENCE:
            break
        k += 1
    return max(k, 1)


MAX_OUTLIERS = 20
EXPLAINS_FRAC = 0.5
"""A leaf explains an outlier if it grew by at least this part of the excess."""
NOT_PROFILED = "The step was not profiled: only data loading and garbage collection are logged."


@dataclass(frozen=True, kw_only=True)
class RankSteps:
    """The steps of one device in the analysed window."""

    rank: int | None
    label: str
    """How reports name it."""
    ledgers: StepLedgers


def analysed_outliers(ranks: Sequence[RankSteps]) -> list[OutlierStep]:
    """Outliers among the analysed steps, each step once, the largest excess first."""
    found: dict[str, list[OutlierStep]] = {}
    for rank in ranks:
        times = rank.ledgers.duration_ns
        rows = outliers(times)
        if not len(rows):
            continue
        normal = np.delete(np.arange(len(times)), rows)
        each = median(np.array([rank.ledgers.leaf_ns[leaf][normal] for leaf in LEAVES]))
        usual = dict(zip(LEAVES, map(round, each.tolist()), strict=True))
        middle = round(float(median(times)))
        names = distinct_names(rank.ledgers.names)
        for row in rows.tolist():
            name = names[row]
            growth = {leaf: int(rank.ledgers.leaf_ns[leaf][row]) - usual[leaf] for leaf in LEAVES}
            found.setdefault(name, []).append(
                _explained("analysed", name, int(times[row]), int(times[row]) - middle, growth, rank.label)
            )
    merged = [_merged(same) for same in found.values()]
    return sorted(merged, key=lambda o: (-o.excess_ns, o.step))


def logged_outliers(steps: LoggedSteps, ranks: int) -> list[OutlierStep]:
    """Outliers among logged steps (give the steady ones that were not profiled)."""
    found = []
    rows = outliers(steps.duration_ns)
    normal = np.setdiff1d(np.arange(len(steps.step)), rows)
    middle = round(float(median(steps.duration_ns))) if len(rows) else 0
    for row in rows.tolist():
        growth = {}
        for leaf, part in (("idle.data", steps.data_ns), ("idle.gc", steps.garbage_ns)):
            if part[row] >= 0 and (part[normal] >= 0).all():
                growth[leaf] = int(part[row]) - round(float(median(part[normal])))
        time = int(steps.duration_ns[row])
        step = _explained("logged", str(steps.step[row]), time, time - middle, growth, None, NOT_PROFILED)
        found.append(replace(step, ranks=ranks))
    return sorted(found, key=lambda o: (-o.excess_ns, o.step))


def _explained(
    source: Literal["analysed", "logged"],
    step: str,
    duration_ns: int,
    excess_ns: int,
    growth: dict[str, int],
    label: str | None,
    unexplained: str = "No single leaf grew by half of the excess.",
) -> OutlierStep:
    ranked = sorted(growth.items(), key=lambda item: -item[1])
    leaf, grown = ranked[0] if ranked else ("", 0)
    clear = grown >= EXPLAINS_FRAC * excess_ns
    return OutlierStep(
        source=source,
        step=step,
        duration_ns=duration_ns,
        excess_ns=excess_ns,
        ranks=1,
        label=label,
        leaf=leaf if clear else None,
        leaf_growth_ns=grown if clear else None,
        growth=[LeafGrowth(leaf=name, growth_ns=ns) for name, ns in ranked if ns * 10 > excess_ns],
        reason="" if clear else unexplained,
    )


def _merged(same: Sequence[OutlierStep]) -> OutlierStep:
    """One outlier of a step that is one on several devices: the device that did not only wait explains it."""

    def own_growth(step: OutlierStep) -> int:
        return max((g.growth_ns for g in step.growth if not g.leaf.startswith("exposed_comm")), default=0)

    most = max(same, key=lambda s: (own_growth(s), s.excess_ns))
    alike = sum(s.leaf == most.leaf for s in same) if most.leaf else 0
    return replace(most, ranks=len(same), grew_on=alike)
