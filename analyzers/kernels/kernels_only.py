"""The same time through kernels alone, as tools count it that leave copies and CUDA graphs out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.base.kept import kept
from perfdoc.analyzers.device.activity import Activity
from perfdoc.traces import Trace


@dataclass(frozen=True, kw_only=True)
class KernelsOnly:
    """Unions of kernels in nanoseconds; compute is every kernel that is not communication."""

    kernels: int
    comm_kernels: int
    span_ns: int
    """First start to last end, or the window's length where one is given."""
    busy_ns: int
    compute_ns: int
    comm_ns: int
    hidden_ns: int
    """Communication while compute runs."""
    exposed_ns: int
    idle_ns: int


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
