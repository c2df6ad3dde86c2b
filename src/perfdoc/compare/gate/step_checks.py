"""What is said of each measure of the steps, and of what keeps one from being judged."""

from __future__ import annotations

from collections.abc import Sequence

from perfdoc.compare.decision import Verdict
from perfdoc.compare.figures import LOGGED, RunFigures, Statistic
from perfdoc.compare.gate.measures import MEAN, Compared
from perfdoc.compare.gate.parts import Grown
from perfdoc.compare.gate.result import Check, State, change
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
