"""Which CUDA call launched each activity of a device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.intervals import I64
from perfdoc.traces import Copies, GraphLaunches, Kernels, Trace

_MAX_DENSE_ENTRIES_PER_ROW = 16
"""A lookup table of this many entries per API row is still smaller than sorting is slow."""


@dataclass(frozen=True, kw_only=True)
class Launches:
    """Row of Trace.api_calls that launched each row of the three activity tables; -1 unknown."""

    kernels: I64
    copies: I64
    graph_launches: I64


def find_launches(trace: Trace) -> Launches:
    """Join activities to API calls by (process, correlation id).

    Several calls may share an id (a runtime call and the driver call inside it): the one that starts
    first is the launch, since the others run inside it.
    """
    api = trace.api_calls
    tables: tuple[Kernels | Copies | GraphLaunches, ...] = (trace.kernels, trace.copies, trace.graph_launches)
    processes = {
        p: i for i, p in enumerate({d.process for d in trace.devices} | {t.process for t in trace.threads})
    }
    thread_process = np.array([processes[t.process] for t in trace.threads], np.int64)
    device_process = np.array([processes[d.process] for d in trace.devices], np.int64)

    rows = np.flatnonzero((api.correlation >= 0) & (api.thread >= 0))
    if not len(rows):
        return Launches(**{n: np.full(len(t), -1, np.int64) for n, t in zip(_NAMES, tables, strict=True)})
    starts = api.start_ns[rows]
    if (starts[1:] < starts[:-1]).any():
        rows = rows[np.argsort(starts, kind="stable")]
    stride = 1 + max(int(t.correlation.max(initial=0)) for t in (api, *tables))
    key = thread_process[api.thread[rows]] * stride + api.correlation[rows]
    wanted = [device_process[t.device] * stride + t.correlation for t in tables]
    if stride * len(processes) <= _MAX_DENSE_ENTRIES_PER_ROW * len(rows) + 1_000_000:
        table = np.full(stride * len(processes), -1, np.int64)
        # Backwards, because the last assignment wins and the earliest call is wanted.
        table[key[::-1]] = rows[::-1]
        found = [
            np.where(t.correlation >= 0, table[np.maximum(k, 0)], -1)
            for k, t in zip(wanted, tables, strict=True)
        ]
    else:
        order = np.argsort(key, kind="stable")
        key, rows = key[order], rows[order]
        found = []
        for k, t in zip(wanted, tables, strict=True):
            at = np.minimum(np.searchsorted(key, k, "left"), len(key) - 1)
            found.append(np.where((t.correlation >= 0) & (key[at] == k), rows[at], -1))
    return Launches(**dict(zip(_NAMES, found, strict=True)))


_NAMES = ("kernels", "copies", "graph_launches")
