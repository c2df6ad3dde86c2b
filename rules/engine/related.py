"""Rules that fire side by side: advice that excludes other advice, and gains that are of the same time.

A gain is of one change alone, so two rules may both promise the same nanoseconds. Each nanosecond is a
problem of one rule: of the problems with the same time the one whose gain is surest stays one, the others
become information that name it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfdoc.knobs.check import check
from perfdoc.knobs.knob import Value
from perfdoc.results.rules import Related, RuleResult
from perfdoc.rules.engine.advise import value_of
from perfdoc.rules.engine.case import Case

_METHODS = {"replay": 0, "ceiling": 1, "none": 2}
"""How sure a gain is, surest first."""


@dataclass(frozen=True, kw_only=True)
class Applied:
    """What a rule found, alone."""

    result: RuleResult
    time: tuple[str, ...]
    """Of whose time its gain is; empty where there is none."""


def related(case: Case, applied: Sequence[Applied]) -> list[RuleResult]:
    """The results, in their order, with what those that fire have to do with one another."""
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
            r,
            related=found[r.code],
            level="information" if first.get(r.code, r.code) != r.code else r.level,
        )
        if r.state == "fires" and r.code in found
        else r
        for r in (a.result for a in applied)
    ]


def changes_of(result: RuleResult) -> dict[str, Value]:
    """What is advised and allowed; of several values for one knob the first, which the rule puts first."""
    return {p.knob: value_of(p) for p in reversed(result.advice) if not p.forbidden}


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


def _shared(one: Applied, other: Applied) -> str:
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


def _owners(firing: Sequence[Applied]) -> dict[str, str]:
    """Problem -> the problem that keeps its time; itself where no surer one looks at any of it."""
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
