"""The tables of all ranks together."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from perfdoc.analyzers.matching.calls import CollectiveCalls
from perfdoc.analyzers.matching.matches import Matches
from perfdoc.analyzers.tables.all_to_all import all_to_all
from perfdoc.analyzers.tables.device import DeviceTables
from perfdoc.analyzers.tables.sizes import collective_sizes
from perfdoc.results.headline import Mfu
from perfdoc.results.ranks import Window
from perfdoc.results.tables import GpuMetrics, RangeRow, RangeTable, Tables


def job_tables(
    tables: Sequence[DeviceTables],
    labels: Sequence[str],
    windows: Sequence[Window],
    calls: Sequence[CollectiveCalls],
    matches: Matches,
    contradicted: Set[int],
    mfu: Mfu,
    pp: int | None,
) -> Tables:
    """All tables of the job; the sequences have an entry a rank.

    contradicted: groups of `matches` that were matched wrongly. pp: pipeline stages, None unknown.
    """
    sized = [t.sized for t in tables]
    return Tables(
        ranges=_ranges(tables, labels, windows, mfu, pp),
        collectives=collective_sizes(calls, sized, matches, contradicted),
        copies=[
            replace(row, rank=label) for t, label in zip(tables, labels, strict=True) for row in t.copies
        ],
        all_to_all=all_to_all(calls, sized, labels),
        gpu_metrics=_metrics(tables, labels),
    )


def _ranges(
    tables: Sequence[DeviceTables], labels: Sequence[str], windows: Sequence[Window], mfu: Mfu, pp: int | None
) -> RangeTable:
    measured = [t.ranges for t in tables if t.ranges.state == "measured"]
    if not measured:
        return next((t.ranges for t in tables), RangeTable.missing("no trace was given"))
    reason = _no_mfu(mfu, pp)
    rows = []
    for t, label, window in zip(tables, labels, windows, strict=True):
        rows += [replace(_with_mfu(row, window, mfu, reason), rank=label) for row in t.ranges.rows]
    less = next((t.ranges.reason for t in tables if t.ranges.state != "measured"), "")
    return replace(measured[0], reason=less, rows=rows, mfu_reason=reason)


def _no_mfu(mfu: Mfu, pp: int | None) -> str:
    if mfu.value is None:
        return mfu.reason
    if pp is None or pp > 1:
        return "the stages of a pipeline do different shares of the model's FLOPs"
    return ""


def _with_mfu(row: RangeRow, window: Window, mfu: Mfu, reason: str) -> RangeRow:
    """Of a range that holds all GEMMs and attention of the window's steps: it does all of their FLOPs."""
    if reason or row.kind != "range" or row.matrix_frac != 1.0 or not row.whole.total:
        return row
    assert mfu.flops_per_step is not None
    assert mfu.gpus is not None
    assert mfu.peak_flops is not None
    ideal_s = window.steps * mfu.flops_per_step / (mfu.gpus * mfu.peak_flops)
    return replace(row, mfu=ideal_s * 1e9 / row.whole.total)


def _metrics(tables: Sequence[DeviceTables], labels: Sequence[str]) -> GpuMetrics:
    measured = [t.metrics for t in tables if t.metrics.state == "measured"]
    if not measured:
        return next((t.metrics for t in tables), GpuMetrics.missing("no trace was given"))
    rows = [
        replace(row, rank=label) for t, label in zip(tables, labels, strict=True) for row in t.metrics.rows
    ]
    less = next((t.metrics.reason for t in tables if t.metrics.state != "measured"), "")
    return replace(measured[0], reason=less, rows=rows)
