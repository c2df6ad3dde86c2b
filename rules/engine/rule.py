"""A rule: its identity (Meta) and its finding (Verdict), made by `fires`, `informs`, `passes` or `skips`."""

from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial
from typing import Literal

from perfdoc.records import dataclass
from perfdoc.results.replay import Gain
from perfdoc.results.rules import Advice, WorstInstance
from perfdoc.results.what_if import WhatIfCause
from perfdoc.rules.engine.assumptions import Assumes
from perfdoc.rules.engine.case import Case as Case
from perfdoc.rules.engine.needs import Need

Evidence = tuple[str, str]
"""What was measured, and its value in words."""
State = Literal["fires", "passes", "not_applicable", "skipped", "error"]
Level = Literal["problem", "information"]
"""problem: a cost was measured, or a setting is certainly wrong. information: worth knowing or trying, at an
unmeasured cost."""


@dataclass(frozen=True, kw_only=True)
class Meta:
    """Identity of a rule."""

    code: str = ""
    """Empty: that of the file's name, `pd101_exposed_dp.py`. A code is never reused."""
    title: str
    """Names the problem, not the fix."""
    action: str = ""
    """What to do about it, in the imperative and a few words."""
    why: str = ""
    """What the problem costs, in a sentence or two. Empty: the docstring of the rule's file."""
    sources: tuple[str, ...]
    """Sources of the advice."""
    topic: str = ""
    """One of `advice.entries.TOPICS`."""
    time: tuple[str, ...] = ()
    """The time that its gain reduces: ledger leaves (`exposed_comm.tp`), parts of pipeline waiting
    (`pipeline.bubble`), `waits` for late ranks. Empty if no other rule's gain can overlap."""
    with_it: tuple[str, str] | None = None
    """What of other leaves ends with the first of `time`: (of several ranks, of one alone)."""
    behind: tuple[tuple[str, str], ...] = ()
    """(Code of a rule that may stand before it, how its time then lies to that rule's)."""
    needs: tuple[Need, ...] = ()
    """Required inputs, checked in order: the engine returns the first missing one as the verdict, and calls
    `evaluate` if none is missing."""
    advice: tuple[str, ...] = ()
    """Ids of the guides' entries that it decides."""
    assumes: tuple[Assumes, ...] = ()
    """What its words assume beside `needs`; the engine leaves out those of which it does not hold."""
    for_servers: bool = False
    """Whether it also holds for an inference engine, which trains nothing."""
    status: Literal["preview", "stable"] = "preview"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The finding of a rule; a state other than `fires` and `passes` needs a reason."""

    state: State
    level: Level = "problem"
    """If it fires."""
    reason: str = ""
    evidence: Sequence[Evidence] = field(default_factory=tuple)
    remedy: str = ""
    """What to do, in words, where no setting does it; without advice `otherwise` unless it is given."""
    advice: Sequence[Advice] = field(default_factory=tuple)
    """Best first, each made with `advise`."""
    action: str = ""
    """Overrides Meta.action if it depends on the case."""
    otherwise: str = ""
    """What to do, in words, if no advice is left: all of it forbidden or already set."""
    gain: Gain | None = None
    """The gain of the remedy in words; next to advice, the upper bound of any gain. None if unknown."""
    sized_by: str = ""
    """Why its gain is another than the part of the ledger that it is about, if it is."""
    frees_bytes: int | None = None
    """Memory that the remedy frees on a GPU, at most."""
    time: tuple[str, ...] | None = None
    """Overrides Meta.time if it depends on the case; None: as in Meta."""
    verify: str = ""
    """How to check that it helped."""
    false_alarm: str = ""
    """What would make this a false alarm."""
    blames: str = ""
    """Who or what makes the step long, as `RuleResult.blames`: it then comes first."""
    cause: WhatIfCause | None = None
    """That which `blames` names, where the replay of all ranks' operations found it."""
    is_elsewhere: bool = False
    """If it passes: the time has another cause, so that no change to it is advised."""
    worst: WorstInstance | None = None
    """Its worst instance in the trace; None: the costliest instance of the time that it is about."""


fires = partial(Verdict, state="fires")
"""A problem, unless `level` says otherwise."""
informs = partial(Verdict, state="fires", level="information")


def passes(evidence: Sequence[Evidence] = (), reason: str = "", *, is_elsewhere: bool = False) -> Verdict:
    """Nothing to do. reason: where the evidence alone does not say why."""
    return Verdict(state="passes", reason=reason, evidence=evidence, is_elsewhere=is_elsewhere)


def skips(reason: str, evidence: Sequence[Evidence] = ()) -> Verdict:
    """An input is missing that no need in META covers."""
    return Verdict(state="skipped", reason=reason, evidence=evidence)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule file, loaded."""

    meta: Meta
    evaluate: Callable[[Case], Verdict]
    """Pure: measurements in, verdict out."""
