"""Start-up in a capture without steps: code is loaded, memory allocated and communicators made, once.

A capture that begins with its process holds all of it. It is no part of what is repeated for days, so nothing
is promised of it. Where it ends: 95 % of the time in such calls has passed; a buffer that grows later, or an
evaluation that loads its own kernels, does not stretch it.
"""

from __future__ import annotations

import re

import numpy as np

from perfdoc.analyzers.base.intervals import I64, union
from perfdoc.analyzers.device.activity import Activity
from perfdoc.results.capture_parts import StartUp
from perfdoc.traces import RangeKind, Trace

_ENDS_AT_FRAC = 0.95
"""Of the time in such calls."""
_MIN_FRAC = 0.05
"""Of the capture: a shorter start-up changes no figure."""
_MIN_CALLS_FRAC = 0.01
"""Of the start-up, spent in such calls: less does not tell what the time was."""
_MIN_CALLS = 10
"""Allocations alone are a start-up from here on."""
_CHURN_FRAC = 0.5
"""With so many calls that free for each that allocates, memory comes and goes in every step."""

_LOADS = re.compile(r"^(cu|cuda|hip)(Module|Library)Load")
_ALLOCATES = re.compile(
    r"^(cuda|cu|hip)(Malloc|MemAlloc|HostAlloc|HostRegister|MemHost|MemCreate|MemMap|MemSetAccess)(?!\w*(Async|Pool))"
)
_FREES = re.compile(r"^(cuda|cu|hip)(Free(?!Async)|FreeHost|MemFree(?!Async)|MemUnmap|HostUnregister)")
_COMMUNICATORS = re.compile(r"^(nccl|rccl)Comm(Init|Split|Shrink)|^ncclx?_init")
_LIBRARIES = re.compile(r"^(cublas|cublasLt|cudnn|cusparse|cusolver|cufft)(Dn|Sp)?Create")


def find_start_up(trace: Trace, activity: Activity) -> StartUp | None:
    """The start-up of one device, from its first activity on; None where the capture shows none."""
    process = trace.devices[activity.device].process
    threads = trace.threads_of(process)
    api = trace.api_calls
    mine = np.isin(api.thread, threads)

    def calls(pattern: re.Pattern[str]) -> I64:
        return np.flatnonzero(mine & trace.calls_named(pattern))

    def ranges(pattern: re.Pattern[str]) -> I64:
        names = [i for i in trace.range_names.tolist() if pattern.search(trace.strings[i])]
        own = np.isin(trace.ranges.thread, threads) & (trace.ranges.kind != RangeKind.MARK)
        return np.flatnonzero(own & ~trace.ranges.never_closed & np.isin(trace.ranges.name, names))

    begin, end = activity.span
    loads, allocations, communicators = calls(_LOADS), calls(_ALLOCATES), ranges(_COMMUNICATORS)
    if len(calls(_FREES)) >= _CHURN_FRAC * len(allocations):
        allocations = allocations[:0]
    if not len(loads) and not len(communicators) and len(allocations) < _MIN_CALLS:
        return None
    libraries = ranges(_LIBRARIES)
    kinds = [
        (table.start_ns[rows], np.minimum(table.end_ns[rows], end))
        for table, rows in (
            (api, loads), (trace.ranges, libraries), (api, allocations), (trace.ranges, communicators),
        )
    ]  # fmt: skip
    kinds = [(a[a < end], b[a < end]) for a, b in kinds]
    starts, ends = (np.concatenate(side) for side in zip(*kinds, strict=True))
    if not len(starts):
        return None
    order = np.argsort(starts, kind="stable")
    passed = np.cumsum((ends - starts)[order])
    last = int(ends[order][np.searchsorted(passed, _ENDS_AT_FRAC * passed[-1], "left")])
    if last - begin < _MIN_FRAC * (end - begin):
        return None
    if union(starts, ends).clip(begin, last).total_ns < _MIN_CALLS_FRAC * (last - begin):
        return None
    loading, library, allocation, communicator = (union(a, b).total_ns for a, b in kinds)
    return StartUp(
        start_ns=begin,
        end_ns=last,
        compute_ns=activity.compute.clip(begin, last).total_ns,
        loading_ns=loading + library,
        allocation_ns=allocation,
        communicator_ns=communicator,
        work_frac=float(np.searchsorted(activity.start_ns, last, "left") / len(activity.start_ns)),
        left_out=False,
    )
