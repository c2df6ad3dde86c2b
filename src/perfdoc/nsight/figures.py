"""The figures of a whole Trace by the definitions of Nsight's own reports, to hold one against the other.

Nothing here runs nsys. Every table maps a subject to its figures; docs/nsight.md says what each means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from perfdoc.analyzers.base.intervals import I64, union
from perfdoc.analyzers.device.launches import find_launches
from perfdoc.analyzers.kernel_class.classify import classify_kernels
from perfdoc.analyzers.kernels.totals import sum_by
from perfdoc.traces import RangeKind, Trace
from perfdoc.traces.table import I32

Key: TypeAlias = tuple[str, str]
"""Name, and what tells subjects of one name apart: a range's style, a device; may be empty."""
Figures: TypeAlias = Mapping[str, int | float]

STYLES = {RangeKind.PUSH_POP: "PushPop", RangeKind.START_END: "StartEnd"}


@dataclass(frozen=True, kw_only=True)
class Unclosed:
    """Ranges of one subject that never closed."""

    count: int
    start_sum_ns: int
    own_total_ns: int
    """Up to the end of the capture, where perfdoc ends them."""


@dataclass(frozen=True, kw_only=True)
class RangeFigures:
    """Count and total host time of every range name and style."""

    by_key: Mapping[Key, Figures]
    unclosed: Mapping[Key, Unclosed]
    last_ns: int
    """Latest start or end of a range or mark that closed."""


@dataclass(frozen=True, kw_only=True)
class Gaps:
    """Stretches between a device's first and last activity with nothing running."""

    start_ns: I64
    end_ns: I64
    graphs: int
    """CUDA graphs traced as a whole on the device; they count as activity here."""


@dataclass(frozen=True, kw_only=True)
class Overlaps:
    """Per kernel name: how many, and how much of them runs beside the other kind."""

    communication: Mapping[str, Figures]
    """Of communication kernels: `count`, `beside_compute_pct`."""
    compute: Mapping[str, Figures] = field(default_factory=dict)
    """Of all others: `count`, `beside_communication_pct`."""


def range_figures(trace: Trace) -> RangeFigures:
    """`count` and `total_ns` by (label, style); a label is `domain:name`, or the name alone.

    Marks are no ranges. Every row counts once, nested ranges of one name too.
    """
    ranges = trace.ranges
    rows = np.flatnonzero(np.isin(ranges.kind, list(STYLES)))
    keys, code = _range_keys(trace, rows)
    n = len(keys)
    duration, is_open = ranges.end_ns[rows] - ranges.start_ns[rows], ranges.never_closed[rows]
    count, total = np.bincount(code, minlength=n), sum_by(code, duration, n)
    opened = np.flatnonzero(is_open)
    open_code = code[opened]
    open_count = np.bincount(open_code, minlength=n)
    open_start = sum_by(open_code, ranges.start_ns[rows][opened], n)
    open_total = sum_by(open_code, duration[opened], n)
    closed = ~ranges.never_closed
    last = max(int(ranges.start_ns.max(initial=0)), int(ranges.end_ns[closed].max(initial=0)))
    by_key: dict[Key, dict[str, int]] = {}
    unclosed: dict[Key, Unclosed] = {}
    for i, key in enumerate(keys):
        # Two pairs of domain and name may make one label.
        at = by_key.setdefault(key, {"count": 0, "total_ns": 0})
        at["count"] += int(count[i])
        at["total_ns"] += int(total[i])
        if open_count[i]:
            before = unclosed.get(key, Unclosed(count=0, start_sum_ns=0, own_total_ns=0))
            unclosed[key] = Unclosed(
                count=before.count + int(open_count[i]),
                start_sum_ns=before.start_sum_ns + int(open_start[i]),
                own_total_ns=before.own_total_ns + int(open_total[i]),
            )
    return RangeFigures(by_key=by_key, unclosed=unclosed, last_ns=last)


def named_range_figures(trace: Trace) -> dict[Key, Figures]:
    """`count` and `total_ns` by (name, ""), whatever domain and style; ranges of no length are left out."""
    ranges = trace.ranges
    duration = ranges.end_ns - ranges.start_ns
    rows = np.flatnonzero(np.isin(ranges.kind, list(STYLES)) & (duration > 0))
    return _counts_and_totals(trace, ranges.name[rows], duration[rows])


def kernel_figures(trace: Trace) -> dict[Key, Figures]:
    """`count` and `total_ns` by (full demangled name, "")."""
    kernels = trace.kernels
    return _counts_and_totals(trace, kernels.full_name, kernels.end_ns - kernels.start_ns)


def projection_figures(trace: Trace) -> dict[Key, Figures]:
    """Push/pop ranges seen from the devices: `count`, `projected_ns` and `gpu_operations` by (label, style).

    A range stands for the kernels, copies and sets that calls of its thread launched inside it, from the
    first start to the last end of them; ranges that launched none are left out. Activities of one call
    (the nodes of a CUDA graph) are one operation.
    """
    launches, api = find_launches(trace), trace.api_calls
    tables = ((trace.kernels, launches.kernels), (trace.copies, launches.copies))
    call, start, end = (
        np.concatenate(parts)
        for parts in zip(*((row, table.start_ns, table.end_ns) for table, row in tables), strict=True)
    )
    known = call >= 0
    call, start, end = call[known], start[known], end[known]
    ranges = trace.ranges
    rows = np.flatnonzero(ranges.kind == RangeKind.PUSH_POP)
    if not len(call) or not len(rows):
        return {}
    order = np.lexsort((call, api.start_ns[call], api.thread[call]))
    call, start, end = call[order], start[order], end[order]
    thread, time = api.thread[call].astype(np.int64), api.start_ns[call]
    first, last = _inside(
        thread, time, ranges.thread[rows].astype(np.int64), ranges.start_ns[rows], ranges.end_ns[rows]
    )
    some = last > first
    rows, first, last = rows[some], first[some], last[some]
    calls_before = np.concatenate(([0], np.cumsum(np.concatenate(([True], call[1:] != call[:-1])))))
    # One more element, since the last slice may end where the array does.
    pairs = np.column_stack((first, last)).ravel()
    earliest = np.minimum.reduceat(np.append(start, 0), pairs)[::2]
    latest = np.maximum.reduceat(np.append(end, 0), pairs)[::2]
    keys, code = _range_keys(trace, rows)
    n = len(keys)
    count = np.bincount(code, minlength=n)
    projected = sum_by(code, latest - earliest, n)
    operations = sum_by(code, calls_before[last] - calls_before[first], n)
    found: dict[Key, dict[str, int | float]] = {}
    for i, key in enumerate(keys):
        at = found.setdefault(key, {"count": 0, "projected_ns": 0, "gpu_operations": 0})
        at["count"] += int(count[i])
        at["projected_ns"] += int(projected[i])
        at["gpu_operations"] += int(operations[i])
    return dict(found)


def gap_figures(trace: Trace) -> dict[tuple[int, int], Gaps]:
    """Gaps of every device that was active, by (process, CUDA ordinal)."""
    found = {}
    kernels, copies, graphs = trace.kernels, trace.copies, trace.graph_launches
    for index, device in enumerate(trace.devices):
        here = [np.flatnonzero(table.device == index) for table in (kernels, copies, graphs)]
        start, end = (
            np.concatenate((kernels_ns[here[0]], copies_ns[here[1]], graphs_ns[here[2]]))
            for kernels_ns, copies_ns, graphs_ns in (
                (kernels.start_ns, copies.start_ns, graphs.start_ns),
                (kernels.end_ns, copies.end_ns, graphs.end_ns),
            )
        )
        if len(start):
            gaps = union(start, end).gaps(int(start.min()), int(end.max()))
            found[device.process, device.ordinal] = Gaps(
                start_ns=gaps.start_ns, end_ns=gaps.end_ns, graphs=len(here[2])
            )
    return found


def overlap_figures(trace: Trace) -> Overlaps:
    """How much of the kernels of each (short) name runs while a kernel of the other kind does."""
    kernels = trace.kernels
    is_comm = classify_kernels(trace).is_communication
    beside = np.zeros(len(kernels.start_ns), np.int64)
    for index in range(len(trace.devices)):
        here = kernels.device == index
        for own, other in ((is_comm, ~is_comm), (~is_comm, is_comm)):
            mine, theirs = np.flatnonzero(here & own), np.flatnonzero(here & other)
            cover = union(kernels.start_ns[theirs], kernels.end_ns[theirs])
            beside[mine] = cover.covered_within(kernels.start_ns[mine], kernels.end_ns[mine])
    name = kernels.name.astype(np.int64)
    n = len(trace.strings)

    def by_name(rows: I64, figure: str) -> dict[str, Figures]:
        count = np.bincount(name[rows], minlength=n)
        total = sum_by(name[rows], (kernels.end_ns - kernels.start_ns)[rows], n)
        part = sum_by(name[rows], beside[rows], n)
        return {
            trace.strings[i]: {
                "count": int(count[i]),
                figure: 100 * int(part[i]) / int(total[i]) if total[i] else 0.0,
            }
            for i in np.flatnonzero(count).tolist()
        }

    return Overlaps(
        communication=by_name(np.flatnonzero(is_comm), "beside_compute_pct"),
        compute=by_name(np.flatnonzero(~is_comm), "beside_communication_pct"),
    )


def _counts_and_totals(trace: Trace, name: I32, duration_ns: I64) -> dict[Key, Figures]:
    """Names that are equal were interned as one."""
    index, n = name.astype(np.int64), len(trace.strings)
    count, total = np.bincount(index, minlength=n), sum_by(index, duration_ns, n)
    return {
        (trace.strings[i], ""): {"count": int(count[i]), "total_ns": int(total[i])}
        for i in np.flatnonzero(count).tolist()
    }


def _range_keys(trace: Trace, rows: I64) -> tuple[list[Key], I64]:
    """Distinct (label, style) of ranges, and for each row the index of its own; labels may repeat."""
    ranges = trace.ranges
    kinds, names = len(RangeKind), len(trace.strings)
    packed = (ranges.domain[rows].astype(np.int64) * names + ranges.name[rows]) * kinds + ranges.kind[rows]
    distinct, code = np.unique(packed, return_inverse=True)
    keys = []
    for value in distinct.tolist():
        pair, kind = divmod(value, kinds)
        domain, name = (trace.strings[i] for i in divmod(pair, names))
        keys.append((f"{domain}:{name}" if domain else name, STYLES[RangeKind(kind)]))
    return keys, code


def _inside(
    thread: I64, time_ns: I64, range_thread: I64, range_start_ns: I64, range_end_ns: I64
) -> tuple[I64, I64]:
    """For each range the slice [first, last) of calls, sorted by thread and time, that start inside it.

    Calls and ranges of one thread are nested, so a call that starts inside ends inside as well.
    """
    first, last = np.zeros(len(range_thread), np.int64), np.zeros(len(range_thread), np.int64)
    for index in np.unique(range_thread).tolist():
        low, high = np.searchsorted(thread, [index, index + 1])
        mine = np.flatnonzero(range_thread == index)
        first[mine] = low + np.searchsorted(time_ns[low:high], range_start_ns[mine], "left")
        last[mine] = low + np.searchsorted(time_ns[low:high], range_end_ns[mine], "left")
    return first, last
