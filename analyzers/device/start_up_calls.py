"""What a process does once: it loads code, allocates memory, makes communicators, copies weights to a GPU.

Code is loaded by calls of its own, by libraries as they are opened, or inside the first launch of a kernel
(CUDA's lazy loading where driver calls were not traced; always on ROCm): that launch takes milliseconds, and
the device idles meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from perfdoc.analyzers.base.intervals import EMPTY, I64, Intervals, union
from perfdoc.analyzers.device.activity import Activity
from perfdoc.analyzers.device.launches import Launches
from perfdoc.analyzers.device.range_names import rows_named, rows_on
from perfdoc.patterns import pattern_of
from perfdoc.records import dataclass
from perfdoc.traces import CopyKind, Trace

_CHURN_FRAC = 0.5
"""With so many calls that free for each that allocates, memory comes and goes in every step."""
_LONG_LAUNCH_NS = 1_000_000
"""Of the first launch of a kernel: others take microseconds."""
_MOST = 0.5
"""Of a call, in which the device idles: a launch may also be long because the queue is full."""

_MANY = 1_000
"""Kernels: fewer are what data is copied for, as of a sample program."""
_FEW_FRAC, _NEARLY_ALL = 0.02, 0.95
"""Of the kernels, that run while weights are copied; of all copies with the host: offloaded ones go back."""
_WEIGHTS_BYTES = 512 << 20  # more than a batch has

_LOADS = pattern_of(r"^(cu|cuda|hip)(Module|Library)Load")
_ALLOCATES = pattern_of(
    r"^(cuda|cu|hip)(Malloc|MemAlloc|HostAlloc|HostRegister|MemHost|MemCreate|MemMap|MemSetAccess)(?!\w*(Async|Pool))"
)
_FREES = pattern_of(r"^(cuda|cu|hip)(Free(?!Async)|FreeHost|MemFree(?!Async)|MemUnmap|HostUnregister)")
_COMMUNICATORS = pattern_of(r"^(nccl|rccl)Comm(Init|Split|Shrink)|^ncclx?_init")
_LIBRARIES = pattern_of(r"^(cublas|cublasLt|cudnn|cusparse|cusolver|cufft)(Dn|Sp)?Create")


@dataclass(frozen=True, kw_only=True)
class Calls:
    """Calls of one kind, in any order; they may overlap."""

    start_ns: I64
    end_ns: I64

    def __len__(self) -> int:
        return len(self.start_ns)

    def within(self, start_ns: int, end_ns: int) -> Calls:
        """Those that begin in [start, end), cut at its end."""
        inside = (self.start_ns >= start_ns) & (self.start_ns < end_ns)
        return Calls(start_ns=self.start_ns[inside], end_ns=np.minimum(self.end_ns[inside], end_ns))

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
    uploads: Calls
    """Copies that bring nearly all that ever comes to the device before nearly all kernels."""

    @property
    def kinds(self) -> tuple[Calls, ...]:
        """All of the host."""
        return self.loads, self.first_launches, self.allocations, self.communicators

    def within(self, start_ns: int, end_ns: int) -> StartUpCalls:
        """Those of a stretch of the host's time."""
        return StartUpCalls(**{name: of.within(start_ns, end_ns) for name, of in vars(self).items()})


def find_calls(trace: Trace, activity: Activity, launches: Launches, *, whole: bool = False) -> StartUpCalls:
    """Look for them in the process of one device. whole: not in a step, which copies its batch."""
    threads = trace.threads_of(trace.devices[activity.device].process)
    api, ranges = trace.api_calls, trace.ranges
    of_process = np.isin(api.thread, threads)

    def calls_named(pattern: re.Pattern[str]) -> I64:
        return np.flatnonzero(of_process & trace.call_names_with(pattern)[api.name])

    def ranges_named(pattern: re.Pattern[str]) -> I64:
        rows = rows_named(trace, trace.range_names_like(pattern.search))
        return rows_on(trace, rows[~ranges.never_closed[rows]], threads)

    def calls_of(api_rows: Sequence[int] | I64 = (), range_rows: Sequence[int] | I64 = ()) -> Calls:
        a, r = np.asarray(api_rows, np.int64), np.asarray(range_rows, np.int64)
        return Calls(
            start_ns=np.append(api.start_ns[a], ranges.start_ns[r]),
            end_ns=np.append(api.end_ns[a], ranges.end_ns[r]),
        )

    allocations = calls_named(_ALLOCATES)
    if len(calls_named(_FREES)) >= _CHURN_FRAC * len(allocations):
        allocations = allocations[:0]
    return StartUpCalls(
        loads=calls_of(calls_named(_LOADS), ranges_named(_LIBRARIES)),
        first_launches=calls_of(_first_launches(trace, activity, launches)),
        allocations=calls_of(allocations),
        communicators=calls_of(range_rows=ranges_named(_COMMUNICATORS)),
        uploads=_uploads(trace, activity) if whole else calls_of(),
    )


def _uploads(trace: Trace, activity: Activity) -> Calls:
    """On the device's time. None where they are spread over the capture, as batches are."""
    copies, work = trace.copies, np.flatnonzero(activity.is_compute)
    ours = (copies.device == activity.device) & (copies.kind <= CopyKind.DEVICE_TO_HOST)
    length = np.where(ours, copies.end_ns - copies.start_ns, 0)
    many = len(work) >= _MANY or bool((activity.kernel[work] < 0).any())  # a whole graph is many
    since = activity.start_ns[work[int(_FEW_FRAC * len(work))]] if many else 0
    first = ours & (copies.kind == CopyKind.HOST_TO_DEVICE) & (copies.start_ns < since)
    if copies.bytes[first].sum() < _WEIGHTS_BYTES or length[first].sum() < _NEARLY_ALL * length.sum():
        first[:] = False
    return Calls(start_ns=copies.start_ns[first], end_ns=copies.end_ns[first])


def _first_launches(trace: Trace, activity: Activity, launches: Launches) -> I64:
    """Rows of Trace.api_calls: long first launches of a kernel in which the device idles."""
    row = launches.kernels[activity.kernel_rows]
    kernel = activity.kernel_rows[row >= 0]
    row = row[row >= 0]
    start, name = trace.api_calls.start_ns[row], trace.kernels.full_name[kernel]
    length = trace.api_calls.end_ns[row] - start
    first = np.full(len(trace.strings), np.iinfo(np.int64).max, np.int64)
    np.minimum.at(first, name, start)
    long = np.flatnonzero((length >= _LONG_LAUNCH_NS) & (start == first[name]))
    idle = length[long] - activity.busy.covered_within(start[long], start[long] + length[long])
    found: I64 = row[long[idle >= _MOST * length[long]]]
    return found
