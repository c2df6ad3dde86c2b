"""How sure a measured gain is.

Runs, not steps, are the samples: steps of one run share its place, its clocks and its neighbours. A run with
the change is paired with the one without it beside it in time, so that what drifts slowly falls out of their
difference. The mean of n differences with standard deviation s lies with 95 % probability within

    t(0.975, n - 1) * s / sqrt(n)

of the true one (Student's interval of paired samples).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from perfdoc.gate.decision import LOW_HISTORY_FRAC
from perfdoc.gate.noise import MIN_SPREAD_FRAC
from perfdoc.verify.record import Measured, RunTimes, Statistic

CONFIDENCE = 0.95
MIN_PAIRS = 2


def of_pairs(runs: Sequence[RunTimes], statistic: Statistic) -> Measured | None:
    """The gain by pairs of runs; None with fewer than `MIN_PAIRS` whole pairs.

    No less scatter than the gate believes (0.2 % of a step) is believed here: few pairs may agree by chance.

    Worked: pairs (100, 90), (101, 90), (99, 90) differ by 10, 11 and 9 ms, so s = 1 and the half width is
    4.303 * 1 / sqrt(3) = 2.48 ms: 7.52 to 12.48 ms.
    """
    by_pair: dict[int, dict[str, float]] = {}
    for run in runs:
        by_pair.setdefault(run.pair, {})[run.arm] = run.by(statistic)
    pairs = [(p["before"], p["after"]) for p in by_pair.values() if len(p) == 2]
    if len(pairs) < MIN_PAIRS:
        return None
    before = statistics.fmean(b for b, _ in pairs)
    gains = [b - a for b, a in pairs]
    gain = statistics.fmean(gains)
    spread = max(statistics.stdev(gains), MIN_SPREAD_FRAC * before)
    half = _student_t(len(pairs) - 1) * spread / math.sqrt(len(pairs))
    return Measured(
        method="pairs of runs",
        statistic=statistic,
        before_ms=before,
        gain_ms=gain,
        low_ms=gain - half,
        high_ms=gain + half,
        confidence=CONFIDENCE,
        samples=len(pairs),
    )


def of_two_runs(
    before_ms: float,
    after_ms: float,
    *,
    deviation_ms: tuple[float, float],
    steps: tuple[int, int],
    statistic: Statistic = "median",
) -> Measured:
    """The gain by one run on either side: medians or means of their steps, with the deviation and number of
    the steps.

    The interval is Welch's, over steps, and never narrower than 5 % of a step on either side: how runs
    scatter among themselves is not known from one of each, and the gate allows as much.
    """
    variances = [d * d / n for d, n in zip(deviation_ms, steps, strict=True)]
    freedom = min(steps) - 1  # of the shorter run: no fewer than Welch and Satterthwaite would take
    half = _student_t(freedom) * math.sqrt(sum(variances)) if freedom > 0 else math.inf
    half = min(max(half, LOW_HISTORY_FRAC * before_ms), 1e7)
    gain = before_ms - after_ms
    return Measured(
        method="two runs",
        statistic=statistic,
        before_ms=before_ms,
        gain_ms=gain,
        low_ms=gain - half,
        high_ms=gain + half,
        confidence=CONFIDENCE,
        samples=min(steps),
    )


def _student_t(freedom: int) -> float:
    from scipy.stats import t  # 0.4 s to import, so only where it is used

    return float(t.ppf((1 + CONFIDENCE) / 2, freedom))
