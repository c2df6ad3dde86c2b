"""Upper bounds of rules and predictions of the same change, which do not contradict each other.

A rule's bound is what the ranks' ledgers hold, mean over ranks. A change may gain more, since what a late
rank makes others wait goes too: where its prediction is higher, the bound was none.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from perfdoc.results.replay import Gain, Prediction
from perfdoc.results.rules import RuleResult
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.gain import ceiling
from perfdoc.rules.engine.ranking import TIME_OF
from perfdoc.rules.engine.related import Applied
from perfdoc.rules.facts.bubble import bubble_ceiling, late_peer_ceiling, transfer_ceiling
from perfdoc.rules.facts.exposed import ceiling_of_transfer
from perfdoc.rules.facts.graphs import launching_ns

_WHOLE: Mapping[str, Callable[[Case], Gain | None]] = MappingProxyType(
    {
        "idle.host": lambda case: ceiling(case, launching_ns, ""),
        "idle.gc": lambda case: ceiling(case, lambda r: r.ledger.idle.gc, ""),
        "idle.data": lambda case: ceiling(case, lambda r: r.ledger.idle.data, ""),
        "exposed_comm.dp": lambda case: ceiling_of_transfer(case, "dp"),
        "exposed_comm.tp": lambda case: ceiling_of_transfer(case, "tp"),
        "exposed_comm.cp": lambda case: ceiling_of_transfer(case, "cp"),
        "exposed_comm.ep": lambda case: ceiling_of_transfer(case, "ep"),
        "pipeline.bubble": bubble_ceiling,
        "pipeline.late_peer": late_peer_ceiling,
        "pipeline.transfer": transfer_ceiling,
    }
)
"""Bound of all of a time that predictions act on: only one that is as much is about all of it."""
_AS_MUCH = 0.99


def not_below_predictions(case: Case, applied: Applied) -> Applied:
    """The same, with an upper bound of at least what replaying a cure of the same time says."""
    result = applied.result
    gain = result.gain
    if result.state != "fires" or gain is None or gain.method != "ceiling" or gain.high_ms is None:
        return applied
    same = [
        p
        for p in case.gains.predictions
        if TIME_OF.get(p.key) in applied.time
        and not p.left_out
        and p.gain.is_predicted
        and (p.gain.high_ms or 0.0) > gain.high_ms
    ]
    wholes = [whole.high_ms or 0.0 for time in applied.time if (whole := _whole(case, time)) is not None]
    if not same or not wholes or gain.high_ms < _AS_MUCH * sum(wholes):
        return applied
    most = max(same, key=lambda p: p.gain.high_ms or 0.0)
    high_ms, unit = most.gain.high_ms or 0.0, case.predicted_unit_ms
    why = f"as much as {most.change} may save, with what it takes away elsewhere"
    raised = replace(gain, high_ms=high_ms, assumptions=[*gain.assumptions, why])
    share = high_ms / unit if unit else result.gain_frac
    return replace(applied, result=replace(result, gain=raised, gain_frac=share))


def _whole(case: Case, time: str) -> Gain | None:
    return _WHOLE[time](case) if time in _WHOLE else None


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
