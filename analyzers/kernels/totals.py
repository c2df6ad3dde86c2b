"""Kernel time by class and by name, of everything and of kernels alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.base.rows import kept
from perfdoc.analyzers.device.activity import Activity
from perfdoc.analyzers.kernel_class.classify import KernelClass, KernelKinds
from perfdoc.results.ranks import KernelsOnly
from perfdoc.traces import Trace


@dataclass(frozen=True, kw_only=True)
class NamedTime:
    """Kernels of one name."""

    name: str
    short_name: str
    """Function name without arguments and template parameters."""
    kernel_class: KernelClass
    count: int
    total_ns: int
    """Sum of durations clipped to the window; concurrent kernels count twice."""


def kernel_times(
    trace: Trace, activity: Activity, kinds: KernelKinds, start_ns: int, end_ns: int
) -> list[NamedTime]:
    """Time of every kernel name of one device that runs inside [start, end)."""
    rows = activity.kernel_rows
    start, end = trace.kernels.start_ns[rows], trace.kernels.end_ns[rows]
    inside = (start < end_ns) & (end > start_ns)
    rows, start, end = kept(inside, rows, start, end)
    duration = np.minimum(end, end_ns) - np.maximum(start, start_ns)
    name = trace.kernels.full_name[rows].astype(np.int64)
    count = np.bincount(name, minlength=len(trace.strings))
    total = sum_by(name, duration, len(trace.strings))
    kind_of = np.zeros(len(trace.strings), np.int64)
    kind_of[name] = kinds.kind[rows]
    short_of = np.zeros(len(trace.strings), np.int64)
    short_of[name] = trace.kernels.name[rows]
    return [
        NamedTime(
            name=trace.strings[i],
            short_name=trace.strings[short_of[i]],
            kernel_class=kinds.kinds[kind_of[i]].kernel_class,
            count=int(count[i]),
            total_ns=int(total[i]),
        )
        for i in np.flatnonzero(count).tolist()
    ]


def sum_by(index: np.ndarray, value: np.ndarray, length: int) -> np.ndarray:
    """Exact integer sums of values by index.

    bincount adds in float64, exact only below 2^53; high and low halves each stay far below that.
    """
    if len(value) and value.min() >= 0 and int(value.max()) * len(value) < 2**53:
        return np.bincount(index, weights=value, minlength=length).astype(np.int64)
    low = np.bincount(index, weights=(value & 0xFFFFFFFF).astype(np.float64), minlength=length)
    high = np.bincount(index, weights=(value >> 32).astype(np.float64), minlength=length)
    return np.asarray((high.astype(np.int64) << 32) + low.astype(np.int64))


def kernels_only(trace: Trace, activity: Activity, window_ns: tuple[int, int] | None = None) -> KernelsOnly:
    """Count kernels of one device over the capture, or clipped to a window."""
    rows = activity.kernel_rows
    start, end = trace.kernels.start_ns[rows], trace.kernels.end_ns[rows]
    comm = activity.kernel_is_comm
    if window_ns is not None:
        inside = (start < window_ns[1]) & (end > window_ns[0])
        start, end, comm = kept(inside, start, end, comm)
    if not len(start):
        a, b = window_ns if window_ns is not None else (0, 0)
    else:
        a, b = window_ns if window_ns is not None else (int(start.min()), int(end.max()))
    compute, communication = activity.kernel_compute.clip(a, b), activity.kernel_comm.clip(a, b)
    hidden_ns = compute.overlap_ns(communication)
    busy_ns = compute.total_ns + communication.total_ns - hidden_ns
    return KernelsOnly(
        kernels=len(start),
        comm_kernels=int(np.count_nonzero(comm)),
        span_ns=b - a,
        busy_ns=busy_ns,
        compute_ns=compute.total_ns,
        comm_ns=communication.total_ns,
        hidden_ns=hidden_ns,
        exposed_ns=communication.total_ns - hidden_ns,
        idle_ns=b - a - busy_ns,
    )
