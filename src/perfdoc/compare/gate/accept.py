"""Which runs a baseline takes: more of its own level by `record`, a new level by `promote`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perfdoc.analyzers.steps.slower import LOW_HISTORY_FRAC, MIN_HISTORY, PRACTICAL_FRAC
from perfdoc.compare.baseline_files import (
    Baseline,
    file_for,
    find,
    promoted,
    read_baselines,
    refuse_known,
    with_runs,
)
from perfdoc.compare.facts import differences
from perfdoc.compare.gate.measures import Family
from perfdoc.compare.gate.result import change
from perfdoc.compare.runs import Run
from perfdoc.results.figures import per_cent
from perfdoc.traces import TraceError


def recorded(
    folder: Path, runs: Sequence[Run], practical_frac: float = PRACTICAL_FRAC
) -> tuple[Path, Baseline]:
    """The baseline with the runs added, and where it goes.

    Raises TraceError where one of them is in it, or where they are of another level: slower runs that join
    raise the mean and the spread, and the next loss would pass.
    """
    facts, figures = runs[0].facts, [r.figures for r in runs]
    found = find(read_baselines(folder), facts)
    if found is None:
        return _free(file_for(folder, facts)), with_runs(None, facts, figures)
    path, old = found
    refuse_known(path, old, figures, "it is recorded already; one run counts once")
    family = Family.of(old.runs, figures, practical_frac, with_drift=True)
    for one in family.compare():
        if one.fails or one.improved:
            what = (
                f"does not take these runs: {one.measure.name} is {change(one.result.slower_frac)} its own, "
                f"beyond the limit of {per_cent(one.result.limit_frac)}."
            )
            remedy = "A new level is for perfdoc gate promote --reason WHY RUN…"
            if len(old.runs) < MIN_HISTORY:
                remedy = "A larger --practical takes runs of a noisy machine; a new level is for promote."
            raise TraceError(path, what, remedy)
    drift = family.compare_with_first()
    if drift is not None and drift.fails:
        what = (
            f"does not take these runs: they are {change(drift.result.slower_frac)} its first "
            f"{len(family.first)} runs, beyond the limit of {per_cent(drift.result.limit_frac)}, from small "
            "losses that passed one by one."
        )
        raise TraceError(path, what, "A new level is for perfdoc gate promote --reason WHY RUN…")
    return path, with_runs(old, facts, figures)


def replaced(
    folder: Path, runs: Sequence[Run], ignored: Sequence[str], reason: str, utc: str, *, few: bool
) -> tuple[Path, Path, Baseline]:
    """The path of the old baseline, that of the new one, and the new one.

    Both paths are one where the facts are equal. Where some were ignored, the new runs go into a file of
    their own facts, and the old file stays for its own. Raises TraceError, or ValueError for too few runs.
    """
    facts, figures = runs[0].facts, [r.figures for r in runs]
    if len(runs) < MIN_HISTORY and not few:
        raise ValueError(
            f"{len(runs)} of the {MIN_HISTORY} runs that a new level needs: without their noise the "
            f"limit would be {per_cent(LOW_HISTORY_FRAC, 0)}. Give more, or --few."
        )
    found = find(read_baselines(folder), facts, ignored)
    if found is None:
        raise TraceError(folder, "has no baseline of these facts.", "Begin one: perfdoc gate record RUN…")
    old_path, old = found
    refuse_known(old_path, old, figures, "a level is promoted from new runs")
    path = _free(file_for(folder, facts)) if differences(old.facts, facts) else old_path
    return old_path, path, promoted(old, facts, figures, reason, utc)


def _free(path: Path) -> Path:
    """Equal facts would have been found in whatever file they are: what lies there has others."""
    if path.exists() or path.is_symlink():
        raise TraceError(path, "exists already, with other facts.", "Give it its own name back.")
    return path
