"""The tables of all ranks together."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

import numpy as np

from perfdoc.analyzers.base.intervals import exact_sum
from perfdoc.analyzers.communication.calls import CollectiveCalls
from perfdoc.analyzers.communication.matches import Matches
from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.tables.device import DeviceTables
from perfdoc.analyzers.tables.sizes import UNKNOWN, SentBytes, SizedCalls, collective_sizes
from perfdoc.results.quality import MEASURED
from perfdoc.results.tables import AllToAll, AllToAllBalance, AllToAllRow, GpuMetrics, Tables
from perfdoc.traces.table import unique

_OPERATION = "all_to_all"


def all_to_all(
    calls: Sequence[CollectiveCalls], sized: Sequence[SizedCalls], labels: Sequence[str]
) -> AllToAll:
    """Rows by dimension, then in the order of the ranks. labels: of every rank."""
    rows = [row for c, s, label in zip(calls, sized, labels, strict=True) for row in _of_rank(c, s, label)]
    rows.sort(key=lambda r: DIMENSIONS.index(r.dimension))
    if not rows:
        return AllToAll.missing("no all-to-all ran in the window")
    if not any(row.count for row in rows):
        return AllToAll.missing(
            "the capture does not say how many bytes the all-to-alls send",
            "PyTorch profiler traces say it (PyTorch 2.4 and later).",
            by_rank=rows,
        )
    dimensions = dict.fromkeys(row.dimension for row in rows)
    balance = [_balance(d, [row for row in rows if row.dimension == d]) for d in dimensions]
    return AllToAll(**MEASURED, by_rank=rows, balance=[b for b in balance if b.ranks > 1])


def _of_rank(calls: CollectiveCalls, sized: SizedCalls, label: str) -> list[AllToAllRow]:
    if _OPERATION not in calls.operations:
        return []
    is_ours = (calls.operation == calls.operations.index(_OPERATION)) & calls.in_window
    said, group_size = sized.exchanged, sized.group_size.astype(np.int64)
    if said is None:
        none = np.full(len(calls), UNKNOWN, np.int64)
        said = SentBytes(sent_bytes=none, received_bytes=none, most_sent_bytes=none)
    # An even one whose size is known to one peer sends as much to every rank of the group.
    even = (said.sent_bytes < 0) & (calls.bytes >= 0) & (group_size > 0) & sized.is_one_operation
    # Beyond, the product would leave the range of int64.
    even &= calls.bytes < 2**62 // np.maximum(group_size, 1)
    each = np.where(even, calls.bytes, 0) * np.maximum(group_size, 1)
    sent = np.where(even, each, said.sent_bytes)
    received = np.where(even, each, said.received_bytes)
    most = np.where(even, calls.bytes, said.most_sent_bytes)
    rows = []
    for dimension in unique(calls.dimension[is_ours]).tolist():
        mine = np.flatnonzero(is_ours & (calls.dimension == dimension))
        known = mine[sent[mine] >= 0]
        parts = known[(most[known] >= 0) & (group_size[known] > 0)]
        mean = float((sent[parts] / group_size[parts]).sum())
        rows.append(
            AllToAllRow(
                dimension=DIMENSIONS[dimension],
                count=len(known),
                unknown=len(mine) - len(known),
                sent_bytes=exact_sum(sent[known]),
                received_bytes=exact_sum(received[known]) if (received[known] >= 0).all() else None,
                to_most_over_mean=exact_sum(most[parts]) / mean if mean else None,
                rank=label,
            )
        )
    return rows


def _balance(dimension: str, rows: Sequence[AllToAllRow]) -> AllToAllBalance:
    whole = not any(row.unknown for row in rows)
    sent = [row.sent_bytes for row in rows]
    received = [row.received_bytes for row in rows if row.received_bytes is not None]
    known = whole and len(received) == len(rows)
    most = max(rows, key=lambda row: row.received_bytes or 0)
    uneven = known and len(set(received)) > 1
    return AllToAllBalance(
        dimension=dimension,
        ranks=len(rows),
        sent_most_over_mean=_over_mean(sent) if whole else None,
        received_most_over_mean=_over_mean(received) if known else None,
        most_received=most.rank if uneven else "",
    )


def _over_mean(values: Sequence[int]) -> float | None:
    """Most over mean: of 300 and 100 it is 1.5."""
    total = sum(values)
    return max(values) * len(values) / total if total else None


def job_tables(
    tables: Sequence[DeviceTables],
    labels: Sequence[str],
    calls: Sequence[CollectiveCalls],
    matches: Matches,
    contradicted: Set[int],
) -> Tables:
    """All tables of the job; the sequences have an entry a rank.

    contradicted: groups of `matches` that were matched wrongly.
    """
    sized = [t.sized for t in tables]
    return Tables(
        collectives=collective_sizes(calls, sized, matches, contradicted),
        copies=[
            replace(row, rank=label) for t, label in zip(tables, labels, strict=True) for row in t.copies
        ],
        all_to_all=all_to_all(calls, sized, labels),
        gpu_metrics=_metrics(tables, labels),
    )


def _metrics(tables: Sequence[DeviceTables], labels: Sequence[str]) -> GpuMetrics:
    measured = [t.metrics for t in tables if t.metrics.state == "measured"]
    if not measured:
        return next((t.metrics for t in tables), GpuMetrics.missing("no trace was given"))
    rows = [
        replace(row, rank=label) for t, label in zip(tables, labels, strict=True) for row in t.metrics.rows
    ]
    less = next((t.metrics.reason for t in tables if t.metrics.state != "measured"), "")
    return replace(measured[0], reason=less, rows=rows)
