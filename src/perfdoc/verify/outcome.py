"""What a measured gain says of a predicted one."""

from __future__ import annotations

import math
from dataclasses import dataclass

from perfdoc.verify.interval import of_pairs
from perfdoc.verify.record import Measured, Predicted, Record, Verdict

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
        return Outcome(verdict="confirmed", reason="steps are shorter, as the ceiling allows")
    if high < (predicted.low_ms or 0.0):
        return Outcome(verdict="smaller", reason="less than was predicted")
    reason = "the measured interval and the predicted band meet"
    if high - low > predicted.high_ms:
        reason += "; it is wider than the prediction is large, so how much is gained stays open"
    return Outcome(verdict="confirmed", reason=reason)


def _worth_seeing(predicted: Predicted, before_ms: float) -> float:
    """The least gain in milliseconds that was promised: a ceiling promises none."""
    if predicted.method in ("replay", "bounds") and predicted.low_ms:
        return predicted.low_ms
    return NOTHING_FRAC * before_ms
