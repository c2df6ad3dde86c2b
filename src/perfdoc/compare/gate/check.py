"""From runs and a folder of baselines to a result."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType

from perfdoc.compare.baseline_files import Baseline, Promotion, find, nearest, read_baselines, refuse_known
from perfdoc.compare.facts import Fact, Facts, differences, unsaid
from perfdoc.compare.figures import Statistic, twice
from perfdoc.compare.floors import Floor, Level, check_floors
from perfdoc.compare.gate.judge import judge
from perfdoc.compare.gate.result import (
    Difference,
    Result,
    compared,
    floor_check,
    incomparable,
)
from perfdoc.compare.gate.sessions import note_one_session, note_same_place, pair_runs
from perfdoc.compare.runs import Run
from perfdoc.profiling.environment import encodable
from perfdoc.results.figures import per_cent, plural
from perfdoc.results.names import shorten

MAX_UNSAID = 12
_DO = MappingProxyType({"the baseline": "does", "the runs beside": "do", "the log": "does"})
MAX_NAMED = 3
"""Differing facts that the one sentence names."""


def check_runs(
    runs: Sequence[Run],
    folder: Path,
    *,
    ignored: Sequence[str],
    floors: Sequence[Floor],
    practical_frac: float,
    drift_level: Level = "error",
    statistic: Statistic = "median",
) -> Result:
    """Compare runs of one configuration with their baseline. Raises TraceError for a broken baseline."""
    facts, figures = runs[0].facts, [r.figures for r in runs]
    notes = list(dict.fromkeys(note for run in runs for note in run.notes))
    limits = check_floors(floors, figures)
    baselines = read_baselines(folder)
    found = find(baselines, facts, ignored)
    if found is None:
        why, closest, differ = _why_not(folder, baselines, facts, ignored)
        return incomparable(
            why,
            list(map(floor_check, limits)),
            baseline=encodable(closest.name) if closest else None,
            differences=differ,
            runs=figures,
            notes=notes,
        )
    path, baseline = found
    notes += _let(baseline.facts, facts, "the baseline")
    refuse_known(path, baseline, figures, "a run is not compared with itself")
    old = baseline.runs
    notes += note_one_session(old)
    notes += promoted_since(baseline.promotions, [r.median_step_ns for r in figures], practical_frac)
    judged = judge(old, figures, practical_frac, statistic, drift_level)
    return compared(
        [*judged.checks, *map(floor_check, limits)],
        judged.grown,
        improved=judged.improved,
        baseline=encodable(path.name),
        baseline_runs=old,
        runs=figures,
        notes=[*notes, *judged.notes],
        statistic=statistic,
    )


def check_beside(
    runs: Sequence[Run],
    beside: Sequence[Run],
    *,
    ignored: Sequence[str],
    floors: Sequence[Floor],
    practical_frac: float,
    statistic: Statistic = "median",
) -> Result:
    """Compare runs with others that were made in turn with them. Raises ValueError where they were not."""
    new, old = [r.figures for r in runs], [r.figures for r in beside]
    if (same := twice([*old, *new])) is not None:
        raise ValueError(f"{same[0].source} and {same[1].source} are one run: it counts once.")
    notes = list(dict.fromkeys(note for run in (*beside, *runs) for note in run.notes))
    limits = list(map(floor_check, check_floors(floors, new)))
    if differ := _differ(beside[0].facts, runs[0].facts, ignored):
        why = f"The runs beside differ in {_named(differ)}. Let facts differ with --ignore."
        return incomparable(why, limits, baseline=None, differences=differ, runs=new, notes=notes)
    notes += _let(beside[0].facts, runs[0].facts, "the runs beside")
    pairs = pair_runs(old, new)
    notes += note_same_place(pairs)
    found = judge([a for a, _ in pairs], [b for _, b in pairs], practical_frac, statistic, in_pairs=True)
    return compared(
        [*found.checks, *limits],
        found.grown,
        improved=found.improved,
        baseline=None,
        baseline_runs=old,
        runs=new,
        notes=[*notes, *found.notes],
        statistic=statistic,
    )


def promoted_since(
    promotions: Sequence[Promotion], new_ns: Sequence[int], practical_frac: float
) -> list[str]:
    """A note where the accepted changes of level have together made a step slower than it first was."""
    if not promotions:
        return []
    slower = statistics.fmean(new_ns) / promotions[0].before_step_ns - 1
    if slower <= practical_frac:
        return []
    changes = plural(len(promotions), "promotion")
    return [f"a step became {per_cent(slower)} slower in all with {changes} since {promotions[0].utc}"]


def _why_not(
    folder: Path, baselines: dict[Path, Baseline], facts: Facts, ignored: Sequence[str]
) -> tuple[str, Path | None, list[Difference]]:
    """A sentence, the nearest baseline, and in what it differs."""
    closest = nearest(baselines, facts, ignored)
    if closest is None:
        return (
            f"{encodable(str(folder))} holds no baseline. Record one from three or more accepted runs: "
            "perfdoc gate record RUN…",
            None,
            [],
        )
    path, baseline = closest
    differ = _differ(baseline.facts, facts, ignored)
    return (
        f"No baseline of these facts; the nearest, {encodable(path.name)}, differs in {_named(differ)}. "
        "Record these runs as a baseline of their own, or let facts differ with --ignore.",
        path,
        differ,
    )


def _differ(baseline: Facts, here: Facts, ignored: Sequence[str]) -> list[Difference]:
    found = differences(baseline, here, ignored)
    return [Difference(fact=name, baseline=a, here=b) for name, (a, b) in found.items()]


def _let(others: Facts, here: Facts, whose: str) -> list[str]:
    """Notes on facts that differ and were let, and on those that only one of two logs says."""
    let, half = differences(others, here), unsaid(others, here)
    notes = [f"differs from {whose} in ignored facts: {', '.join(let)}"] if let else []
    silent = {whose: [n for n in half if n in here], "the log": [n for n in half if n in others]}
    for which, names in silent.items():
        if names:
            more = f" and {len(names) - MAX_UNSAID} more" if len(names) > MAX_UNSAID else ""
            said = ", ".join(names[:MAX_UNSAID])
            notes.append(f"not compared, as {which} {_DO[which]} not say: {said}{more}")
    return notes


def _named(differ: Sequence[Difference]) -> str:
    """The first of them, for a sentence."""
    more = f" and {len(differ) - MAX_NAMED} more" if len(differ) > MAX_NAMED else ""
    named = [f"{d.fact} ({_word(d.baseline)} → {_word(d.here)})" for d in differ[:MAX_NAMED]]
    return ", ".join(named) + more


def _word(value: Fact) -> str:
    return "not said" if value is None else shorten(str(value), 48)
