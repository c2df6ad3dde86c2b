"""Checks of new runs against old ones, made of their figures: each measure of the steps, parts and drift."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfdoc.compare.figures import LOGGED, RunFigures, Statistic
from perfdoc.compare.floors import Level
from perfdoc.compare.gate.measures import DRIFT, MEAN, PARTS, Compared, Family
from perfdoc.compare.gate.parts import Grown, find_growth, find_part_losses
from perfdoc.compare.gate.result import Check, State, change
from perfdoc.compare.slower import PRACTICAL_FRAC, Verdict, few_orders
from perfdoc.results.figures import duration, per_cent, plural

_LONGER_WARMUP_FRAC = 0.1
"""A warm-up that is longer than any of the baseline by this share of a run's steps hides what they cost."""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What came out, the check of the step first."""

    checks: Sequence[Check]
    grown: Sequence[Grown]
    improved: bool
    notes: Sequence[str]


def judge(
    old: Sequence[RunFigures],
    new: Sequence[RunFigures],
    practical_frac: float = PRACTICAL_FRAC,
    statistic: Statistic = "median",
    drift_level: Level = "error",
    *,
    in_pairs: bool = False,
) -> Judgement:
    """New runs against those of a baseline, or against old ones made in turn, each at its place of `old`."""
    with_drift = drift_level != "off" and not in_pairs
    family = Family.of(old, new, practical_frac, statistic, in_pairs=in_pairs, with_drift=with_drift)
    compared, grown = family.compare(), find_growth(old, new)
    checks = [
        _check_measure(one, family, grown, statistic)
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


def _check_measure(one: Compared, family: Family, grown: Sequence[Grown], statistic: Statistic) -> Check:
    result, measure = one.result, one.measure
    before, after = (
        f"{v:.3f} times as long" if measure.is_ratio else duration(round(v))
        for v in (result.before, result.after)
    )
    mfu = _mfu(family.old, family.new) if measure.name == "step_time" and statistic == "median" else ""
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
    says = "The mean step" if one.measure.name == MEAN.name else "A step"
    message = (
        f"{says} is {change(result.slower_frac)} in the first {plural(first, 'run')} of this level{since}; "
        f"the limit is {per_cent(result.limit_frac)}"
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
