"""The CUDA calls that cost most: those that wait for the device, and those that allocate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfdoc.reports.sections.section import Grid, count, name, time, word
from perfdoc.results import Rank
from perfdoc.results.host import CallGroup

_ROWS = 6


@dataclass
class _Calls:
    """Groups of calls of one kind, function, range and operator, over ranks."""

    kind: str
    call: str
    where: str
    count: int = 0
    idle_ns: int = 0
    host_ns: int = 0
    ranks: int = 0


def costly_calls(ranks: Sequence[Rank]) -> Grid:
    """The calls after or in which devices idled longest. Empty where none did."""
    found: dict[tuple[str, str, str], _Calls] = {}
    left_out = 0
    for rank in ranks:
        waits, allocations = rank.host.sync_calls, rank.host.alloc_calls
        for kind, groups in (("waits", waits.groups), ("allocates", allocations.groups)):
            for group in groups:
                where = _where(group)
                row = found.setdefault(
                    (kind, group.call, where), _Calls(kind=kind, call=group.call, where=where)
                )
                row.count += group.count
                row.idle_ns += group.idle_caused_ns
                row.host_ns += group.host_ns
                row.ranks += 1
        left_out += waits.groups_left_out + allocations.groups_left_out
    rows = sorted((row for row in found.values() if row.idle_ns), key=lambda row: (-row.idle_ns, row.call))
    many = len(ranks) > 1
    return Grid(
        caption="The costliest calls that wait for the device or allocate memory",
        head=["idle time", "count", *(["ranks"] if many else []), "time inside", "kind", "call", "in"],
        align="rr" + ("r" if many else "") + "rlln",
        rows=[
            [
                time(row.idle_ns),
                count(row.count),
                *([count(row.ranks)] if many else []),
                time(row.host_ns),
                word(row.kind),
                name(row.call, 64),
                name(row.where),
            ]
            for row in rows[:_ROWS]
        ],
        left_out=left_out + max(0, len(rows) - _ROWS),
    )


def _where(group: CallGroup) -> str:
    return ", ".join(part for part in (group.range_name, group.operator, group.call_site) if part)
