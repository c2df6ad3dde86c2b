"""Step times: spread, warm-up, profiling overhead and outliers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from perfdoc.reports.charts.steps import steps_picture
from perfdoc.reports.leaves import LABELS
from perfdoc.reports.over_ranks import mean_beside
from perfdoc.reports.sections.section import Cell, Grid, Section, count, name, share, time, word
from perfdoc.results import Diagnosis, StepTimes, figures
from perfdoc.results.names import prose, shorten
from perfdoc.results.step_times import Distribution, OutlierStep

_OUTLIERS = 8
_TYPICAL_FRAC = 0.03
"""Steps within this of one another are alike."""


def build(diagnosis: Diagnosis) -> Section | None:
    """Nothing of a single step without a log: the headline has its length."""
    times = diagnosis.analyses.step_times
    kinds = _kinds(times)
    if times.state != "measured" or max((spread.count for _, spread in kinds), default=0) < 2:
        return None
    # One distribution alone is in the sentence already.
    spreads = kinds if len(kinds) > 1 else []
    grids = (_distributions(spreads, len(times.ranks)), _outliers(times))
    return Section(
        key="step-times",
        title="Step times",
        sentences=[
            *_length(times),
            *_changed(times),
            *_slowest(times),
            *_overhead(times),
            *_warm_up(times),
            *_log(times),
        ],
        grids=[grid for grid in grids if grid.rows],
        draw=partial(steps_picture, diagnosis),
    )


def _kinds(times: StepTimes) -> list[tuple[str, Distribution]]:
    kinds = (
        ("analysed, on the device", times.analysed),
        ("profiled, as logged", times.profiled),
        ("unprofiled, as logged", times.unprofiled),
    )
    return [(words, spread) for words, spread in kinds if spread is not None]


def _length(times: StepTimes) -> Iterator[str]:
    spread, what = times.unprofiled, "unprofiled"
    if spread is None:
        spread, what = times.analysed or times.profiled, "profiled"
    if spread is None:
        return
    said = (
        f"Step time {figures.duration(spread.median_ns)}{mean_beside(spread.median_ns, spread.mean_ns)}: "
        f"median of {figures.plural(spread.count, f'{what} step')}"
    )
    if spread.count > 2:
        low, high = figures.duration(spread.p10_ns), figures.duration(spread.p90_ns)
        varies = figures.share(spread.variation_frac)
        said += f"; 10th to 90th percentile {low} to {high} (standard deviation {varies})"
    yield said + "."


def _changed(times: StepTimes) -> Iterator[str]:
    """Whether the captured steps are as the job's last ones."""
    if len(times.levels) < 2 or times.captured_level is None:
        return
    now, then = times.levels[-1], times.levels[min(times.captured_level, len(times.levels) - 1)]
    more = now.median_ns / then.median_ns - 1
    if then is now or abs(more) < _TYPICAL_FRAC:
        yield f"Captured steps are as the last ones, since step {now.first_step:,}; earlier ones were not."
        return
    yield (
        f"Captured steps are not typical: since step {now.first_step:,} a step takes "
        f"{figures.duration(now.median_ns)}, {figures.duration(then.median_ns)} around the capture. "
        "Capture later ones; `perfdoc watch` says why."
    )


def _warm_up(times: StepTimes) -> Iterator[str]:
    warm = times.warmup
    if warm.state == "measured" and warm.steps:
        first = "first step" if warm.steps == 1 else f"first {warm.steps:,} steps"
        yield f"Warm-up: the {first}, {figures.duration(warm.excess_ns)} over as many steady steps."


def _overhead(times: StepTimes) -> Iterator[str]:
    found = times.overhead
    if found.state != "measured" or found.frac is None:
        return
    low, high = found.low_frac, found.high_frac
    span = "" if low is None or high is None else f", {figures.share(low)} to {figures.share(high)}"
    sides = (
        f"({found.profiled_steps or 0:,} profiled against {found.unprofiled_steps or 0:,} other steps{span})"
    )
    if low is not None and high is not None and low <= 0 <= high:
        yield f"Profiling overhead is within noise: {figures.share(found.frac)} {sides}."
    elif found.frac > 0:
        by = figures.share(found.frac)
        yield f"Profiling overhead: {by} {sides}, included in the window's figures."
    else:
        yield f"Profiled steps are {figures.share(-found.frac)} shorter {sides}: they do other work."


def _log(times: StepTimes) -> Iterator[str]:
    found = times.agreement
    if found.state == "measured" and found.agrees is False and found.median_frac is not None:
        more = "longer" if found.median_frac > 0 else "shorter"
        by = figures.share(abs(found.median_frac))
        yield (
            f"Analysed steps are {by} {more} than logged; up to {figures.share(found.bar_frac)} "
            "is usual. Trust the log for the length and the analysis for the shares."
        )


def _slowest(times: StepTimes) -> Iterator[str]:
    if not times.outliers:
        return
    total = len(times.outliers) + times.outliers_left_out
    worst = max(times.outliers, key=lambda step: step.excess_ns)
    grew = f", mostly {_leaf(worst)} on {shorten(worst.label or 'a rank', 64)}" if worst.leaf else ""
    yield (
        f"{figures.plural(total, 'outlier step')}; worst: `{shorten(worst.step, 64)}`, "
        f"{figures.duration(worst.excess_ns)} over the median{grew}."
    )


def _leaf(step: OutlierStep) -> str:
    return shorten(LABELS.get(step.leaf or "", step.leaf or ""), 64)


def _distributions(kinds: list[tuple[str, Distribution]], ranks: int) -> Grid:
    return Grid(
        caption="Time of a step: median of its ranks" if ranks > 1 else "",
        head=[
            "steps",
            "count",
            "median",
            "mean",
            "10th percentile",
            "90th",
            "shortest",
            "longest",
            "deviation",
        ],
        align="lrrrrrrrr",
        rows=[
            [
                word(words),
                count(spread.count),
                *(
                    time(ns)
                    for ns in (
                        *(spread.median_ns, spread.mean_ns),
                        *(spread.p10_ns, spread.p90_ns, spread.min_ns, spread.max_ns),
                    )
                ),
                share(spread.variation_frac),
            ]
            for words, spread in kinds
        ],
    )


def _outliers(times: StepTimes) -> Grid:
    rows = sorted(times.outliers, key=lambda step: -step.excess_ns)
    return Grid(
        caption="Outlier steps",
        head=["step", "source", "time", "above the median", "rank", "grew most", "by", "why unknown"],
        align="llrrllrn",
        rows=[_outlier(step) for step in rows[:_OUTLIERS]],
        left_out=times.outliers_left_out + max(0, len(rows) - _OUTLIERS),
    )


def _outlier(step: OutlierStep) -> list[Cell]:
    return [
        name(step.step, 64),
        word("the window" if step.source == "analysed" else "the log"),
        time(step.duration_ns),
        time(step.excess_ns),
        name(step.label or "", 64),
        Cell(text=_leaf(step) if step.leaf else figures.UNKNOWN),
        time(step.leaf_growth_ns),
        Cell(text="" if step.leaf else prose(step.reason, 120)),
    ]
