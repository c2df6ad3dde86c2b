"""One ranking of all that can be done: findings of rules and simulated changes, by what they gain.

A change that a rule proposes is one row with its finding. So is a change that no rule proposes and that takes
away most of what a rule found: the finding is then known by more than its upper bound.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from perfdoc.results.ranking import AS_SLOW, Opportunity, OpportunityKind, is_trifle, settings_of, worth_frac
from perfdoc.results.replay import Gain, Prediction
from perfdoc.results.rules import RuleResult
from perfdoc.rules.engine.advise import in_each_dialect
from perfdoc.rules.engine.blamed import TIME_OF, with_blamed
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.gain import KEEPS_UP
from perfdoc.rules.facts.gradient_sums import OTHER_BUCKETS, bucket_elements
from perfdoc.rules.facts.graphs import open_conditions
from perfdoc.rules.facts.loading import awaits_requests
from perfdoc.simulator.replay.proposals import CHANGES

_COVERS_FRAC = 0.5
"""Of a finding's upper bound: a prediction of as much speaks for the finding; of less, most of what was found
has another cure, and keeps its place by its bound."""
_SAME_FRAC = 1e-6
"""Rounding of two times that are one."""
_ORDER: Mapping[OpportunityKind, int] = MappingProxyType(
    {"predicted": 1, "bound": 1, "unmeasured": 2, "trifle": 5, "capture": 6}
)
_CULPRIT, _INEXACT, _INFORMS = 0, 3, 4
"""Before all others is who is named; what changes training's numbers comes after what does not; then what
only informs."""


_CHANGE_NUMBERS = {c.rule for c in CHANGES.values()} - {c.rule for c in CHANGES.values() if c.exact}
"""Rules whose every change alters what training computes: their bounds do too, where nothing is replayed."""


def ranked(
    case: Case, results: Sequence[RuleResult], times: Mapping[str, Sequence[str]]
) -> list[Opportunity]:
    """Every rule that fires and every predicted gain that the job can have, in one order.

    times: by code, what the rule is about.
    """
    firing = sorted((r for r in results if r.state == "fires"), key=lambda r: (r.level != "problem", r.code))
    rows = _of_rules(firing, case)
    for prediction in _free(firing, case):
        at, share = _same_time(prediction, rows, times), case.share_of_unit(prediction.gain.mid_ms)
        if at is None:
            rows.append(_row([], prediction.gain, case, prediction, share))
        else:
            rows[at] = _row(rows[at].codes, prediction.gain, case, prediction, share)
    found = {r.code: r for r in firing}
    fire = [r for r in results if r.state == "fires"]
    rows = [_finished(case, row, [found[code] for code in row.codes], fire) for row in rows]

    def place(row: Opportunity) -> tuple[int, float, float, list[str]]:
        most = 0.0 if row.gain is None else row.gain.size_ms or 0.0
        return _group(row, found), -(row.worth_frac or 0.0), -most, row.codes

    return with_blamed(case, sorted(rows, key=place), found, times)


def _group(row: Opportunity, found: Mapping[str, RuleResult]) -> int:
    first = found[row.codes[0]] if row.codes else None
    if first is not None and first.blames:
        return _CULPRIT
    if row.kind == "unmeasured" and first is not None and first.level != "problem":
        return _INFORMS
    return _INEXACT if row.kind in ("predicted", "bound") and not row.exact else _ORDER[row.kind]


def _finished(
    case: Case, row: Opportunity, rules: Sequence[RuleResult], firing: Sequence[RuleResult]
) -> Opportunity:
    """With what it is ranked by and all that is set for it."""
    informs = bool(rules) and rules[0].level != "problem"
    worth = worth_frac(row, informs=informs)
    change = case.prediction(row.key) if row.key else None
    if change is not None and row.key in OTHER_BUCKETS and (size := bucket_elements(case)):
        change = replace(change, settings={"bucket_size": max(1, round(size * OTHER_BUCKETS[row.key][1]))})
    settings = settings_of(rules, change, firing, by_name=case.framework == "megatron")
    own = {} if change is None else change.settings
    spelled = [
        s if s.dialects else replace(s, dialects=in_each_dialect(s.knob, own[s.knob])) for s in settings
    ]
    return replace(row, worth_frac=worth, settings=spelled)


def _of_rules(firing: Sequence[RuleResult], case: Case) -> list[Opportunity]:
    """A row for each finding; one for all findings whose cure is the same simulated change."""
    rows: list[Opportunity] = []
    at: dict[str, int] = {}
    for rule in firing:
        gain = rule.gain
        key = gain.key if gain is not None and gain.is_predicted else ""
        if key and key in at:
            rows[at[key]] = replace(rows[at[key]], codes=[*rows[at[key]].codes, rule.code])
            continue
        if key:
            at[key] = len(rows)
        rows.append(_row([rule.code], gain, case, case.prediction(key) if key else None, rule.gain_frac))
    return rows


def _free(firing: Sequence[RuleResult], case: Case) -> list[Prediction]:
    """Predicted gains that no rule proposes and none forbids or knows to be had in part only, the largest
    first. Not another way to what a rule found, which nobody could set."""
    codes = {rule.code for rule in firing}
    vain = {key for key, change in CHANGES.items() if not change.settings and change.rule in codes}
    vain |= {"without_waits"} if awaits_requests(case) else set()
    proposed = {r.gain.key for r in firing if r.gain is not None and r.gain.key}
    pieces = [(a.gain, a.forbidden) for r in firing for a in r.advice if a.gain is not None]
    allowed = {gain.key for gain, forbidden in pieces if not forbidden and gain.is_predicted}
    refused = {gain.key for gain, _ in pieces} - allowed
    found = [
        p
        for p in case.gains.predictions
        if p.gain.is_predicted
        and (p.gain.mid_ms or 0.0) > 0
        and not p.left_out
        and p.key not in proposed | refused | vain
    ]
    return sorted(found, key=lambda p: -(p.gain.mid_ms or 0.0))


def _same_time(
    prediction: Prediction, rows: Sequence[Opportunity], times: Mapping[str, Sequence[str]]
) -> int | None:
    """The finding that has no prediction and of whose time this takes away most."""
    time = TIME_OF.get(prediction.key)
    for at, row in enumerate(rows):
        bound = not row.key and row.codes and row.gain is not None and row.gain.method == "ceiling"
        if bound and time is not None and time in times.get(row.codes[0], ()) and _covers(prediction, row):
            return at
    return None


def _covers(prediction: Prediction, row: Opportunity) -> bool:
    """More than the bound is of another time: the rule found a part of what the change acts on."""
    mine, bound = prediction.gain.mid_ms or 0.0, 0.0 if row.gain is None else row.gain.size_ms or 0.0
    return _COVERS_FRAC * bound <= mine <= bound * (1 + _SAME_FRAC)


def _row(
    codes: list[str], gain: Gain | None, case: Case, prediction: Prediction | None, share: float | None
) -> Opportunity:
    error = None if prediction is None else prediction.replay_error_frac
    change = prediction if prediction is not None or gain is None else case.prediction(gain.key)
    return Opportunity(
        kind=_kind(codes, gain, share, error),
        codes=codes,
        key="" if prediction is None else prediction.key,
        gain=gain,
        gain_per=case.unit,
        gain_frac=share,
        exact=change.exact if change is not None else not (codes and _CHANGE_NUMBERS.issuperset(codes)),
        conditions=_of_bound(gain) if prediction is None else open_conditions(case, prediction.key),
    )


def _of_bound(gain: Gain | None) -> list[str]:
    said = () if gain is None else gain.assumptions
    return [words for words in said if words == KEEPS_UP or words.startswith(AS_SLOW)]


def _kind(
    codes: Sequence[str], gain: Gain | None, share: float | None, error: float | None
) -> OpportunityKind:
    if codes and codes[0].startswith("PD9"):
        return "capture"
    if gain is None or gain.method == "none" or gain.high_ms is None:
        return "unmeasured"
    may_lose = gain.is_predicted and (gain.low_ms or 0.0) < -(gain.mid_ms or 0.0)
    if (gain.size_ms or 0.0) <= 0 or may_lose or (share is not None and is_trifle(share, 1.0, error)):
        return "trifle"
    return "predicted" if gain.is_predicted else "bound"
