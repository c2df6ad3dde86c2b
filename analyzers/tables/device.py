"""The tables of one device, and what those of all devices together need of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from perfdoc.analyzers.base.intervals import I64, Intervals, exact_sum, union
from perfdoc.analyzers.communication.calls import CollectiveCalls
from perfdoc.analyzers.device.activity import communicating_copies
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.tables.metrics import gpu_metrics
from perfdoc.analyzers.tables.sizes import SizedCalls, sized_calls
from perfdoc.records import dataclass
from perfdoc.results.tables import CopyRow, GpuMetrics
from perfdoc.traces import CopyKind
from perfdoc.traces.table import Bool


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


_OF_HOST = (CopyKind.HOST_TO_DEVICE, CopyKind.DEVICE_TO_HOST)


def copy_rows(view: DeviceView) -> list[CopyRow]:
    """Rows by falling time. A rank that trains on the CPU has none."""
    trace, activity, window = view.trace, view.activity, view.window
    copies = trace.copies
    inside = (copies.start_ns < window.end_ns) & (copies.end_ns > window.start_ns)
    rows = np.flatnonzero(inside & (copies.device == activity.device))
    if activity.on_host or not len(rows):
        return []
    communicates = communicating_copies(trace, rows, view.launches)
    exposed = np.zeros(len(rows), np.int64)
    for mine, hiding in (
        (communicates, [activity.compute]),
        (~communicates, [activity.compute, activity.comm]),
    ):
        exposed[mine] = _exposed(view, rows[mine], hiding)
    kind, pinned = copies.kind[rows].astype(np.int64), copies.pinned[rows].astype(np.int64)
    key = (kind * 3 + pinned + 1) * 2 + communicates
    found = [
        _row(view, rows, exposed, communicates, np.flatnonzero(key == k)) for k in np.unique(key).tolist()
    ]
    return sorted(found, key=lambda r: (-r.total_ns, r.direction, r.memory))


def _exposed(view: DeviceView, rows: I64, hiding: list[Intervals]) -> I64:
    """Time of each copy in the window in which nothing of the sets runs."""
    copies, window = view.trace.copies, view.window
    start = np.maximum(copies.start_ns[rows], window.start_ns)
    end = np.minimum(copies.end_ns[rows], window.end_ns)
    if not len(rows):
        return start
    hidden = _near(hiding[0], start, end)
    for more in hiding[1:]:
        hidden = hidden | _near(more, start, end)
    return np.asarray(end - start - hidden.covered_within(start, end))


def _near(of: Intervals, start_ns: I64, end_ns: I64) -> Intervals:
    """Those that touch any of these stretches. A million kernels beside a few copies need no union."""
    others = union(start_ns, end_ns)
    first = np.searchsorted(of.end_ns, others.start_ns, "left")
    behind = np.searchsorted(of.start_ns, others.end_ns, "right")
    change = np.bincount(first, minlength=len(of) + 1) - np.bincount(behind, minlength=len(of) + 1)
    near = np.cumsum(change[: len(of)]) > 0
    return Intervals(of.start_ns[near], of.end_ns[near])


def _row(view: DeviceView, rows: I64, exposed: I64, communicates: Bool, mine: I64) -> CopyRow:
    copies, of = view.trace.copies, rows[mine]
    kind = CopyKind(int(copies.kind[of[0]]))
    size, total_ns = copies.bytes[of], exact_sum((copies.end_ns - copies.start_ns)[of])
    known = bool((size >= 0).all())
    moved = exact_sum(size) if known else None
    return CopyRow(
        direction=kind.name.lower().replace("_", " "),
        memory=_memory(kind, int(copies.pinned[of[0]])),
        communication=bool(communicates[mine[0]]),
        count=len(of),
        total_ns=total_ns,
        bytes=moved,
        gbps=moved / total_ns if moved is not None and total_ns else None,
        largest_bytes=int(size.max()) if known else None,
        exposed_ns=exact_sum(exposed[mine]),
    )


def _memory(kind: CopyKind, pinned: int) -> Literal["pinned", "pageable", "unknown", ""]:
    if kind not in _OF_HOST:
        return ""
    return "pinned" if pinned == 1 else "pageable" if pinned == 0 else "unknown"


@dataclass(frozen=True, kw_only=True)
class DeviceTables:
    """Rows lack the rank's label: the set of captures tells it."""

    copies: Sequence[CopyRow]
    metrics: GpuMetrics
    sized: SizedCalls


def device_tables(view: DeviceView, calls: CollectiveCalls) -> DeviceTables:
    """calls: its communication."""
    return DeviceTables(
        copies=copy_rows(view),
        metrics=gpu_metrics(view),
        sized=sized_calls(view, calls),
    )
