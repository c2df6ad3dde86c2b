"""From runs and a folder of baselines to a result."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType

from perfdoc.analyzers.steps.slower import PRACTICAL_FRAC, Verdict, few_orders
from perfdoc.compare.baseline_files import Baseline, Promotion, find, nearest, read_baselines, refuse_known
from perfdoc.compare.facts import Fact, Facts, differences, unsaid
from perfdoc.compare.figures import LOGGED, RunFigures, twice
from perfdoc.compare.floors import Floor, Level, check_floors
from perfdoc.compare.gate.measures import (
    DRIFT,
    MEAN,
    PARTS,
    STEP,
    Compared,
    Family,
    Grown,
    find_growth,
    find_part_losses,
)
from perfdoc.compare.gate.result import (
    Check,
    Difference,
    Judgement,
    Result,
    State,
    change,
    compared,
    floor_check,
    incomparable,
)
from perfdoc.compare.gate.sessions import note_one_session, note_same_place, pair_runs
from perfdoc.compare.runs import Run
from perfdoc.profiling.environment import encodable
from perfdoc.results.figures import duration, per_cent, plural
from perfdoc.results.names import listed, shorten

_LONGER_WARMUP_FRAC = 0.1
"""A warm-up that is longer than any of the baseline by this share of a run's steps hides what they cost."""


def judge(
    old: Sequence[RunFigures],
    new: Sequence[RunFigures],
    practical_frac: float = PRACTICAL_FRAC,
    drift_level: Level = "error",
    *,
    in_pairs: bool = False,
) -> Judgement:
    """New runs against those of a baseline, or against old ones made in turn, each at its place of `old`."""
    with_drift = drift_level != "off" and not in_pairs
    family = Family.of(old, new, practical_frac, in_pairs=in_pairs, with_drift=with_drift)
    compared, grown = family.compare(), find_growth(old, new)
    checks = [
        _check_measure(one, family, grown)
        for one in compared
        if one.measure.name != "stalls" or any(run.left_out_steps for run in (*old, *new))
    ]
    checks += _check_warmup(old, new)
    checks += _check_parts(family, compared)
    if (drift := family.compare_with_first()) is not None:
        checks.append(_check_drift(drift, family, drift_level))
    few = few_orders(len(old), len(new), list(family.chance.values()), in_pairs=in_pairs)
    return Judgement(
        checks=checks,
        grown=grown,
        improved=any(c.improved for c in compared),
        notes=[*(few if any(c.fails for c in compared) else []), *_left_out_notes(new)],
    )


def _check_measure(one: Compared, family: Family, grown: Sequence[Grown]) -> Check:
    result, measure = one.result, one.measure
    before, after = (
        f"{v:.3f} times as long" if measure.is_ratio else duration(round(v))
        for v in (result.before, result.after)
    )
    mfu = _mfu(family.old, family.new) if measure.name == STEP.name else ""
    whose = "the old runs'" if family.in_pairs else "the baseline's"
    message = (
        f"{measure.says} {after}, {change(result.slower_frac)} {whose} {before}{mfu}; the limit is "
        f"{per_cent(result.limit_frac)} ({plural(len(family.new), 'run')} against {len(family.old)}): "
        f"{result.reason}."
    )
    if measure.name == "stalls" or (measure.name == MEAN.name and result.verdict is Verdict.FAIL):
        message += _count_stalls(family.new)
    if one.fails:
        message += _where(grown)
    elif result.verdict is Verdict.FAIL:
        message += f" Of fewer than {measure.least_new} new runs it may be chance: add new runs."
    elif measure.open_by_order and one.is_open:
        message += " Scatter explains as much, but all new runs are slower by it: add new runs."
    elif one.improved:
        message += " To keep the gain: perfdoc gate promote --reason WHY RUN…"
    state: State = "fail" if one.fails else "inconclusive" if one.is_open else "pass"
    return Check(
        name=measure.name, state=state, message=message, value=result.slower_frac, limit=result.limit_frac
    )


def _left_out_notes(runs: Sequence[RunFigures]) -> list[str]:
    return [
        f"{run.source}: {run.left_out_steps:,} of {run.steps:,} steps left out of its mean, "
        f"{duration(run.left_out_ns)} in all"
        for run in runs
        if run.left_out_steps
    ]


def _count_stalls(runs: Sequence[RunFigures]) -> str:
    steps, ns = sum(r.left_out_steps for r in runs), sum(r.left_out_ns for r in runs)
    whole = sum(r.steps for r in runs)
    return f" Stalls: {steps:,} of {whole:,} new steps, {duration(ns)} in all." if steps else ""


def _check_warmup(old: Sequence[RunFigures], new: Sequence[RunFigures]) -> list[Check]:
    """A first part that is slow is left out as warm-up: where it has grown, nothing says what it costs."""
    longest = max(run.warmup_steps for run in old)
    far = [r for r in new if r.warmup_steps - longest > _LONGER_WARMUP_FRAC * (r.steps + r.warmup_steps)]
    if not far:
        return []
    worst = max(far, key=lambda run: run.warmup_steps)
    message = (
        f"{worst.source} leaves out {worst.warmup_steps:,} of its {worst.steps + worst.warmup_steps:,} steps "
        f"as warm-up, no old run more than {longest:,}: its first part became slower, or the machine warmed "
        f"up longer ({plural(len(far), 'run')} of {len(new)})."
    )
    return [Check(name="warm_up", state="inconclusive", message=message)]


def _mfu(old: Sequence[RunFigures], new: Sequence[RunFigures]) -> str:
    before, after = ([r.mfu_frac for r in side if r.mfu_frac is not None] for side in (old, new))
    if len(before) < len(old) or len(after) < len(new):
        return ""
    return f" (MFU {per_cent(sum(after) / len(after))}, was {per_cent(sum(before) / len(before))})"


def _where(grown: Sequence[Grown]) -> str:
    """The parts that explain most of the growth."""
    worse = [g for g in grown if g.grew_ns > 0][:2]
    if not worse:
        return " Which part of the step grew is unknown."
    parts = ", ".join(f"{g.part} +{duration(g.grew_ns)}" for g in worse)
    unprofiled = all(any(g.part.startswith(name) for name in LOGGED.values()) for g in worse)
    return f" Growth in {'unprofiled' if unprofiled else 'profiled'} steps: {parts}."


def _check_parts(family: Family, compared: Sequence[Compared]) -> list[Check]:
    """The parts of a step, where the step as a whole or its mean is inconclusive."""
    if (told := find_part_losses(family, compared)) is None:
        return []
    looked_at, losses = told
    practical = family.practical_frac
    if not losses:
        limits = f"its own noise and {per_cent(practical)} of a step"
        message = f"{looked_at} parts of a step: none grew beyond {limits}."
        return [Check(name=PARTS, state="pass", message=message)]
    name, worst = losses[0]
    limit = max(practical, worst.limit_frac)
    message = (
        f"{name} grew from {duration(round(worst.before))} to {duration(round(worst.after))}, by "
        f"{per_cent(worst.slower_frac)} of a step; the limit is {per_cent(limit)}. The step as a whole "
        "scatters too much to judge, this part does not; the rest may have become faster by as much."
    )
    return [Check(name=PARTS, state="fail", message=message, value=worst.slower_frac, limit=limit)]


def _check_drift(one: Compared, family: Family, level: Level) -> Check:
    result = one.result
    first, later = len(family.first), len(family.old) - len(family.first)
    since = next((f" (from {when})" for r in family.first[:1] if (when := r.utc or r.commit)), "")
    message = (
        f"The mean step is {change(result.slower_frac)} in the first {plural(first, 'run')} of this "
        f"level{since}; the limit is {per_cent(result.limit_frac)}"
    )
    beyond = result.verdict is Verdict.FAIL
    if beyond:
        message += (
            f"; losses below the limit of any one check added up over {plural(later, 'run')}. Find them, or "
            "accept the level: perfdoc gate promote --reason WHY RUN…"
        )
    bad: State = "warn" if level == "warn" else "fail"
    return Check(
        name=DRIFT,
        state=bad if beyond else "pass",
        message=message if beyond else f"{message}.",
        value=result.slower_frac,
        limit=result.limit_frac,
    )


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
) -> Result:
    """Compare runs of one configuration with their baseline. Raises TraceError for a broken baseline."""
    facts, figures = runs[0].facts, [r.figures for r in runs]
    notes = list(dict.fromkeys(note for run in runs for note in run.notes))
    limits = list(map(floor_check, check_floors(floors, figures)))
    baselines = read_baselines(folder)
    found = find(baselines, facts, ignored)
    if found is None:
        why, closest, differ = _why_not(folder, baselines, facts, ignored)
        return incomparable(
            why,
            limits,
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
    judged = judge(old, figures, practical_frac, drift_level)
    return compared(judged, limits, encodable(path.name), old, figures, notes)


def check_beside(
    runs: Sequence[Run],
    beside: Sequence[Run],
    *,
    ignored: Sequence[str],
    floors: Sequence[Floor],
    practical_frac: float,
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
    found = judge([a for a, _ in pairs], [b for _, b in pairs], practical_frac, in_pairs=True)
    return compared(found, limits, None, old, new, notes)


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
            notes.append(f"not compared, as {which} {_DO[which]} not say: {listed(names, MAX_UNSAID)}")
    return notes


def _named(differ: Sequence[Difference]) -> str:
    """The first of them, for a sentence."""
    return listed([f"{d.fact} ({_word(d.baseline)} → {_word(d.here)})" for d in differ], MAX_NAMED)


def _word(value: Fact) -> str:
    return "not said" if value is None else shorten(str(value), 48)
