"""Relations between rules that fire: conflicting advice, gains that overlap, and bounds beside predictions.

A gain is that of one change alone, so two rules may both promise the same nanoseconds. Each nanosecond is
the problem of one rule: of several problems with the same time the one with the surest gain stays a problem,
the others become information that refers to it.

A rule's upper bound is what the ranks' ledgers hold, mean over ranks. A change may gain more, since what a
late rank makes others wait goes too: where its prediction is higher, the bound was none.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from perfdoc.knobs.check import check
from perfdoc.knobs.knob import Value
from perfdoc.records import dataclass
from perfdoc.results.replay import Gain, Prediction
from perfdoc.results.rules import Related, RuleResult
from perfdoc.results.what_if import WhatIfCause
from perfdoc.rules.engine.advise import value_of
from perfdoc.rules.engine.blamed import TIME_OF
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.gain import ceiling
from perfdoc.rules.facts.bubble import bubble_ceiling, late_peer_ceiling, transfer_ceiling
from perfdoc.rules.facts.exposed import ceiling_of_transfer
from perfdoc.rules.facts.graphs import launched_late_ns

_METHODS = {"replay": 0, "model": 0, "ceiling": 1, "none": 2}
"""Gain methods, surest first."""


@dataclass(frozen=True, kw_only=True)
class Applied:
    """The result of one rule, alone."""

    result: RuleResult
    time: tuple[str, ...]
    """The time that its gain reduces; empty without a gain, but for `idle.waits`."""
    cause: WhatIfCause | None = None
    """That which the result blames, where the replay of all ranks' operations found it."""


def related(case: Case, applied: Sequence[Applied]) -> list[RuleResult]:
    """The results, in their order, with the relations between those that fire."""
    firing = [a for a in applied if a.result.state == "fires"]
    found: dict[str, list[Related]] = {a.result.code: [] for a in firing}
    for i, one in enumerate(firing):
        for other in firing[i + 1 :]:
            for how, why in (
                ("not_together", _excluded(case, one.result, other.result)),
                ("same_time", _shared(one, other)),
            ):
                if why:
                    a, b = one.result.code, other.result.code
                    found[a].append(Related(code=b, how=how, why=why))  # type: ignore[arg-type]
                    found[b].append(Related(code=a, how=how, why=why))  # type: ignore[arg-type]
    first = _owners(firing)
    return [
        replace(
            r, related=found[r.code], level="information" if first.get(r.code, r.code) != r.code else r.level
        )
        if r.state == "fires" and r.code in found
        else r
        for r in (a.result for a in applied)
    ]


def changes_of(result: RuleResult) -> dict[str, Value]:
    """The allowed changes; if one knob has several values, the first, which is the best."""
    return {p.knob: value_of(p) for p in reversed(result.advice) if not p.forbidden}


def _excluded(case: Case, one: RuleResult, other: RuleResult) -> str:
    """Why both changes cannot be made together; empty if they can."""
    mine, theirs = changes_of(one), changes_of(other)
    if not mine or not theirs:
        return ""
    for knob in mine.keys() & theirs.keys():
        if mine[knob] != theirs[knob]:
            return f"they set {knob} to different values"
    against = check(case.configuration, mine | theirs)
    return against[0].words if against else ""


def _shared(one: Applied, other: Applied) -> str:
    """The time that both gains reduce; empty if they share none."""
    shared = [_WORDS.get(name, name) for name in one.time if name in other.time]
    return ", ".join(shared)


_WORDS = {
    "idle.host": "launch-bound idle time",
    "idle.gc": "garbage-collection idle time",
    "idle.data": "data-loader stalls",
    "exposed_memcpy": "exposed copies",
    "waits": "waiting for late ranks",
    "pipeline.bubble": "pipeline bubble",
    "pipeline.late_peer": "waiting for late peers",
    "pipeline.transfer": "pipeline send/recv",
    **{f"exposed_comm.{d}": f"exposed {d.upper()} communication" for d in ("dp", "tp", "cp", "ep", "pp")},
}


def _owners(firing: Sequence[Applied]) -> dict[str, str]:
    """Problem -> the problem that owns its time; itself if no surer one shares any of it."""
    claiming = [a for a in firing if a.result.level == "problem" and a.time]
    by_code = sorted(claiming, key=lambda a: a.result.code, reverse=True)
    taken: dict[str, str] = {}
    owners = {}
    for claim in sorted(by_code, key=lambda a: _surest_first(a.result)):
        code = claim.result.code
        owners[code] = next((taken[t] for t in claim.time if t in taken), code)
        if owners[code] == code:
            taken |= dict.fromkeys(claim.time, code)
    return owners


def _surest_first(result: RuleResult) -> tuple[int, float]:
    """Surest gain first, then the largest; equal gains by later code: a rule on one cause (PD343) has a later
    code than the rule on its whole dimension (PD342) and says more. A replay that saves nothing owns no time
    and comes last."""
    gain = result.gain
    if gain is None:
        return len(_METHODS), 0.0
    size_ms = gain.size_ms or 0.0
    if gain.is_predicted and size_ms <= 0:
        return _METHODS["none"], 0.0
    return _METHODS[gain.method], -size_ms


_WHOLE: Mapping[str, Callable[[Case], Gain | None]] = MappingProxyType(
    {
        "idle.host": lambda case: ceiling(case, launched_late_ns, "", anywhere=True),
        "idle.gc": lambda case: ceiling(case, lambda r: r.ledger.idle.gc, "", anywhere=True),
        "idle.data": lambda case: ceiling(case, lambda r: r.ledger.idle.data, "", anywhere=True),
        **{f"exposed_comm.{d}": partial(ceiling_of_transfer, dimension=d) for d in ("dp", "tp", "cp", "ep")},
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
    wholes = [b.high_ms or 0.0 for t in applied.time if t in _WHOLE and (b := _WHOLE[t](case))]
    if not same or not wholes or gain.high_ms < _AS_MUCH * sum(wholes):
        return applied
    most = max(same, key=lambda p: p.gain.high_ms or 0.0)
    high_ms = most.gain.high_ms or 0.0
    why = f"as much as {most.change} may save, with what it takes away elsewhere"
    raised = replace(gain, high_ms=high_ms, assumptions=[*gain.assumptions, why])
    share = case.share_of_unit(high_ms)
    return replace(applied, result=replace(result, gain=raised, gain_frac=share))


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
