"""What a check found: gate.json, and what every rendering is made from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from perfdoc.compare.facts import Fact
from perfdoc.compare.figures import RunFigures
from perfdoc.compare.floors import KINDS, FloorResult
from perfdoc.compare.gate.measures import Grown
from perfdoc.records import dataclass
from perfdoc.results.figures import per_cent, significant

State = Literal["pass", "warn", "fail", "inconclusive"]

EXIT_CODES: dict[State, int] = {"pass": 0, "warn": 0, "fail": 1, "inconclusive": 3}


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was checked."""

    name: str
    state: State
    message: str
    """One sentence with the figures."""
    value: float | None = None
    limit: float | None = None
    unit: str = ""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A fact that keeps two runs from being compared."""

    fact: str
    baseline: Fact
    here: Fact


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of `perfdoc gate check`."""

    schema_version: Literal[1] = 1
    verdict: Literal["pass", "improved", "fail", "inconclusive", "incomparable", "unreadable"]
    exit_code: int
    summary: str
    """One sentence for a reader in a hurry."""
    checks: list[Check]
    grown: list[Grown] = []
    """Parts of the step that changed beyond their spread, most first; of profiled steps, or of the step log
    where there are none."""
    baseline: str | None = None
    """Name of its file; null where runs beside one another were compared."""
    baseline_runs: list[RunFigures] = []
    runs: list[RunFigures] = []
    differences: list[Difference] = []
    notes: list[str] = []


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What came out, the check of the step first."""

    checks: Sequence[Check]
    grown: Sequence[Grown]
    improved: bool
    notes: Sequence[str]


def compared(
    found: Judgement,
    limits: Sequence[Check],
    baseline: str | None,
    baseline_runs: Sequence[RunFigures],
    runs: Sequence[RunFigures],
    notes: Sequence[str],
) -> Result:
    """The result of a comparison: of steps, the first of the checks, and of parts, drift and limits.

    baseline: the name of its file; None for runs beside one another.
    """
    checks = [*found.checks, *limits]
    state = _worst(checks)
    gained: Literal["pass", "improved"] = "improved" if found.improved else "pass"
    decisive = state if state in ("fail", "inconclusive") else checks[0].state
    return Result(
        verdict=state if state in ("fail", "inconclusive") else gained,
        exit_code=EXIT_CODES[state],
        summary=next(c.message for c in checks if c.state == decisive),
        checks=checks,
        grown=list(found.grown),
        baseline=baseline,
        baseline_runs=list(baseline_runs),
        runs=list(runs),
        notes=[*notes, *found.notes],
    )


def unreadable(why: str) -> Result:
    """The result where a run cannot be judged because too much of it is gone."""
    check = Check(name="runs", state="inconclusive", message=why)
    return Result(verdict="unreadable", exit_code=EXIT_CODES["inconclusive"], summary=why, checks=[check])


def incomparable(
    why: str,
    others: Sequence[Check],
    *,
    baseline: str | None,
    differences: Sequence[Difference],
    runs: Sequence[RunFigures],
    notes: Sequence[str],
) -> Result:
    """The result where no baseline fits; absolute limits hold all the same."""
    checks = [Check(name="step_time", state="inconclusive", message=why), *others]
    failed = [c for c in checks if c.state == "fail"]
    return Result(
        verdict="fail" if failed else "incomparable",
        exit_code=EXIT_CODES[_worst(checks)],
        summary=failed[0].message if failed else why,
        checks=checks,
        baseline=baseline,
        runs=list(runs),
        differences=list(differences),
        notes=list(notes),
    )


def _worst(checks: Sequence[Check]) -> State:
    order: tuple[State, ...] = ("fail", "inconclusive", "warn", "pass")
    return next(state for state in order if any(c.state == state for c in checks))


def change(slower_frac: float) -> str:
    """A difference in words: 5.0 % slower than, 3.1 % faster than, no slower than."""
    shown = per_cent(abs(slower_frac))
    if shown in ("0.0 %", "<0.1 %"):
        return "no slower than"
    return f"{shown} {'slower' if slower_frac > 0 else 'faster'} than"


def floor_check(found: FloorResult) -> Check:
    """The check of one absolute limit."""
    floor, unit = found.floor, f" {found.unit}" if found.unit else ""
    side = "at least" if KINDS[floor.name].at_least else "at most"
    bad: State = "warn" if floor.level == "warn" else "fail"
    if found.state == "unknown":
        state: State = "warn" if floor.level == "warn" else "inconclusive"
        message = f"{floor.name} is {side} {figure(floor.limit)}{unit}, but not every run reports it."
    else:
        state = bad if found.state == "broken" else "pass"
        message = f"{floor.name}: {figure(found.value)}{unit}, {side} {figure(floor.limit)}{unit} required."
    return Check(
        name=floor.name, state=state, message=message, value=found.value, limit=floor.limit, unit=found.unit
    )


def figure(value: float | None) -> str:
    """In digits, never with an exponent: 12,936.1 and 0.4213."""
    if value is None:
        return "unknown"
    if 0.001 <= abs(value) < 1000:
        return significant(value, 6)
    text = f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.9f}"
    return text.rstrip("0").rstrip(".")
