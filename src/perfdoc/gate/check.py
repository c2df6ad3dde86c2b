"""From runs and a folder of baselines to a result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perfdoc.gate.baseline import Baseline, find, nearest, read_baselines, refuse_known
from perfdoc.gate.decision import decide
from perfdoc.gate.drift import drift, promoted_since
from perfdoc.gate.facts import Facts, differences
from perfdoc.gate.floors import Floor, Level, check_floors
from perfdoc.gate.growth import growth
from perfdoc.gate.read_run import Run
from perfdoc.gate.result import Difference, Result, compared, drift_check, floor_check, incomparable
from perfdoc.gate.session import together
from perfdoc.profiling.encodable import encodable

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
    if let := differences(baseline.facts, facts):
        notes.append(f"differs from the baseline in what was to be ignored: {', '.join(let)}")
    refuse_known(path, baseline, figures, "a run is not compared with itself")
    old = baseline.runs
    notes += together(old)
    known, new = [r.median_step_ns for r in old], [r.median_step_ns for r in figures]
    notes += promoted_since(baseline.promotions, new, practical_frac)
    drifted = drift(known, new, practical_frac) if drift_level != "off" else None
    return compared(
        decide(known, new, practical_frac),
        [*([drift_check(drifted, drift_level, old)] if drifted else []), *map(floor_check, limits)],
        growth(old, figures),
        baseline=encodable(path.name),
        baseline_runs=old,
        runs=figures,
        notes=notes,
    )


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
    differ = [
        Difference(fact=name, baseline=a, here=b)
        for name, (a, b) in differences(baseline.facts, facts, ignored).items()
    ]
    names = ", ".join(d.fact for d in differ[:MAX_NAMED])
    more = f" and {len(differ) - MAX_NAMED} more" if len(differ) > MAX_NAMED else ""
    return (
        f"No baseline of these facts; the nearest, {encodable(path.name)}, differs in {names}{more}. Record "
        "these runs as a baseline of their own, or let facts differ with --ignore.",
        path,
        differ,
    )
