"""What there is to do, in one order: findings of rules and simulated changes together, each with all that is
set for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Literal

from perfdoc.records import dataclass
from perfdoc.results.replay import Gain, Prediction
from perfdoc.results.rules import Advice, RuleResult, there_for_others

TRIFLE_FRAC = 0.005
"""Of the step (or window): less is no reason to change anything."""

BOUND, HINT = 0.5, 0.25
"""What counts of an upper bound, where all of a prediction does: half of a problem's, a quarter of one that
is only worth a try."""

AS_SLOW = "the host is as slow without "
"""Begins the condition of a saving of host time that the capture itself may have lost."""

OpportunityKind = Literal["predicted", "bound", "unmeasured", "trifle", "capture"]


Blamed = Literal["", "cause", "loss", "compute"]
"""cause: a rule names who or what makes the step long. loss: it is done about the largest loss of the ledger.
compute: it makes computing shorter, by more than any loss is, or ends an idle time that others wait for."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One of the settings of a thing to do."""

    knob: str
    """Canonical id."""
    value: str
    dialects: dict[str, str]
    """Ready to paste, by dialect; empty where perfdoc's name is the only one."""


@dataclass(frozen=True, kw_only=True)
class Opportunity:
    """One thing to do: a rule's finding, a simulated change, or both where the one is the cure of the other.

    In the order of the list: what the verdict is about; predictions and bounds by `worth_frac`; problems
    without a figure; what changes training's numbers; information without a figure; trifles; what is wrong
    with the capture.
    """

    kind: OpportunityKind
    """predicted: by replay. bound: `gain.high_ms` is an upper bound, not predicted. unmeasured: no figure.
    trifle: under 0.5 % of the step, no more than the replay's error, or what may lose more than it saves.
    capture: better input, not speed."""
    codes: list[str]
    """Rules that fire on it, the one whose finding it is first; empty where no rule proposes the change."""
    key: str
    """Of the prediction; empty without one."""
    gain: Gain | None
    gain_per: Literal["step", "window"]
    gain_frac: float | None
    """The gain (or its upper bound) over the mean step, or window, of the longest rank."""
    exact: bool = True
    """False if it changes what training computes (a narrower type)."""
    conditions: list[str] = field(default_factory=list)
    """What a gain takes and this job is not known to meet."""
    worth_frac: float | None = None
    """`gain_frac`, of upper bounds the part that counts: the place in the list. None without a figure."""
    settings: list[Setting] = field(default_factory=list)
    """All that is set for it: the main setting, then what it requires; nothing that is refused. Empty where
    no setting makes it."""
    blamed: Blamed = ""
    """Why the verdict is about it, of the first row or of none."""


def settings_of(
    rules: Sequence[RuleResult],
    change: Prediction | None = None,
    firing: Sequence[RuleResult] = (),
    *,
    by_name: bool = False,
) -> list[Setting]:
    """What is set for a thing to do, see `Opportunity.settings`.

    rules: those of its row. change: the simulated one, None without. Of a change, only what makes that one: a
    rule's further advice may be another way, or change the job. firing: every rule that fires, which may
    advise it. by_name: whether a change that no rule proposes can be named by the settings simulated.
    """
    pieces = _advised(rules, change, firing)
    if pieces:
        return [Setting(knob=a.knob, value=a.to_value, dialects=dict(a.dialects)) for a in pieces]
    if change is None or not by_name or (rules and _is_proposed_by(rules[0], change)):
        return []
    refused = {a.knob for rule in firing for a in rule.advice if a.forbidden}
    if refused & change.settings.keys():
        return []
    return [Setting(knob=k, value=str(v), dialects={}) for k, v in change.settings.items()]


def _advised(
    rules: Sequence[RuleResult], change: Prediction | None, firing: Sequence[RuleResult]
) -> list[Advice]:
    first = allowed_in(rules[0]) if rules else []
    if change is None:
        return _with_required(first, first)
    for rule in (*rules, *(rule for rule in firing if rule not in rules)):
        pool = allowed_in(rule)
        named = [a for a in pool if a.gain is not None and a.gain.key and a.gain.key == change.key]
        other = rule.gain is not None and rule.gain.key not in ("", change.key)
        makes = named or [a for a in pool if not other and _is_of(a, change)]
        if pieces := _with_required(makes, pool):
            return pieces
    own = first if rules and _is_proposed_by(rules[0], change) else []
    return _with_required([a for a in own if a.gain is None or not a.gain.key], own)


def allowed_in(rule: RuleResult) -> list[Advice]:
    """What this configuration does not forbid."""
    return [advice for advice in rule.advice if not advice.forbidden]


def _is_proposed_by(rule: RuleResult, change: Prediction) -> bool:
    return rule.gain is not None and rule.gain.key == change.key


def _is_of(advice: Advice, change: Prediction) -> bool:
    value = change.settings.get(advice.knob)
    return value is not None and str(value).lower() == advice.to_value.lower()


def _with_required(chosen: Sequence[Advice], pool: Sequence[Advice]) -> list[Advice]:
    """The first of the chosen that is not there for another piece, then what belongs to it."""
    beside = there_for_others(pool)
    order = sorted((a for a in chosen if a.dialects), key=lambda a: a.knob in beside)
    if not order:
        return []
    main, *rest = order
    same = [a.knob for a in rest if a.gain is not None and a.gain.key and a.gain == main.gain]
    return [main, *(a for a in pool if a is not main and a.knob in (*main.together, *same) and a.dialects)]


def worth_frac(row: Opportunity, *, informs: bool = False) -> float | None:
    """What a row is ranked by: what it saves, or the part of its upper bound that counts. informs: whether
    its finding is information, no problem."""
    if row.gain_frac is None or row.gain is None:
        return None
    return row.gain_frac * (1.0 if row.gain.is_predicted else HINT if informs else BOUND)


def is_trifle(part: float, of: float | None, error_frac: float | None = None) -> bool:
    """Whether a gain is too small to speak of: under TRIFLE_FRAC of the step, or within the replay's error.

    >>> is_trifle(0.13, 1200.0), is_trifle(12.0, 1200.0), is_trifle(12.0, 1200.0, -0.02)
    (True, False, True)
    """
    return bool(of) and part < max(TRIFLE_FRAC, abs(error_frac or 0.0)) * (of or 0.0)
