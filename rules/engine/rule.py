"""What a rule is: who it is (Meta) and what it found (Verdict)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from perfdoc.knobs.knob import Value
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.needs import Need
from perfdoc.rules.engine.worst import Worst
from perfdoc.simulator.replay.predict import Gain

State = Literal["fires", "passes", "not_applicable", "skipped", "error"]
Level = Literal["problem", "information"]
"""problem: a cost was measured, or something is wrong for certain. information: worth knowing or trying, at a
cost that nobody measured here."""


@dataclass(frozen=True, kw_only=True)
class Meta:
    """Identity of a rule. A code is never used again for another rule."""

    code: str
    title: str
    """Names the problem, not the fix."""
    why: str
    """What the problem costs, in a sentence or two."""
    sources: tuple[str, ...]
    """Where the advice comes from."""
    topic: str = ""
    """Of `advice.entries.TOPICS`."""
    time: tuple[str, ...] = ()
    """Of whose time its gain is: ledger leaves (`exposed_comm.tp`), parts of a pipeline's waiting
    (`pipeline.bubble`), `waits` for late ranks. Empty where its gain is of no time that others look at."""
    needs: tuple[Need, ...] = ()
    """What must be known, in the order in which it is asked: the engine gives the first that is missing as
    the verdict, and `evaluate` is called where none is."""
    advice: tuple[str, ...] = ()
    """Entries of the guides that it decides, by id."""
    status: Literal["preview", "stable"] = "preview"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One figure that a verdict rests on, with its unit in the value."""

    label: str
    value: str


@dataclass(frozen=True, kw_only=True)
class Advice:
    """One setting to change. Where the rest of the configuration forbids it, it is not given."""

    knob: str
    """Canonical id, as in the catalogue."""
    to: Value
    why: str
    """What it does here, in a sentence."""
    costs: str = ""
    """What is paid for it: memory, numerics."""
    gain: Gain | None = None
    """Of this piece; shown only where nothing that is known forbids it and it is not set so already."""
    together: Sequence[str] = ()
    """Other knobs advised that the gain was predicted with: without one of them it is the most there is."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a rule found; a state other than `fires` and `passes` needs a reason."""

    state: State
    level: Level = "problem"
    """Where it fires."""
    reason: str = ""
    evidence: Sequence[Evidence] = field(default_factory=tuple)
    remedy: str = ""
    """What to do, in words, for what no setting does."""
    advice: Sequence[Advice] = field(default_factory=tuple)
    """Best first."""
    otherwise: str = ""
    """What to do, in words, where no piece of the advice is left: all forbidden or followed already."""
    gain: Gain | None = None
    """What the remedy in words gains; beside advice the most that there is to gain, a ceiling. None where
    nothing can be said."""
    time: tuple[str, ...] | None = None
    """As in Meta, where it depends on the case; None: as Meta says."""
    verify: str = ""
    """How to see whether it helped."""
    false_alarm: str = ""
    """What would make this none of a problem."""
    worst: Worst | None = None
    """The worst instance of it in the trace; None where it is of no single moment, or none is known."""


@dataclass(frozen=True, kw_only=True)
class Proposed:
    """Advice that fits the configuration, or the reason why it does not."""

    knob: str
    known: bool
    """Whether the present setting is known."""
    now: Value
    to: Value
    why: str
    costs: str
    forbidden: str
    """The rule of the catalogue that speaks against it; empty where none does."""
    gain: Gain | None = None
    """Of this piece; None where nothing was predicted for it."""
    together: Sequence[str] = ()
    """Other knobs advised that the gain was predicted with."""


@dataclass(frozen=True, kw_only=True)
class Related:
    """Another rule that fires, and what it has to do with this one."""

    code: str
    how: Literal["not_together", "same_time"]
    """not_together: what both advise excludes one another. same_time: both gains are of the same time."""
    why: str


@dataclass(frozen=True, kw_only=True)
class RuleResult:
    """A verdict with the rule's identity."""

    code: str
    title: str
    state: State
    level: Level
    reason: str
    evidence: Sequence[Evidence]
    remedy: str
    advice: Sequence[Proposed]
    gain: Gain | None
    """Of the advice that is allowed, of its best piece."""
    gain_per: Literal["step", "window"]
    """What the gain is of: windows without steps have no step."""
    gain_frac: float | None
    """The gain (a ceiling's upper end) by the longest of the ranks' steps, or windows."""
    verify: str
    false_alarm: str
    worst: Worst | None = None
    time: tuple[str, ...] = ()
    """Of whose time the gain is; empty where there is no gain."""
    related: Sequence[Related] = ()
    """Other rules that fire, by code."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule file, loaded."""

    meta: Meta
    evaluate: Callable[[Case], Verdict]
    """Pure: measurements in, verdict out."""
