"""Copies and sets that no kernel hides, by what they move."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.base.intervals import I64, Intervals, exact_sum, union
from perfdoc.analyzers.device.activity import communicating_copies
from perfdoc.analyzers.device.view import DeviceView
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


def copy_times(view: DeviceView) -> list[CopyTime]:
    """By kind, most exposed first. A rank that trains on the CPU has none."""
    trace, activity, window = view.trace, view.activity, view.window
    copies = trace.copies
    inside = (copies.start_ns < window.end_ns) & (copies.end_ns > window.start_ns)
    rows = np.flatnonzero(inside & (copies.device == activity.device))
    if activity.on_host or not len(rows):
        return []
    rows = rows[~communicating_copies(trace, rows, view.launches)]
    start = np.maximum(copies.start_ns[rows], window.start_ns)
    end = np.minimum(copies.end_ns[rows], window.end_ns)
    hidden = near(activity.compute, start, end) | near(activity.comm, start, end)
    exposed = end - start - hidden.covered_within(start, end)
    found = []
    for kind in np.unique(copies.kind[rows]).tolist():
        mine = copies.kind[rows] == kind
        size, pinned = copies.bytes[rows[mine]], copies.pinned[rows[mine]]
        found.append(
            CopyTime(
                kind=CopyKind(kind).name.lower().replace("_", " "),
                count=int(mine.sum()),
                exposed_ns=exact_sum(exposed[mine]),
                bytes=exact_sum(size) if (size >= 0).all() else None,
                total_ns=exact_sum((copies.end_ns - copies.start_ns)[rows[mine]]),
                pinned=int(pinned.sum()) if (pinned >= 0).all() else None,
            )
        )
    return sorted(found, key=lambda c: -c.exposed_ns)


def near(of: Intervals, start_ns: I64, end_ns: I64) -> Intervals:
    """Those that touch any of these stretches. A million kernels beside a few copies need no union."""
    others = union(start_ns, end_ns)
    first = np.searchsorted(of.end_ns, others.start_ns, "left")
    behind = np.searchsorted(of.start_ns, others.end_ns, "right")
    change = np.bincount(first, minlength=len(of) + 1) - np.bincount(behind, minlength=len(of) + 1)
    near = np.cumsum(change[: len(of)]) > 0
    return Intervals(of.start_ns[near], of.end_ns[near])
