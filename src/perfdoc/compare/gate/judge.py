"""Checks of new runs against old ones, made of their figures: each measure of the steps, parts and drift."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfdoc.compare.decision import PRACTICAL_FRAC, Verdict
from perfdoc.compare.figures import LOGGED, RunFigures, Statistic
from perfdoc.compare.floors import Level
from perfdoc.compare.gate.drift import Drift, drift
from perfdoc.compare.gate.measures import DRIFT, MEAN, PARTS, Compared, Family, compare_pairs, compare_runs
from perfdoc.compare.gate.parts import Grown, growth, where_inconclusive
from perfdoc.compare.gate.result import Check, State, change, drift_check, parts_check
from perfdoc.compare.gate.sessions import shared_noise_frac
from perfdoc.compare.significance import few_orders, few_pairs
from perfdoc.results.figures import duration, per_cent, plural

_LONGER_WARMUP_FRAC = 0.1
"""A warm-up that is longer than any of the baseline by this share of a run's steps hides what they cost."""


def step_checks(
    found: Sequence[Compared],
    old: Sequence[RunFigures],
    new: Sequence[RunFigures],
    grown: Sequence[Grown],
    *,
    whose: str,
    statistic: Statistic,
) -> list[Check]:
    """A check for each measure; those of stalls only where there are any.

    whose: the old side, such as "the baseline's".
    """
    stalls = any(run.left_out_steps for run in (*old, *new))
    checks = [
        _check(one, old, new, grown, whose, statistic)
        for one in found
        if one.measure.name != "stalls" or stalls
    ]
    if MEAN.name not in {one.measure.name for one in found}:
        message = (
            f"The mean step cannot be compared: {whose} runs are from before it was kept. Record them anew."
        )
        checks.insert(1, Check(name=MEAN.name, state="inconclusive", message=message))
    return [*checks, *_warmup(old, new)]


def _check(
    one: Compared,
    old: Sequence[RunFigures],
    new: Sequence[RunFigures],
    grown: Sequence[Grown],
    whose: str,
    statistic: Statistic,
) -> Check:
    decision, measure = one.decision, one.measure
    before, after = (
        f"{v:.3f} times as long" if measure.is_ratio else duration(round(v)) for v in (one.before, one.after)
    )
    mfu = _mfu(old, new) if measure.name == "step_time" and statistic == "median" else ""
    message = (
        f"{measure.says} {after}, {change(decision.slower_frac)} {whose} {before}{mfu}; the limit is "
        f"{per_cent(decision.limit_frac)} ({plural(decision.new_runs, 'run')} against "
        f"{decision.baseline_runs}): {decision.reason}."
    )
    if measure.name == "stalls" or (measure.name == MEAN.name and decision.verdict is Verdict.FAIL):
        message += _left_out(new)
    if one.fails:
        message += where(grown)
    elif decision.verdict is Verdict.FAIL:
        message += f" Of fewer than {measure.least_new} new runs it may be chance: add new runs."
    elif one.measure.open_by_order and one.is_open:
        message += " Scatter explains as much, but all new runs are slower by it: add new runs."
    elif one.improved:
        message += " To keep the gain: perfdoc gate promote --reason WHY RUN…"
    state: State = "fail" if one.fails else "inconclusive" if one.is_open else "pass"
    return Check(
        name=measure.name,
        state=state,
        message=message,
        value=decision.slower_frac,
        limit=decision.limit_frac,
    )


def left_out_notes(runs: Sequence[RunFigures]) -> list[str]:
    """A note for each new run whose mean leaves stalls out."""
    return [
        f"{run.source}: {run.left_out_steps:,} of {run.steps:,} steps left out of its mean, "
        f"{duration(run.left_out_ns)} in all"
        for run in runs
        if run.left_out_steps
    ]


def _left_out(runs: Sequence[RunFigures]) -> str:
    steps, ns = sum(r.left_out_steps for r in runs), sum(r.left_out_ns for r in runs)
    whole = sum(r.steps for r in runs)
    return f" Stalls: {steps:,} of {whole:,} new steps, {duration(ns)} in all." if steps else ""


def _warmup(old: Sequence[RunFigures], new: Sequence[RunFigures]) -> list[Check]:
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


def _mfu(baseline: Sequence[RunFigures], runs: Sequence[RunFigures]) -> str:
    before = [r.mfu_frac for r in baseline if r.mfu_frac is not None]
    after = [r.mfu_frac for r in runs if r.mfu_frac is not None]
    if len(before) < len(baseline) or len(after) < len(runs):
        return ""
    return f" (MFU {per_cent(sum(after) / len(after))}, was {per_cent(sum(before) / len(before))})"


def where(grown: Sequence[Grown]) -> str:
    """The parts that explain most of the growth."""
    worse = [g for g in grown if g.after_ns > g.before_ns][:2]
    if not worse:
        return " Which part of the step grew is unknown."
    parts = ", ".join(f"{g.part} +{duration(g.after_ns - g.before_ns)}" for g in worse)
    unprofiled = all(any(g.part.startswith(name) for name in LOGGED.values()) for g in worse)
    return f" Growth in {'unprofiled' if unprofiled else 'profiled'} steps: {parts}."


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What came out, the check of the step first."""

    checks: Sequence[Check]
    grown: Sequence[Grown]
    improved: bool
    notes: Sequence[str]


def against_baseline(
    old: Sequence[RunFigures],
    new: Sequence[RunFigures],
    practical_frac: float = PRACTICAL_FRAC,
    statistic: Statistic = "median",
    drift_level: Level | None = "error",
) -> Judgement:
    """New runs against those of a baseline. drift_level: None where drift does not matter."""
    family = Family.of(old, new, statistic, with_drift=drift_level is not None)
    found = compare_runs(family, old, new, practical_frac)
    drifted = drifted_mean(family, old, new, practical_frac)
    return _judgement(
        found, family, old, new, practical_frac, statistic,
        whose="the baseline's",
        drift=[drift_check(drifted, drift_level, old)] if drifted and drift_level else [],
        few=few_orders(len(old), len(new), list(family.chance.values())),
    )  # fmt: skip


def in_pairs(
    pairs: Sequence[tuple[RunFigures, RunFigures]],
    practical_frac: float = PRACTICAL_FRAC,
    statistic: Statistic = "median",
) -> Judgement:
    """Pairs (old, new) of runs that were made in turn."""
    old, new = [a for a, _ in pairs], [b for _, b in pairs]
    family = Family.of(old, new, statistic, with_drift=False)
    return _judgement(
        compare_pairs(family, pairs, practical_frac), family, old, new, practical_frac, statistic,
        whose="the old runs'",
        drift=[],
        few=few_pairs(len(pairs), list(family.chance.values())),
    )  # fmt: skip


def _judgement(
    found: Sequence[Compared],
    family: Family,
    old: Sequence[RunFigures],
    new: Sequence[RunFigures],
    practical_frac: float,
    statistic: Statistic,
    *,
    whose: str,
    drift: Sequence[Check],
    few: Sequence[str],
) -> Judgement:
    """few: what to say of so few runs, where they fail."""
    grown = growth(old, new)
    return Judgement(
        checks=[
            *step_checks(found, old, new, grown, whose=whose, statistic=statistic),
            *_by_parts(found, family, old, new, practical_frac),
            *drift,
        ],
        grown=grown,
        improved=any(c.improved for c in found),
        notes=[*(few if any(c.fails for c in found) else []), *left_out_notes(new)],
    )


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
    found: Sequence[Compared],
    family: Family,
    old: Sequence[RunFigures],
    new: Sequence[RunFigures],
    practical_frac: float,
) -> list[Check]:
    """What parts say where the step as a whole, or its mean, is inconclusive."""
    if PARTS not in family.chance or any(c.fails for c in found):
        return []
    for judged in found:
        if not judged.measure.decides:
            continue
        parts = where_inconclusive(judged.decision, old, new, practical_frac, family.chance[PARTS])
        if parts is not None:
            return [parts_check(parts, practical_frac)]
    return []
