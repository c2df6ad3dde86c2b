"""What there is to do, in one order: findings of rules and simulated changes together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from perfdoc.results.replay import Gain

TRIFLE_FRAC = 0.005
"""Of the step (or window): less is no reason to change anything."""

SURE, BOUND, UNSURE = 1.0, 0.5, 0.25
"""How surely a gain is had. SURE: predicted, all of its band above zero, nothing open. BOUND: a problem's
upper bound, of which half is taken for granted. UNSURE: predicted, but the job may not meet its conditions,
it changes what training computes, or its band reaches zero; and the upper bound of what is only worth a
try, or changes what training computes. A bound with conditions: half of that."""
SETTING, WORK = 1.0, 0.75
"""How cheaply: by a setting, or by work on the program or the machine."""

OpportunityKind = Literal["predicted", "bound", "unmeasured", "trifle", "capture"]


@dataclass(frozen=True, kw_only=True)
class Opportunity:
    """One thing to do: a rule's finding, a simulated change, or both where the one is the cure of the other.

    In the order of the list: predictions and findings with an upper bound by `worth_frac`, problems without a
    figure, information without one, trifles, what is wrong with the capture.
    """

    kind: OpportunityKind
    """predicted: by replay. bound: `gain.high_ms` is an upper bound, not predicted. unmeasured: no figure.
    trifle: under 0.5 % of the step, or no more than the replay's error. capture: better input, not speed."""
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
    """`gain_frac` x how surely x how cheaply it is had: the place in the list. None without a figure."""


def worth_frac(row: Opportunity, *, by_setting: bool, informs: bool = False) -> float | None:
    """What a row is ranked by. by_setting: whether a setting makes the change. informs: whether its finding
    is information, no problem.

    20 % by a setting come before 38 % that take static shapes, which are not known: 0.2 against 0.095.
    """
    gain = row.gain
    if row.gain_frac is None or gain is None:
        return None
    sure = SURE if row.exact and not row.conditions and (gain.low_ms or 0.0) > 0 else UNSURE
    surely = sure if gain.is_predicted else BOUND if row.exact and not informs else UNSURE
    if row.conditions and not gain.is_predicted:
        surely *= BOUND
    return row.gain_frac * surely * (SETTING if by_setting else WORK)


def is_trifle(part: float, of: float | None, error_frac: float | None = None) -> bool:
    """Whether a gain is too small to speak of: under TRIFLE_FRAC of the step, or within the replay's error.

    >>> is_trifle(0.13, 1200.0), is_trifle(12.0, 1200.0), is_trifle(12.0, 1200.0, -0.02)
    (True, False, True)
    """
    return bool(of) and part < max(TRIFLE_FRAC, abs(error_frac or 0.0)) * (of or 0.0)
