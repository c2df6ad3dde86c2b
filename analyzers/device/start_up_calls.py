"""Calls that a process makes once: code is loaded, memory allocated and communicators made.

Code is loaded by calls of its own, by libraries as they are opened, or inside the first launch of a kernel
(CUDA's lazy loading where driver calls were not traced; always on ROCm): that launch takes milliseconds, and
the device idles meanwhile.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.base.intervals import EMPTY, I64, Intervals, union
from perfdoc.analyzers.device.activity import Activity
from perfdoc.analyzers.device.launches import Launches
from perfdoc.traces import RangeKind, Trace

_CHURN_FRAC = 0.5
"""With so many calls that free for each that allocates, memory comes and goes in every step."""
_LONG_LAUNCH_NS = 1_000_000
"""Of the first launch of a kernel: others take microseconds."""
_MOST = 0.5
"""Of a call, in which the device idles: a launch may also be long because the queue is full."""

_LOADS = re.compile(r"^(cu|cuda|hip)(Module|Library)Load")
_ALLOCATES = re.compile(
    r"^(cuda|cu|hip)(Malloc|MemAlloc|HostAlloc|HostRegister|MemHost|MemCreate|MemMap|MemSetAccess)(?!\w*(Async|Pool))"
)
_FREES = re.compile(r"^(cuda|cu|hip)(Free(?!Async)|FreeHost|MemFree(?!Async)|MemUnmap|HostUnregister)")
_COMMUNICATORS = re.compile(r"^(nccl|rccl)Comm(Init|Split|Shrink)|^ncclx?_init")
_LIBRARIES = re.compile(r"^(cublas|cublasLt|cudnn|cusparse|cusolver|cufft)(Dn|Sp)?Create")


@dataclass(frozen=True, kw_only=True)
class Calls:
    """Calls of one kind, in any order; they may overlap."""

    start_ns: I64
    end_ns: I64

    def __len__(self) -> int:
        return len(self.start_ns)

    def within(self, start_ns: int, end_ns: int) -> Calls:
        """Those that begin in [start, end), cut at its end."""
        mine = (self.start_ns >= start_ns) & (self.start_ns < end_ns)
        return Calls(start_ns=self.start_ns[mine], end_ns=np.minimum(self.end_ns[mine], end_ns))

    @property
    def covered(self) -> Intervals:
        """Their union."""
        return union(self.start_ns, self.end_ns) if len(self) else EMPTY


@dataclass(frozen=True, kw_only=True)
class StartUpCalls:
    """Of the process of one device, over the whole capture."""

    loads: Calls
    """Modules, and libraries as they are opened."""
    first_launches: Calls
    """Long ones, which load code: evidence where they take much of the time."""
    allocations: Calls
    """None where memory comes and goes."""
    communicators: Calls

    def within(self, start_ns: int, end_ns: int) -> StartUpCalls:
        """Those of a stretch of the host's time."""
        return StartUpCalls(**{name: of.within(start_ns, end_ns) for name, of in vars(self).items()})


def find_calls(trace: Trace, activity: Activity, launches: Launches) -> StartUpCalls:
    """Look for them in one process."""
    threads = trace.threads_of(trace.devices[activity.device].process)
    api = trace.api_calls
    mine = np.isin(api.thread, threads)

    def calls(pattern: re.Pattern[str]) -> I64:
        return np.flatnonzero(mine & trace.calls_named(pattern))

    def ranges(pattern: re.Pattern[str]) -> Calls:
        names = [i for i in trace.range_names.tolist() if pattern.search(trace.strings[i])]
        own = np.isin(trace.ranges.thread, threads) & (trace.ranges.kind != RangeKind.MARK)
        rows = np.flatnonzero(own & ~trace.ranges.never_closed & np.isin(trace.ranges.name, names))
        return Calls(start_ns=trace.ranges.start_ns[rows], end_ns=trace.ranges.end_ns[rows])

    def of_api(rows: I64) -> Calls:
        return Calls(start_ns=api.start_ns[rows], end_ns=api.end_ns[rows])

    allocations = calls(_ALLOCATES)
    if len(calls(_FREES)) >= _CHURN_FRAC * len(allocations):
        allocations = allocations[:0]
    loads, libraries = of_api(calls(_LOADS)), ranges(_LIBRARIES)
    return StartUpCalls(
        loads=Calls(
            start_ns=np.concatenate((loads.start_ns, libraries.start_ns)),
            end_ns=np.concatenate((loads.end_ns, libraries.end_ns)),
        ),
        first_launches=of_api(_first_launches(trace, activity, launches)),
        allocations=of_api(allocations),
        communicators=ranges(_COMMUNICATORS),
    )


def _first_launches(trace: Trace, activity: Activity, launches: Launches) -> I64:
    """Rows of Trace.api_calls."""
    row = launches.kernels[activity.kernel_rows]
    kernel = activity.kernel_rows[row >= 0]
    row = row[row >= 0]
    if not len(row):
        return row
    start, name = trace.api_calls.start_ns[row], trace.kernels.full_name[kernel]
    length = trace.api_calls.end_ns[row] - start
    long = np.flatnonzero(length >= _LONG_LAUNCH_NS)
    wanted = np.zeros(len(trace.strings), bool)
    wanted[name[long]] = True
    first = np.full(len(trace.strings), np.iinfo(np.int64).max, np.int64)
    some = np.flatnonzero(wanted[name])
    np.minimum.at(first, name[some], start[some])
    long = long[start[long] == first[name[long]]]
    idle = length[long] - activity.busy.covered_within(start[long], start[long] + length[long])
    found: I64 = row[long[idle >= _MOST * length[long]]]
    return found
