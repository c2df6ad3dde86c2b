"""Copies and sets that no kernel hides, by what they move."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from perfdoc.results.tables import CopyRow
from perfdoc.traces import CopyKind


@dataclass(frozen=True, kw_only=True)
class CopyTime:
    """Copies of one kind in the window, those between ranks left out."""

    kind: str
    """`host to device`, `device to host`, `device to device`, `memset`, ..."""
    count: int
    exposed_ns: int
    """Time of them beside neither compute nor communication; concurrent ones count twice, so that the sum
    over kinds is not below the ledger's exposed_memcpy."""
    bytes: int | None
    """Of all of them; None where one does not say."""
    total_ns: int
    """Of all of them whole, as `bytes` is, one after the other."""
    pinned: int | None
    """Those from or to pinned host memory; None where one between host and device does not say."""


_ORDER = [kind.name.lower().replace("_", " ") for kind in CopyKind]


def copy_times(rows: Iterable[CopyRow]) -> list[CopyTime]:
    """The rows of a device's table by kind of copy, most exposed first."""
    by_kind: dict[str, list[CopyRow]] = {}
    for row in rows:
        if not row.communication:
            by_kind.setdefault(row.direction, []).append(row)
    found = [
        CopyTime(
            kind=kind,
            count=sum(r.count for r in mine),
            exposed_ns=sum(r.exposed_ns for r in mine),
            bytes=None if any(r.bytes is None for r in mine) else sum(r.bytes or 0 for r in mine),
            total_ns=sum(r.total_ns for r in mine),
            pinned=sum(r.count for r in mine if r.memory == "pinned")
            if all(r.memory in ("pinned", "pageable") for r in mine)
            else None,
        )
        for kind, mine in sorted(by_kind.items(), key=lambda item: _ORDER.index(item[0]))
    ]
    return sorted(found, key=lambda c: -c.exposed_ns)
