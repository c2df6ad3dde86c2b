"""Means of Nsight's GPU metrics by kernel class: over the samples in whose time one class ran alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import MappingProxyType

import numpy as np

from perfdoc.analyzers.base.intervals import I64, Intervals, exact_sum, union
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.records import dataclass
from perfdoc.results.quality import MEASURED
from perfdoc.results.tables import GpuMetrics, MetricMean

REMEDY = "nsys profile --gpu-metrics-devices=all …"
MAX_METRICS = 64
_NEARLY_ALL = 0.9
"""Of a sample's time; the rest may be the gaps between kernels of the class."""
_PAUSE = 4
"""Times the usual distance of two samples: a later one is not of all the time since the one before."""
_MEANINGS = MappingProxyType(
    {
        re.compile(pattern, re.IGNORECASE): meaning
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
    for metric in np.unique(samples.metric[mine]).tolist():
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
    for metric in np.unique(samples.metric[mine])[:MAX_METRICS].tolist():
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
