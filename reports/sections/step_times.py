"""How long steps take: spread, warm-up, what profiling costs, and the steps that took much longer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from perfdoc.reports.charts.steps import steps_picture
from perfdoc.reports.leaves import LEAVES
from perfdoc.reports.sections.section import Cell, Grid, Section, count, name, share, time, word
from perfdoc.results import Diagnosis, StepTimes, figures
from perfdoc.results.names import prose, shorten
from perfdoc.results.step_times import Distribution, OutlierStep

_OUTLIERS = 8
_LABELS = {leaf.path: leaf.label for leaf in LEAVES}


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
        sentences=[*_length(times), *_slowest(times), *_overhead(times), *_warm_up(times), *_log(times)],
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
    said = f"A step takes {figures.duration(spread.median_ns)}, the median of {spread.count:,} {what} ones"
    if spread.count > 2:
        low, high = figures.duration(spread.p10_ns), figures.duration(spread.p90_ns)
        varies = figures.share(spread.variation_frac)
        said += f"; four of five take {low} to {high} (standard deviation {varies})"
    yield said + "."


def _warm_up(times: StepTimes) -> Iterator[str]:
    warm = times.warmup
    if warm.state == "measured" and warm.steps:
        first = "The first step is" if warm.steps == 1 else f"The first {warm.steps:,} steps are"
        yield f"{first} warm-up: {figures.duration(warm.excess_ns)} more than as many steady ones take."


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
        yield f"What profiling costs cannot be told from nothing: {figures.share(found.frac)} {sides}."
    elif found.frac > 0:
        by = figures.share(found.frac)
        yield f"Profiling makes steps {by} longer {sides}: the window's figures hold that."
    else:
        yield f"Profiled steps are {figures.share(-found.frac)} shorter {sides}: not the same work."


def _log(times: StepTimes) -> Iterator[str]:
    found = times.agreement
    if found.state == "measured" and found.agrees is False and found.median_frac is not None:
        more = "longer" if found.median_frac > 0 else "shorter"
        by = figures.share(abs(found.median_frac))
        yield (
            f"Analysed steps are {by} {more} than the log has them; up to {figures.share(found.bar_frac)} "
            "is usual. Trust the log for the length and the analysis for the shares."
        )


def _slowest(times: StepTimes) -> Iterator[str]:
    if not times.outliers:
        return
    total = len(times.outliers) + times.outliers_left_out
    worst = max(times.outliers, key=lambda step: step.excess_ns)
    grew = f", mostly {_leaf(worst)} on {shorten(worst.label or 'a rank', 64)}" if worst.leaf else ""
    yield (
        f"{figures.plural(total, 'step')} took much longer than the others; the worst, "
        f"`{shorten(worst.step, 64)}`, by {figures.duration(worst.excess_ns)}{grew}."
    )


def _leaf(step: OutlierStep) -> str:
    return shorten(_LABELS.get(step.leaf or "", step.leaf or ""), 64)


def _distributions(kinds: list[tuple[str, Distribution]], ranks: int) -> Grid:
    return Grid(
        caption="A step takes as long as the median of its ranks" if ranks > 1 else "",
        head=["steps", "count", "median", "10th percentile", "90th", "shortest", "longest", "deviation"],
        align="lrrrrrrr",
        rows=[
            [
                word(words),
                count(spread.count),
                *(
                    time(ns)
                    for ns in (spread.median_ns, spread.p10_ns, spread.p90_ns, spread.min_ns, spread.max_ns)
                ),
                share(spread.variation_frac),
            ]
            for words, spread in kinds
        ],
    )


def _outliers(times: StepTimes) -> Grid:
    rows = sorted(times.outliers, key=lambda step: -step.excess_ns)
    return Grid(
        caption="Steps that took much longer",
        head=["step", "known from", "time", "above the median", "rank", "grew most", "by", "why not known"],
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
