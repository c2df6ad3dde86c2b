"""Predictions of changes whose rules know better: a report has one bound of a change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from perfdoc.results.replay import Gain, Prediction
from perfdoc.results.rules import RuleResult


def as_rules_say(predictions: Sequence[Prediction], results: Iterable[RuleResult]) -> list[Prediction]:
    """Each with the upper bound of the rule that fires on it, where the two differ: a smaller one than a
    withheld prediction leaves, one below the middle that a replay has, or, where the capture slows the host,
    one above all that the replay of it lets through."""
    bounds: dict[str, Gain] = {}
    for gain in (r.gain for r in results if r.state == "fires"):
        if gain is None or gain.method != "ceiling" or not gain.key or gain.high_ms is None:
            continue
        if gain.key not in bounds or gain.high_ms < (bounds[gain.key].high_ms or 0.0):
            bounds[gain.key] = gain
    return [_bounded(p, bounds.get(p.key)) for p in predictions]


def _bounded(prediction: Prediction, bound: Gain | None) -> Prediction:
    own = prediction.gain
    if bound is None or bound.high_ms is None or own.high_ms is None:
        return prediction
    least = (own.mid_ms or 0.0) if own.is_predicted else own.high_ms
    if least <= bound.high_ms <= own.high_ms:
        return prediction
    high_ns = round(bound.high_ms * 1e6)
    withheld = [] if own.is_predicted else [a for a in own.assumptions if a not in bound.assumptions]
    return replace(
        prediction,
        gain=replace(bound, assumptions=[*bound.assumptions, *withheld]),
        low_ns=0,
        mid_ns=None,
        high_ns=high_ns,
        low_frac=0.0,
        mid_frac=None,
        high_frac=high_ns / prediction.step_ns if prediction.step_ns else None,
        reason=bound.assumptions[0],
    )
