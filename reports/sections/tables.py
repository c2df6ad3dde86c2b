"""Tables for whoever wants the figures behind the others: collectives by size, copies by direction,
all-to-all by rank, GPU metrics by kernel class. Folded on the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from perfdoc.reports.sections.section import Cell, Grid, Section, count, name, rate, share, size, time, word
from perfdoc.results import Diagnosis, figures
from perfdoc.results.names import prose, shorten
from perfdoc.results.tables import AllToAll, CollectiveSize, CopyRow, GpuMetrics

_ROWS = 60
_SLOW = 0.5
"""Of the best bandwidth seen at that size or larger."""
_SMALL_BYTES = 1 << 20
"""Below, a collective takes about its latency, and little bandwidth is no finding."""
_SHOWN = {
    **{"sm_active": "SMs active", "sm_issue": "SM issue", "tensor_active": "tensor pipes active"},
    **{"dram_read": "DRAM read", "dram_write": "DRAM write"},
}


def build(diagnosis: Diagnosis) -> Section | None:
    """Nothing where no table has a row."""
    tables = diagnosis.tables
    if tables is None:
        return None
    grids = (
        _collectives(tables.collectives),
        _copies(tables.copies),
        _all_to_all(tables.all_to_all),
        _metrics(tables.gpu_metrics),
    )
    shown = [grid for grid in grids if grid.rows]
    if not shown:
        return None
    return Section(
        key="tables",
        title="Tables",
        sentences=[
            *_slow(tables.collectives),
            *_pageable(tables.copies),
            *_uneven(tables.all_to_all),
            *_tensor(tables.gpu_metrics),
        ],
        grids=[replace(grid, folded=True) for grid in shown],
    )


def _sizes(row: CollectiveSize) -> str:
    if row.least_bytes == row.most_bytes:
        return figures.size(row.least_bytes)
    return f"{figures.size(row.least_bytes)} to {figures.size(row.most_bytes)}"


def _slow(rows: Sequence[CollectiveSize]) -> Iterator[str]:
    slow = [
        row
        for row in rows
        if row.of_best_frac is not None and row.of_best_frac < _SLOW and row.least_bytes >= _SMALL_BYTES
    ]
    if slow:
        row = max(slow, key=lambda r: r.transfer_ns or r.total_ns)
        yield (
            f"{row.dimension.upper()} `{shorten(row.collective, 48)}` of {_sizes(row)} reaches "
            f"{figures.bandwidth(row.bus_bandwidth_gbps)}, {figures.share(row.of_best_frac)} of the best "
            f"({figures.bandwidth(row.best_gbps)}) at that size or larger."
        )


def _collectives(rows: Sequence[CollectiveSize]) -> Grid:
    return Grid(
        caption="Collectives by message size; bandwidth over the transfer, where ranks are matched",
        head=[
            *("dimension", "collective", "transport", "size", "ranks", "count", "total", "mean", "transfer"),
            *("bus bandwidth", "over", "of best", "link"),
        ],
        align="lllrrrrrrrlrr",
        rows=[
            [
                word(row.dimension),
                word(row.collective),
                word(row.transport),
                Cell(text=_sizes(row)),
                count(row.ranks),
                count(row.count),
                time(row.total_ns),
                time(row.mean_ns),
                time(row.transfer_ns),
                rate(row.bus_bandwidth_gbps),
                word(row.basis),
                share(row.of_best_frac),
                rate(row.link_gbps),
            ]
            for row in rows[:_ROWS]
        ],
        left_out=max(0, len(rows) - _ROWS),
    )


def _pageable(rows: Sequence[CopyRow]) -> Iterator[str]:
    pageable = [row for row in rows if row.memory == "pageable"]
    if pageable:
        total = sum(row.total_ns for row in pageable)
        moved = [row.bytes for row in pageable if row.bytes is not None]
        what = f" of {figures.size(sum(moved))}" if len(moved) == len(pageable) else ""
        copies = figures.plural(sum(row.count for row in pageable), "copy", "copies")
        yield f"{copies}{what} from or to pageable memory take {figures.duration(total)}."


def _copies(rows: Sequence[CopyRow]) -> Grid:
    """Over all ranks; a bandwidth is that of all of them."""
    groups: dict[tuple[str, str, bool], list[CopyRow]] = {}
    for row in rows:
        groups.setdefault((row.direction, row.memory, row.communication), []).append(row)
    ordered = sorted(groups.items(), key=lambda item: -sum(row.total_ns for row in item[1]))
    return Grid(
        caption="Copies by direction; exposed: beside no compute and no communication",
        head=["direction", "host memory", "count", "bytes", "time", "bandwidth", "largest", "exposed"],
        align="llrrrrrr",
        rows=[_copy_cells(*key, found) for key, found in ordered[:_ROWS]],
        left_out=max(0, len(ordered) - _ROWS),
    )


def _copy_cells(direction: str, memory: str, communication: bool, rows: Sequence[CopyRow]) -> list[Cell]:
    total = sum(row.total_ns for row in rows)
    known = [row.bytes for row in rows if row.bytes is not None]
    moved = sum(known) if len(known) == len(rows) else None
    largest = max((row.largest_bytes for row in rows if row.largest_bytes is not None), default=None)
    return [
        word(f"{direction} (communication)" if communication else direction),
        word(memory or figures.UNKNOWN),
        count(sum(row.count for row in rows)),
        size(moved),
        time(total),
        rate(moved / total if moved is not None and total else None),
        size(largest),
        time(sum(row.exposed_ns for row in rows)),
    ]


def _uneven(found: AllToAll) -> Iterator[str]:
    for row in found.balance:
        if row.received_most_over_mean is not None and row.most_received:
            yield (
                f"{row.dimension.upper()} all-to-all: {shorten(row.most_received, 64)} receives "
                f"{row.received_most_over_mean:.2f} times the mean of {row.ranks:,} ranks."
            )


def _all_to_all(found: AllToAll) -> Grid:
    return Grid(
        caption="All-to-all by rank; to the most: what goes to one rank over the mean, call by call",
        head=["dimension", "rank", "count", "sent", "received", "to the most"],
        align="lnrrrr",
        rows=[
            [
                word(row.dimension),
                name(row.rank, 64),
                count(row.count),
                size(row.sent_bytes),
                size(row.received_bytes),
                _times(row.to_most_over_mean),
            ]
            for row in found.by_rank[:_ROWS]
            if row.count
        ],
        left_out=max(0, len(found.by_rank) - _ROWS),
    )


def _times(ratio: float | None) -> Cell:
    return Cell(text=figures.UNKNOWN if ratio is None else f"{ratio:.2f}\N{MULTIPLICATION SIGN}")


def _tensor(found: GpuMetrics) -> Iterator[str]:
    rows = [row for row in found.rows if (row.meaning, row.kernel_class) == ("tensor_active", "gemm")]
    samples = sum(row.samples for row in rows)
    if samples:
        mean = sum(row.mean * row.samples for row in rows) / samples
        yield f"Tensor pipes are active {mean:.1f} % of the time in which GEMMs run alone."
    elif found.state == "measured" and found.reason:
        yield f"GPU metrics of some ranks are left out: {prose(found.reason, 160)}."


def _metrics(found: GpuMetrics) -> Grid:
    """Over all ranks, weighted by samples: a row a metric and class."""
    groups: dict[tuple[str, str], list[tuple[float, int, int]]] = {}
    words: dict[str, str] = {}
    for row in found.rows:
        words[row.metric] = _SHOWN.get(row.meaning, row.metric)
        groups.setdefault((row.metric, row.kernel_class), []).append((row.mean, row.samples, row.most))
    rows = list(groups.items())
    period = "" if found.period_ns is None else f"; a sample every {figures.duration(found.period_ns)}"
    return Grid(
        caption=f"GPU metrics by kernel class, where one class runs alone{period}",
        head=["metric", "while", "samples", "mean", "most"],
        align="nlrrr",
        rows=[
            [
                name(words[metric], 64),
                word(kernel_class),
                count(sum(n for _, n, _ in values)),
                Cell(text=f"{sum(m * n for m, n, _ in values) / max(sum(n for _, n, _ in values), 1):.1f}"),
                count(max(most for _, _, most in values)),
            ]
            for (metric, kernel_class), values in rows[:_ROWS]
        ],
        left_out=max(0, len(rows) - _ROWS),
    )
