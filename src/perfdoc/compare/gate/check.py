"""From runs and a folder of baselines to a result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perfdoc.compare.baseline_files import Baseline, find, nearest, read_baselines, refuse_known
from perfdoc.compare.facts import Facts, differences
from perfdoc.compare.figures import RunFigures, Statistic, twice
from perfdoc.compare.floors import Floor, Level, check_floors
from perfdoc.compare.gate.drift import Drift, drift, promoted_since
from perfdoc.compare.gate.measures import DRIFT, MEAN, PARTS, Family, Told, told, told_in_pairs
from perfdoc.compare.gate.parts import growth, where_inconclusive
from perfdoc.compare.gate.result import (
    Check,
    Difference,
    Result,
    compared,
    drift_check,
    floor_check,
    incomparable,
    parts_check,
)
from perfdoc.compare.gate.sessions import in_turn, same_place, shared_noise_frac, together
from perfdoc.compare.gate.step_checks import left_out_notes, step_checks
from perfdoc.compare.runs import Run
from perfdoc.compare.significance import few_orders, few_pairs
from perfdoc.profiling.environment import encodable
from perfdoc.traces import TraceError

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
    notes += together(old)
    step_times(path, old, statistic)
    notes += promoted_since(baseline.promotions, [r.median_step_ns for r in figures], practical_frac)
    family = Family.of(old, figures, statistic, with_drift=drift_level != "off")
    found_steps = told(family, old, figures, practical_frac)
    if any(t.fails for t in found_steps):
        notes += few_orders(len(old), len(figures), list(family.chance.values()))
    drifted = drifted_mean(family, old, figures, practical_frac)
    grown = growth(old, figures)
    return compared(
        [
            *step_checks(found_steps, old, figures, grown, whose="the baseline's", statistic=statistic),
            *_by_parts(found_steps, family, old, figures, practical_frac),
            *([drift_check(drifted, drift_level, old)] if drifted else []),
            *map(floor_check, limits),
        ],
        grown,
        improved=any(t.improved for t in found_steps),
        baseline=encodable(path.name),
        baseline_runs=old,
        runs=figures,
        notes=[*notes, *left_out_notes(figures)],
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
    pairs = in_turn(old, new)
    notes += same_place(pairs)
    family = Family.of(old, new, statistic, with_drift=False)
    found = told_in_pairs(family, pairs, practical_frac)
    if any(t.fails for t in found):
        notes += few_pairs(len(pairs), list(family.chance.values()))
    grown = growth(old, new)
    return compared(
        [
            *step_checks(found, old, new, grown, whose="the old runs'", statistic=statistic),
            *_by_parts(found, family, old, new, practical_frac),
            *limits,
        ],
        grown,
        improved=any(t.improved for t in found),
        baseline=None,
        baseline_runs=old,
        runs=new,
        notes=[*notes, *left_out_notes(new)],
        statistic=statistic,
    )


def step_times(path: Path, runs: Sequence[RunFigures], statistic: Statistic) -> list[int]:
    """The figure of each run. Raises TraceError where one does not say it."""
    found = [run.step_ns(statistic) for run in runs]
    known = [ns for ns in found if ns is not None]
    if len(known) < len(found):
        what = f"holds runs from before --statistic {statistic} existed."
        raise TraceError(path, what, "Record a new baseline, or compare by --statistic median.")
    return known


def drifted_mean(
    family: Family, old: Sequence[RunFigures], new: Sequence[RunFigures], practical_frac: float
) -> Drift | None:
    """The mean step against the first runs of the level; the step itself where the mean does not decide."""
    if DRIFT not in family.chance:
        return None
    measure = next(m for m in reversed(family.measures) if m.decides)
    before, after = ([v for run in side if (v := measure.of(run)) is not None] for side in (old, new))
    chance = family.chance[DRIFT]
    shared = shared_noise_frac(old, before, new, after, confidence=1 - chance)
    says = "The mean step" if measure.name == MEAN.name else "A step"
    return drift(before, after, practical_frac, shared_noise_frac=shared, chance=chance, says=says)


def _by_parts(
    found: Sequence[Told],
    family: Family,
    old: Sequence[RunFigures],
    new: Sequence[RunFigures],
    practical_frac: float,
) -> list[Check]:
    """What parts say where the step as a whole, or its mean, cannot be told."""
    if PARTS not in family.chance or any(t.fails for t in found):
        return []
    for judged in found:
        if not judged.measure.decides:
            continue
        parts = where_inconclusive(judged.decision, old, new, practical_frac, family.chance[PARTS])
        if parts is not None:
            return [parts_check(parts, practical_frac)]
    return []


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
    """A note on facts that differ and were let."""
    let = differences(others, here)
    return [f"differs from {whose} in ignored facts: {', '.join(let)}"] if let else []


def _named(differ: Sequence[Difference]) -> str:
    """The first of them, for a sentence."""
    more = f" and {len(differ) - MAX_NAMED} more" if len(differ) > MAX_NAMED else ""
    return ", ".join(d.fact for d in differ[:MAX_NAMED]) + more
