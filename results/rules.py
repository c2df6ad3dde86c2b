"""What the rules found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Literal

from perfdoc.records import dataclass
from perfdoc.results.replay import Gain

NOTHING_TO_SET = "None of the settings that would help can be changed here."
"""The remedy of a rule of whose advice nothing is allowed, and which has no other."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One fact that a rule rests on."""

    label: str
    value: str


@dataclass(frozen=True, kw_only=True)
class Advice:
    """One setting to change."""

    # A rule makes it with rules.engine.advise, which writes the value in every dialect; the engine adds the
    # present setting and what speaks against the change. Who needs the value typed has the catalogue read
    # `to_value` as it reads a file (`value_of` there).

    knob: str
    """Canonical id: `perfdoc knobs ID` says what it is."""
    from_value: str | None
    """The present setting as text; None where it is not known."""
    to_value: str
    why: str
    costs: str
    """Its cost; empty if none is known."""
    dialects: dict[str, str]
    """Ready to paste, by dialect; frameworks that have no such setting are left out."""
    forbidden: str
    """Why this configuration forbids it; empty if it is allowed."""
    gain: Gain | None = None
    """Of this piece, for the rule's `gain_per`; None where nothing was predicted for it."""
    together: list[str] = field(default_factory=list)
    """Other knobs of this rule's advice that belong to it: what it cannot be set without, or the gain was
    predicted with. One that does not name it in turn is there for it alone."""
    if_unset: list[str] = field(default_factory=list)
    """Knobs of unknown present setting: this is advice only if they are not set already. Empty for advice
    that rests on what is known."""


def there_for_others(advice: Sequence[Advice]) -> dict[str, set[str]]:
    """Of each knob that is only there for others, which these are: those that name it and that it does not
    name."""
    found: dict[str, set[str]] = {}
    for piece in advice:
        for knob in piece.together:
            if any(other.knob == knob and piece.knob not in other.together for other in advice):
                found.setdefault(knob, set()).add(piece.knob)
    return found


@dataclass(frozen=True, kw_only=True)
class WorstInstance:
    """The worst single instance of what a rule fires on."""

    rank: int | None
    label: str
    """The rank's name in this diagnosis."""
    step: str
    """In which it began; empty outside of all steps."""
    name: str
    """Of the kernel, collective, call or range; empty where it has none."""
    says: str
    """What is to be seen, in one sentence."""
    start_ns: int
    """On the clock of the rank's capture."""
    end_ns: int
    cost_ns: int
    """Its cost: exposed or idle time, slowdown against a run alone, or lateness of a rank."""


@dataclass(frozen=True, kw_only=True)
class Related:
    """Another rule that fires, and its relation to this one."""

    code: str
    how: Literal["not_together", "same_time"]
    """not_together: the two rules' advice excludes each other. same_time: the gains overlap; do not add
    them."""
    why: str


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
    action: str = ""
    """The same in a few words, in the imperative; empty where the rule has none."""
    advice: list[Advice] = field(default_factory=list)
    """Settings, best first; empty unless the rule fires."""
    gain: Gain | None = None
    """Gain of the best allowed advice; None if unknown."""
    gain_per: Literal["step", "window"] = "step"
    """Unit of the gain: a step, or the window if ranks' windows are not made of steps."""
    gain_frac: float | None = None
    """The gain (or its upper bound) over the longest step, or window."""
    level: Literal["problem", "information"] = "problem"
    """Of a rule that fires. problem: a cost was measured, or a setting is wrong. information: a suggestion
    without a measured cost."""
    ends: str = ""
    """Leaf of the ledger, or part of pipeline waiting, that its gain ends; empty without `with_it`."""
    with_it: str = ""
    """What of other leaves ends with it; empty where nothing does."""
    behind: dict[str, str] = field(default_factory=dict)
    """How its time lies to that of a rule that stands before it, by that rule's code."""
    sized_by: str = ""
    """Why its gain is another than its part of the ledger, in place of `with_it`; empty where it is not."""
    frees_bytes: int | None = None
    """Memory that it frees on a GPU, at most; None where that is not known, or it frees none."""
    verify: str = ""
    """How to see whether it helped."""
    false_alarm: str = ""
    """What would make this none of a problem."""
    blames: str = ""
    """Who or what makes the step long, as the head of a sentence (`Rank 1 computes longer than the others`);
    empty where the rule names nobody in particular. The verdict says it, and its row is the first."""
    worst: WorstInstance | None = None
    """Its worst instance in the captures; None if it has no single moment, or none is known."""
    related: list[Related] = field(default_factory=list)
    """Other rules that fire. Of problems with the same time one stays a problem."""
