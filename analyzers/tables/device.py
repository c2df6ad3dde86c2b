"""The tables of one device, and what those of all devices together need of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from types import MappingProxyType
from typing import Literal

import numpy as np

from perfdoc.analyzers.base.intervals import I64, Intervals, exact_sum, union
from perfdoc.analyzers.communication.calls import CollectiveCalls
from perfdoc.analyzers.device.activity import communicating_copies
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.analyzers.tables.sizes import SizedCalls, sized_calls
from perfdoc.patterns import pattern_of
from perfdoc.records import dataclass
from perfdoc.results.quality import MEASURED
from perfdoc.results.tables import CopyRow, GpuMetrics, MetricMean
from perfdoc.traces import CopyKind
from perfdoc.traces.table import Bool, unique

REMEDY = "nsys profile --gpu-metrics-devices=all …"
MAX_METRICS = 64
_NEARLY_ALL = 0.9
"""Of a sample's time; the rest may be the gaps between kernels of the class."""
_PAUSE = 4
"""Times the usual distance of two samples: a later one is not of all the time since the one before."""
_MEANINGS = MappingProxyType(
    {
        pattern_of(pattern, re.IGNORECASE): meaning
        for pattern, meaning in (
            (r"SMs? Active\b", "sm_active"),
            (r"SM Issue\b", "sm_issue"),
            (r"Tensor Active\b", "tensor_active"),
            (r"DRAM Read\b", "dram_read"),
            (r"DRAM Write\b", "dram_write"),
            (r"NVLink RX\b", "nvlink_rx"),
            (r"NVLink TX\b", "nvlink_tx"),
            (r"PCIe RX\b", "pcie_rx"),
            (r"PCIe TX\b", "pcie_tx"),
            (r"GPC Clock\b", "clock"),
        )
    }
)


def samples_of(view: DeviceView, name: re.Pattern[str]) -> tuple[I64, I64, I64] | None:
    """Start, end and value of the window's samples of the metric of that name; None where there are none."""
    trace, gpu = view.trace, _gpu(view)
    samples = trace.metric_samples
    mine = np.flatnonzero(samples.gpu == gpu) if gpu >= 0 else np.empty(0, np.int64)
    for metric in unique(samples.metric[mine]).tolist():
        if name.match(trace.strings[metric]):
            rows = mine[samples.metric[mine] == metric]
            found = _in_window(view, samples.time_ns[rows], samples.value[rows])
            return found if len(found[0]) else None
    return None


def _gpu(view: DeviceView) -> int:
    """As samples number it; -1 where the device was not sampled."""
    gpus, device = view.trace.metric_gpus, view.activity.device
    return gpus[device] if device < len(gpus) and not view.activity.on_host else -1


def gpu_metrics(view: DeviceView) -> GpuMetrics:
    """Means over the samples that lie in the window."""
    trace, gpu = view.trace, _gpu(view)
    if gpu < 0:
        return GpuMetrics.missing(trace.metrics_reason or "not sampled", REMEDY)
    if list(trace.metric_gpus).count(gpu) > 1:
        return GpuMetrics.missing("several processes share the GPU, whose counters do not tell them apart")
    samples = trace.metric_samples
    mine = np.flatnonzero(samples.gpu == gpu)
    found: list[MetricMean] = []
    periods: list[int] = []
    kinds: _Kinds | None = None
    for metric in unique(samples.metric[mine])[:MAX_METRICS].tolist():
        rows = mine[samples.metric[mine] == metric]
        start, end, value = _in_window(view, samples.time_ns[rows], samples.value[rows])
        if not len(end):
            continue
        periods.append(int(np.median(end - start)))
        # The metrics of a set are sampled together.
        if kinds is None or not np.array_equal(kinds.end_ns, end):
            kinds = _kinds(view, start, end)
        found += _means(trace.strings[metric], kinds, value)
    if not found:
        return GpuMetrics.missing("no sample of GPU metrics lies in the window")
    return GpuMetrics(**MEASURED, rows=found, period_ns=int(np.median(periods)))


def _in_window(view: DeviceView, time_ns: I64, value: I64) -> tuple[I64, I64, I64]:
    """Start, end and value of the samples whose time lies in the window."""
    start, end, value = time_ns[:-1], time_ns[1:], value[1:]
    if not len(end):
        return start, end, value
    period = end - start
    usual = np.median(period[period > 0]) if (period > 0).any() else 0
    kept = (period > 0) & (period <= _PAUSE * usual)
    kept &= (start >= view.window.start_ns) & (end <= view.window.end_ns)
    return start[kept], end[kept], value[kept]


@dataclass(frozen=True, kw_only=True)
class _Kinds:
    """What ran in the time of each sample."""

    end_ns: I64
    names: Sequence[str]
    kind: I64
    """Index into `names`."""


def _kinds(view: DeviceView, start: I64, end: I64) -> _Kinds:
    names, sets = zip(*_activities(view), strict=True)
    covered = np.stack([of.covered_within(start, end) for of in sets])
    most = covered.argmax(axis=0)
    ran = covered.sum(axis=0)
    alone = (covered.max(axis=0) == ran) & (ran >= _NEARLY_ALL * (end - start))
    kind = np.where(ran == 0, len(names), np.where(alone, most, len(names) + 1))
    return _Kinds(end_ns=end, names=(*names, "idle", "mixed"), kind=kind)


def _activities(view: DeviceView) -> list[tuple[str, Intervals]]:
    """When each class of kernels ran, whole CUDA graphs and copies."""
    trace, rows = view.trace, view.activity.kernel_rows
    kernels, graphs, copies = trace.kernels, trace.graph_launches, trace.copies
    code = view.kinds.class_code[rows]
    found = []
    for kernel_class in KernelClass:
        of = rows[code == kernel_class]
        if len(of):
            found.append((kernel_class.name.lower(), union(kernels.start_ns[of], kernels.end_ns[of])))
    for name, table in (("cuda_graph", graphs), ("copy", copies)):
        of = np.flatnonzero(table.device == view.activity.device)
        found.append((name, union(table.start_ns[of], table.end_ns[of])))
    return found


def _means(metric: str, kinds: _Kinds, value: I64) -> list[MetricMean]:
    meaning = next((m for p, m in _MEANINGS.items() if p.match(metric)), "")

    def row(name: str, of: I64) -> MetricMean:
        return MetricMean(
            metric=metric,
            meaning=meaning,
            kernel_class=name,
            samples=len(of),
            mean=exact_sum(of) / len(of),
            most=int(of.max()),
        )

    by_kind = [(name, value[kinds.kind == i]) for i, name in enumerate(kinds.names)]
    return [row("all", value), *(row(name, of) for name, of in by_kind if len(of))]


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
    found = [_row(view, rows, exposed, communicates, np.flatnonzero(key == k)) for k in unique(key).tolist()]
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
    return DeviceTables(copies=copy_rows(view), metrics=gpu_metrics(view), sized=sized_calls(view, calls))
