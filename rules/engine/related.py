"""Relations between rules that fire: conflicting advice, and gains that overlap.

A gain is that of one change alone, so two rules may both promise the same nanoseconds. Each nanosecond is
the problem of one rule: of several problems with the same time the one with the surest gain stays a problem,
the others become information that refers to it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfdoc.knobs.check import check
from perfdoc.knobs.knob import Value
from perfdoc.results.rules import Related, RuleResult
from perfdoc.rules.engine.advise import value_of
from perfdoc.rules.engine.case import Case

_METHODS = {"replay": 0, "model": 0, "ceiling": 1, "none": 2}
"""Gain methods, surest first."""


@dataclass(frozen=True, kw_only=True)
class Applied:
    """The result of one rule, alone."""

    result: RuleResult
    time: tuple[str, ...]
    """The time that its gain reduces; empty without a gain."""


def related(case: Case, applied: Sequence[Applied]) -> list[RuleResult]:
    """The results, in their order, with the relations between those that fire."""
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
            r, related=found[r.code], level="information" if first.get(r.code, r.code) != r.code else r.level
        )
        if r.state == "fires" and r.code in found
        else r
        for r in (a.result for a in applied)
    ]


def changes_of(result: RuleResult) -> dict[str, Value]:
    """The allowed changes; if one knob has several values, the first, which is the best."""
    return {p.knob: value_of(p) for p in reversed(result.advice) if not p.forbidden}


def _excluded(case: Case, one: RuleResult, other: RuleResult) -> str:
    """Why both changes cannot be made together; empty if they can."""
    mine, theirs = changes_of(one), changes_of(other)
    if not mine or not theirs:
        return ""
    for knob in mine.keys() & theirs.keys():
        if mine[knob] != theirs[knob]:
            return f"they set {knob} to different values"
    against = check(case.configuration, mine | theirs)
    return against[0].words if against else ""


def _shared(one: Applied, other: Applied) -> str:
    """The time that both gains reduce; empty if they share none."""
    shared = [_WORDS.get(name, name) for name in one.time if name in other.time]
    return ", ".join(shared)


_WORDS = {
    "idle.host": "launch-bound idle time",
    "idle.gc": "garbage-collection idle time",
    "idle.data": "data-loader stalls",
    "exposed_memcpy": "exposed copies",
    "waits": "waiting for late ranks",
    "pipeline.bubble": "pipeline bubble",
    "pipeline.late_peer": "waiting for late peers",
    "pipeline.transfer": "pipeline send/recv",
    **{f"exposed_comm.{d}": f"exposed {d.upper()} communication" for d in ("dp", "tp", "cp", "ep", "pp")},
}


def _owners(firing: Sequence[Applied]) -> dict[str, str]:
    """Problem -> the problem that owns its time; itself if no surer one shares any of it."""
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
    """Surest gain first, then the largest; equal gains by later code: a rule on one cause (PD343) has a later
    code than the rule on its whole dimension (PD342) and says more. A replay that saves nothing owns no time
    and comes last."""
    gain = result.gain
    if gain is None:
        return len(_METHODS), 0.0
    most = gain.mid_ms if gain.is_predicted else gain.high_ms
    if gain.is_predicted and (most or 0.0) <= 0:
        return _METHODS["none"], 0.0
    return _METHODS[gain.method], -(most or 0.0)
