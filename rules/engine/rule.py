"""What a rule is: who it is (Meta) and what it found (Verdict)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from perfdoc.results.replay import Gain
from perfdoc.results.rules import Advice, Evidence, WorstInstance
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.needs import Need

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
    """Best first, each made with `advise`."""
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
    worst: WorstInstance | None = None
    """The worst instance of it in the trace; None where it is of no single moment, or none is known."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule file, loaded."""

    meta: Meta
    evaluate: Callable[[Case], Verdict]
    """Pure: measurements in, verdict out."""
