"""How sure a measured gain is, and what it says of a predicted one.

Runs, not steps, are the samples: steps of one run share its place, its clocks and its neighbours. A run with
the change is paired with the one without it beside it in time, so that what drifts slowly falls out of their
ratio. How sure it is follows from `compare/slower.py`, with 95 % confidence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from perfdoc.analyzers.steps.slower import (
    LOW_HISTORY_FRAC,
    MIN_SPREAD_FRAC,
    Sample,
    change_between,
    change_in_pairs,
)
from perfdoc.compare.verify.record import Measured, Predicted, Record, RunTimes, Statistic, Verdict
from perfdoc.records import dataclass

CONFIDENCE = 0.95
MIN_PAIRS = 2


def of_pairs(runs: Sequence[RunTimes], statistic: Statistic) -> Measured | None:
    """The gain by pairs of runs; None with fewer than `MIN_PAIRS` whole pairs.

    No less scatter than the gate believes (0.2 % of a step) is believed here: few pairs may agree by chance.

    Worked: pairs (100, 90), (101, 90.9), (99, 89.1): all ratios are 0.9, so sqrt(2) * 0.2 % of scatter is
    believed of them, which makes 4.303 * 0.283 % / sqrt(3) = 0.70 %: 9.37 to 10.63 ms.
    """
    by_pair: dict[int, dict[str, float]] = {}
    for run in runs:
        by_pair.setdefault(run.pair, {})[run.arm] = run.by(statistic)
    pairs = [(p["before"], p["after"]) for p in by_pair.values() if len(p) == 2]
    if len(pairs) < MIN_PAIRS:
        return None
    change = change_in_pairs([b for b, _ in pairs], [a for _, a in pairs])
    bounds = change.bounds_frac(CONFIDENCE, MIN_SPREAD_FRAC)
    gain, high, low = (-frac * change.before for frac in (change.slower_frac, *bounds))
    return _measured("pairs of runs", statistic, change.before, gain, (low, high), len(pairs))


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

    The interval is that of steps, and never narrower than 5 % of a step on either side: how runs scatter
    among themselves is not known from one of each, and the gate allows as much.
    """
    samples = [
        Sample(mean=mean, deviation=deviation, count=count)
        for mean, deviation, count in zip((before_ms, after_ms), deviation_ms, steps, strict=True)
    ]
    change = change_between(samples[0], samples[1], of=1.0)
    half = change.noise_frac((1 - CONFIDENCE) / 2, 0.0) if min(steps) > 1 else math.inf
    half = min(max(half, LOW_HISTORY_FRAC * before_ms), 1e7)
    gain = before_ms - after_ms
    return _measured("two runs", statistic, before_ms, gain, (gain + half, gain - half), min(steps))


def _measured(
    method: Literal["pairs of runs", "two runs"],
    statistic: Statistic,
    before_ms: float,
    gain_ms: float,
    bounds_ms: tuple[float, float],
    samples: int,
) -> Measured:
    return Measured(
        method=method,
        statistic=statistic,
        before_ms=before_ms,
        gain_ms=gain_ms,
        low_ms=min(bounds_ms),
        high_ms=max(bounds_ms),
        confidence=CONFIDENCE,
        samples=samples,
    )


NOTHING_FRAC = 0.02
"""Of a step: a gain that surely is smaller is none, where nothing more exact was predicted. As the gate's."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A verdict and why."""

    verdict: Verdict
    reason: str


def judge(predicted: Predicted, measured: Measured | None) -> Outcome:
    """Compare the interval of what was measured with the band of what was predicted.

    Worked: predicted 8 to 12 ms. Measured 7 to 9 ms meets it: confirmed. 2 to 5 ms: smaller. 14 to 16 ms:
    larger. -3 to -1 ms: opposite. -1 to 2 ms: no effect, for 8 ms are ruled out. -2 to 11 ms: inconclusive.
    """
    if measured is None:
        return Outcome(verdict="inconclusive", reason="fewer than two pairs of runs were measured")
    low, high = measured.low_ms, measured.high_ms
    if high < 0:
        return Outcome(verdict="opposite", reason="steps take longer with the change")
    if low > 0:
        return _gained(predicted, low, high)
    least = _worth_seeing(predicted, measured.before_ms)
    if high < least and low > -least:
        what = "what was predicted is ruled out" if (predicted.low_ms or 0) > 0 else "less than 2 % of a step"
        return Outcome(verdict="no effect", reason=f"nothing beyond noise: {what}")
    reason = "the runs scatter too much: neither nothing nor the prediction is ruled out; more --repeats, or "
    return Outcome(verdict="inconclusive", reason=f"{reason}a quieter machine")


def follows(record: Record) -> bool:
    """Whether a record's verdict is what its own figures say, and these what its runs say.

    A verdict may be more careful than the figures (stopped, or another cause), never bolder.
    """
    found = record.measured
    if found is None:
        return record.verdict == "inconclusive"
    if not found.low_ms <= found.gain_ms <= found.high_ms:
        return False
    if record.verdict not in ("inconclusive", judge(record.predicted, found).verdict):
        return False
    if not record.runs:
        return True
    again = of_pairs(record.runs, found.statistic)
    return again is not None and all(
        math.isclose(getattr(again, name), getattr(found, name), rel_tol=1e-6, abs_tol=1e-6)
        for name in ("before_ms", "gain_ms", "low_ms", "high_ms")
    )


def _gained(predicted: Predicted, low: float, high: float) -> Outcome:
    """Steps are shorter beyond noise."""
    if predicted.method == "none" or predicted.high_ms is None:
        return Outcome(verdict="confirmed", reason="steps are shorter; by how much was not predicted")
    if low > predicted.high_ms:
        return Outcome(verdict="larger", reason="more than was predicted")
    if predicted.method == "ceiling":
        return Outcome(verdict="confirmed", reason="steps are shorter, within the upper bound")
    if high < (predicted.low_ms or 0.0):
        return Outcome(verdict="smaller", reason="less than was predicted")
    reason = "the measured interval and the predicted band meet"
    if high - low > predicted.high_ms:
        reason += "; it is wider than the prediction is large, so how much is gained stays open"
    return Outcome(verdict="confirmed", reason=reason)


def _worth_seeing(predicted: Predicted, before_ms: float) -> float:
    """The least gain in milliseconds that was promised: a ceiling promises none."""
    if predicted.method in ("replay", "model", "bounds") and predicted.low_ms:
        return predicted.low_ms
    return NOTHING_FRAC * before_ms
