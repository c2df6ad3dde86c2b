"""What the rules found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from perfdoc.diagnosis.replay import Gain


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One fact that a rule rests on."""

    label: str
    value: str


@dataclass(frozen=True, kw_only=True)
class Advice:
    """One setting to change."""

    knob: str
    """Canonical id: `perfdoc knobs ID` says what it is."""
    from_value: str | None
    """The present setting as text; None where it is not known."""
    to_value: str
    why: str
    costs: str
    """What is paid for it; empty where nothing is known of."""
    dialects: dict[str, str]
    """Ready to paste, by dialect; frameworks that have no such setting are left out."""
    forbidden: str
    """What speaks against it in this configuration; empty where nothing that is known does."""


@dataclass(frozen=True, kw_only=True)
class RuleResult:
    """What one rule found."""

    code: str
    title: str
    state: Literal["fires", "passes", "not_applicable", "skipped", "error"]
    reason: str
    evidence: list[Evidence]
    remedy: str
    """What to do about it; empty unless the rule fires."""
    advice: list[Advice] = field(default_factory=list)
    """Settings, best first; empty unless the rule fires."""
    gain: Gain | None = None
    """What the advice that is allowed saves, of its best piece; None where nothing can be said."""
    gain_per: Literal["step", "window"] = "step"
    """What the gain is of: a step, or the window where ranks' windows are not made of steps."""
    gain_frac: float | None = None
    """The gain (a ceiling's upper end) by the longest step, or window."""
    level: Literal["problem", "information"] = "problem"
    """Of a rule that fires. problem: a cost was measured, or something is wrong for certain. information:
    worth knowing or trying, at a cost that nobody measured here."""
    verify: str = ""
    """How to see whether it helped."""
    false_alarm: str = ""
    """What would make this none of a problem."""
