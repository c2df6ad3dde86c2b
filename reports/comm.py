"""Rows of the communication table: as measured for one rank, added up over ranks for many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfdoc.results import DIMENSIONS, Communication, Rank
from perfdoc.results.figures import bandwidth
from perfdoc.results.names import shorten

OVERALL_ROWS = 200
PER_RANK_ROWS = 400


@dataclass(frozen=True, kw_only=True)
class CommRow:
    """One row as shown. Times in ns; over several ranks they are sums of each rank's union."""

    rank: str
    """Label of the rank, or how many ranks were added up."""
    dimension: str
    css: str
    """Name of its dimension's colour and pattern."""
    transport: str
    collective: str
    """With the element type where it is known."""
    evidence: str
    group: str
    count: int
    total_ns: int
    hidden_ns: int
    exposed_ns: int
    blocking_ns: int | None
    bytes: int | None
    bandwidth: str


def _summed(values: Sequence[int | None]) -> int | None:
    """The sum, or None where a part of it is not known."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _bandwidth_range(rows: Sequence[Communication]) -> str:
    known = [row.bus_bandwidth_gbps for row in rows if row.bus_bandwidth_gbps is not None]
    if not known:
        return bandwidth(None)
    low, high = bandwidth(min(known)), bandwidth(max(known))
    return low if low == high else f"{low.removesuffix(' GB/s')} to {high}"


def _row(label: str, rows: Sequence[Communication]) -> CommRow:
    first = rows[0]
    groups = {row.group for row in rows}
    return CommRow(
        rank=label,
        dimension=shorten(first.dimension, 48),
        css=f"exposed-comm-{first.dimension if first.dimension in DIMENSIONS else 'unknown'}",
        transport=shorten(first.transport, 48),
        collective=shorten(f"{first.collective} {first.element_type}".rstrip(), 64),
        evidence=shorten(first.evidence, 64),
        group=shorten(first.group, 72) if len(groups) == 1 else f"{len(groups):,} groups",
        count=sum(row.count for row in rows),
        total_ns=sum(row.total_ns for row in rows),
        hidden_ns=sum(row.hidden_ns for row in rows),
        exposed_ns=sum(row.exposed_ns for row in rows),
        blocking_ns=_summed([row.blocking_ns for row in rows]),
        bytes=_summed([row.bytes for row in rows]),
        bandwidth=_bandwidth_range(rows),
    )


def _by_exposed(row: CommRow) -> tuple[int, int]:
    return (-row.exposed_ns, -row.total_ns)


def overall_rows(ranks: Sequence[Rank]) -> tuple[list[CommRow], int]:
    """One row per kind of communication over all ranks and groups, the most exposed first, and how many rows
    beyond OVERALL_ROWS are left out."""
    kinds: dict[tuple[str, ...], list[Communication]] = {}
    members: dict[tuple[str, ...], set[int]] = {}
    for i, rank in enumerate(ranks):
        for row in rank.communication:
            key = (
                row.dimension,
                row.transport,
                row.collective,
                row.element_type,
                row.evidence,
            )
            kinds.setdefault(key, []).append(row)
            members.setdefault(key, set()).add(i)
    shown = sorted((_row(str(len(members[key])), rows) for key, rows in kinds.items()), key=_by_exposed)
    return shown[:OVERALL_ROWS], max(0, len(shown) - OVERALL_ROWS)


def per_rank_rows(ranks: Sequence[Rank], labels: Sequence[str]) -> tuple[list[CommRow], int]:
    """Each rank's own rows in the order of the ranks, and how many beyond PER_RANK_ROWS are left out."""
    shown: list[CommRow] = []
    for rank, label in zip(ranks, labels, strict=True):
        shown += sorted((_row(label, [row]) for row in rank.communication), key=_by_exposed)
    return shown[:PER_RANK_ROWS], max(0, len(shown) - PER_RANK_ROWS)
