"""Rules that fire side by side: advice that excludes other advice, and gains that are of the same time.

A gain is of one change alone, so two rules may both promise the same nanoseconds. Each nanosecond is a
problem of one rule: of the problems with the same time the one whose gain is surest stays one, the others
become information that name it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfdoc.knobs.check import check
from perfdoc.knobs.knob import Value
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.rule import Related, RuleResult

_METHODS = {"replay": 0, "ceiling": 1, "none": 2}
"""How sure a gain is, surest first."""


def related(case: Case, results: Sequence[RuleResult]) -> list[RuleResult]:
    """The same rows, in their order, with what those that fire have to do with one another."""
    firing = [r for r in results if r.state == "fires"]
    found: dict[str, list[Related]] = {r.code: [] for r in firing}
    for i, one in enumerate(firing):
        for other in firing[i + 1 :]:
            for how, why in (
                ("not_together", _excluded(case, one, other)),
                ("same_time", _shared(one, other)),
            ):
                if why:
                    found[one.code].append(Related(code=other.code, how=how, why=why))  # type: ignore[arg-type]
                    found[other.code].append(Related(code=one.code, how=how, why=why))  # type: ignore[arg-type]
    first = _owners(firing)
    return [
        replace(
            r,
            related=tuple(found[r.code]),
            level="information" if first.get(r.code, r.code) != r.code else r.level,
        )
        if r.state == "fires" and r.code in found
        else r
        for r in results
    ]


def changes_of(result: RuleResult) -> dict[str, Value]:
    """What is advised and allowed; of several values for one knob the first, which the rule puts first."""
    return {p.knob: p.to for p in reversed(result.advice) if not p.forbidden}


def _excluded(case: Case, one: RuleResult, other: RuleResult) -> str:
    """Why what both advise cannot be made together; empty where it can."""
    mine, theirs = changes_of(one), changes_of(other)
    if not mine or not theirs:
        return ""
    for knob in mine.keys() & theirs.keys():
        if mine[knob] != theirs[knob]:
            return f"each wants another {knob}"
    against = check(case.configuration, mine | theirs)
    return against[0].words if against else ""


def _shared(one: RuleResult, other: RuleResult) -> str:
    """Which time both gains are of; empty where they share none."""
    shared = [_WORDS.get(name, name) for name in one.time if name in other.time]
    return ", ".join(shared)


_WORDS = {
    "idle.host": "idle behind the host",
    "idle.gc": "idle behind garbage collection",
    "idle.data": "idle behind data loading",
    "exposed_memcpy": "exposed copies",
    "waits": "waiting for late ranks",
    "pipeline.bubble": "the pipeline's bubble",
    "pipeline.late_peer": "waiting for slower stages",
    "pipeline.transfer": "messages between stages",
    **{f"exposed_comm.{d}": f"exposed {d.upper()} communication" for d in ("dp", "tp", "cp", "ep", "pp")},
}


def _owners(firing: Sequence[RuleResult]) -> dict[str, str]:
    """Problem -> the problem that keeps its time; itself where no surer one looks at any of it."""
    claiming = [r for r in firing if r.level == "problem" and r.time]
    problems = sorted(sorted(claiming, key=lambda r: r.code, reverse=True), key=_surest_first)
    taken: dict[str, str] = {}
    owners = {}
    for result in problems:
        owners[result.code] = next((taken[t] for t in result.time if t in taken), result.code)
        if owners[result.code] == result.code:
            taken |= dict.fromkeys(result.time, result.code)
    return owners


def _surest_first(result: RuleResult) -> tuple[int, float]:
    """Of equal gains the later code's comes first: rules of a whole dimension (PD342) have lower ones than
    those of one cause of its time (PD343), which say more. What was simulated and saves nothing takes none of
    the time away, and comes behind what may."""
    gain = result.gain
    if gain is None:
        return len(_METHODS), 0.0
    most = gain.mid_ms if gain.method == "replay" else gain.high_ms
    if gain.method == "replay" and (most or 0.0) <= 0:
        return _METHODS["none"], 0.0
    return _METHODS[gain.method], -(most or 0.0)
