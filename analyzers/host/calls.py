"""CUDA calls of the threads that feed one device, sorted by what they do to the host."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from functools import cached_property, lru_cache

import numpy as np

from perfdoc.analyzers.base.intervals import I64, Intervals, index_within, union
from perfdoc.analyzers.base.rows import ascends, kept, picked, said_by_names
from perfdoc.analyzers.device.idle import LAUNCH_LATENCY_MAX_NS
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.patterns import pattern_of
from perfdoc.records import dataclass
from perfdoc.traces import CopyKind, Trace
from perfdoc.traces.table import I8, I32, Bool, unique


class CallKind(IntEnum):
    """What a call does, in order of precedence: where calls nest, the lowest number has the time."""

    ALLOCATION = 0
    SYNCHRONISING = 1
    """Waits for the device: a synchronisation, or a copy or launch that returned only when it was done."""
    MODULE_LOAD = 2
    """Loads device code: the first launch of a kernel under lazy loading."""
    LAUNCH = 3
    STREAM_ALLOCATION = 4
    """Allocates or frees in a stream's order (cudaMallocAsync): queued as a launch is, without a wait."""
    OTHER = 5


_SUFFIX = pattern_of(r"(_v\d{1,9}|_ptsz|_ptds){1,4}$")
"""API versions (Nsight writes cudaLaunchKernel_v7000) and per-thread-stream variants. Bounded: a name made of
them alone would take the square of its length."""

_API = "[a-z]{2,8}"
"""How runtimes begin their calls' names: cuda and cu, hip, musa, mc (MetaX), tops (Enflame), cnrt, sdaa. Most
vendors take over CUDA's names behind it. Intel's are of Unified Runtime and Level Zero."""
_KINDS: tuple[tuple[CallKind, str], ...] = (
    (CallKind.STREAM_ALLOCATION, rf"{_API}(Malloc|Free|MemAlloc|MemFree)(FromPool)?Async"),
    (CallKind.ALLOCATION, rf"{_API}(Malloc|Free|Host(Alloc|Malloc|Free|Register|Unregister))\w*"),
    (CallKind.ALLOCATION, rf"{_API}Mem(Alloc|Free|HostAlloc|HostRegister|HostUnregister|Create|Release)\w*"),
    (CallKind.ALLOCATION, rf"{_API}Mem(Map|Unmap|SetAccess|AddressReserve|AddressFree)"),
    (CallKind.ALLOCATION, rf"{_API}MemPool(Create|Destroy|TrimTo)|urUSM\w*(Alloc|Free)|zeMem(Alloc|Free)\w*"),
    (CallKind.SYNCHRONISING, rf"{_API}(Device|Stream|Event|Thread|Ctx)Synchronize|urQueueFinish|urEventWait"),
    (CallKind.SYNCHRONISING, r"ze(Event|Fence|CommandQueue|CommandList)(Host)?Synchronize|cnrtQueueSync"),
    (CallKind.LAUNCH, rf"{_API}Memcpy\w*Async|{_API}Memset\w*|urEnqueue\w+|zeCommandListAppend\w+"),
    (CallKind.SYNCHRONISING, rf"{_API}Memcpy\w*"),
    (CallKind.MODULE_LOAD, rf"{_API}(Module|Library)(Load|Unload)\w*|cuLink\w+|urProgram\w+|zeModuleCreate"),
    (CallKind.LAUNCH, rf"{_API}(Ext)?(Module)?(Graph)?Launch\w*|piEnqueue\w+|cn(rt)?Invoke\w+"),
)
"""(kind, pattern on the whole name without its suffix); the first that matches wins."""

_NEARLY_ALL, _FEW = 0.9, 7
"""Of launches of kernels that run longer than a launch and its return take; so few of them tell nothing."""
_GRAPH_LAUNCH = pattern_of(rf"{_API}GraphLaunch\w*")
_COPY = pattern_of(rf"{_API}Memcpy\w*")


def plain_name(name: str) -> str:
    """A call's name without the suffix of its version: cudaLaunchKernel_v7000 is cudaLaunchKernel."""
    return _SUFFIX.sub("", name)


@lru_cache(maxsize=4096)
def call_kind(name: str) -> CallKind:
    """What a CUDA call does, by its name alone.

    >>> call_kind("cudaStreamSynchronize_v3020").name, call_kind("cudaMemcpyAsync").name
    ('SYNCHRONISING', 'LAUNCH')
    """
    plain = plain_name(name)
    return next((kind for kind, pattern in _KINDS if pattern_of(pattern).fullmatch(plain)), CallKind.OTHER)


def kinds_of_calls(trace: Trace) -> I8:
    """CallKind by index into Trace.strings, of the names that calls of the capture have."""
    kind = np.full(len(trace.strings), CallKind.OTHER, np.int8)
    for i in trace.call_names.tolist():
        kind[i] = call_kind(trace.strings[i])
    return kind


def is_graph_launch(name: str) -> bool:
    """Whether a call launches a CUDA graph."""
    return _GRAPH_LAUNCH.fullmatch(plain_name(name)) is not None


@dataclass(frozen=True, kw_only=True)
class HostCalls:
    """Calls on the threads that launch a device's work, sorted by (thread, start, longest first)."""

    start_ns: I64
    end_ns: I64
    thread: I32
    name: I32
    """Index into Trace.strings."""
    kind: I8
    """CallKind."""
    threads: Sequence[int]
    """The threads, ascending; one without calls has no rows."""

    def of_thread(self, thread: int) -> slice:
        """The rows of a thread."""
        ends = np.array((thread, thread + 1), np.int32)  # in their type: for no other are they copied
        return slice(*np.searchsorted(self.thread, ends).tolist())

    @cached_property
    def covered(self) -> dict[int, Intervals]:
        """By thread: when it was in any of its calls."""
        rows = {thread: self.of_thread(thread) for thread in self.threads}
        return {thread: union(self.start_ns[mine], self.end_ns[mine]) for thread, mine in rows.items()}

    def outermost(self, kind: CallKind) -> I64:
        """Rows of a kind that lie in no other call of the kind, nor in one of a kind before it."""
        rows = np.flatnonzero(self.kind <= kind)
        keep = np.ones(len(rows), bool)
        for own in map(self.of_thread, self.threads):
            first, last = np.searchsorted(rows, (own.start, own.stop))
            mine = rows[first:last]
            # In this order a call lies inside an earlier one exactly if one of them ends no earlier.
            reach = np.maximum.accumulate(self.end_ns[mine])
            inside = (self.end_ns[mine][1:] <= reach[:-1]) & (self.start_ns[mine][1:] < reach[:-1])
            keep[first + 1 : last] = ~inside
        return np.asarray(rows[keep & (self.kind[rows] == kind)])


def host_bounds(view: DeviceView) -> tuple[int, int]:
    """The window on the host: from the first step range's start to the last one's end, or to the start of the
    one behind them; without step ranges the window itself."""
    window, ranges = view.window, view.step_ranges
    if not window.steps:
        return window.start_ns, window.end_ns
    return int(ranges.start_ns[0]), max(int(ranges.end_ns.max()), int(ranges.met.start_ns[-1]))


def step_at(view: DeviceView, time_ns: I64) -> I64:
    """Index into the window's steps of the step whose range on the host holds each time; -1 none."""
    return index_within(view.step_ranges.start_ns, view.step_ranges.end_ns, time_ns)


def host_calls(view: DeviceView, *, from_ns: int | None = None) -> HostCalls:
    """The calls that reach into the window, on the host's time or the device's, on launching threads.

    from_ns: earlier ones too, from then on (what launched the window's first work is before its start).
    A thread that launches nothing on the device (NCCL's watchdog, a data loader) holds up nothing by waiting.
    """
    api = view.trace.api_calls
    threads = view.activity.launching_threads
    threads = threads[threads >= 0]
    host_start, host_end = host_bounds(view)
    low, high = min(host_start, view.window.start_ns), max(host_end, view.window.end_ns)
    low = low if from_ns is None else min(low, from_ns)
    rows = view.trace.calls_of(threads)
    (rows,) = kept((picked(api.start_ns, rows) < high) & (picked(api.end_ns, rows) > low), rows)

    kind = kinds_of_calls(view.trace)[picked(api.name, rows)]
    if len(rows):
        waiting = unique(np.append(_waiting_copies(view), _blocking_launches(view)))
        at = np.minimum(np.searchsorted(rows, waiting), len(rows) - 1)
        kind[at[rows[at] == waiting]] = CallKind.SYNCHRONISING

    start, end = picked(api.start_ns, rows), picked(api.end_ns, rows)
    thread, name = picked(api.thread, rows), picked(api.name, rows)
    order = _order(thread, start)
    start, end, thread, name, kind = start[order], end[order], thread[order], name[order], kind[order]
    tied = np.flatnonzero((thread[1:] == thread[:-1]) & (start[1:] == start[:-1]))
    if len(tied):  # the longest first; few are, so that the times need no copies of their own
        at, end, name = unique(np.append(tied, tied + 1)), end.copy(), name.copy()
        ordered = at[np.lexsort((-end[at], start[at], thread[at]))]
        for column in (end, name, kind):
            column[at] = column[ordered]
    own = threads.tolist()
    return HostCalls(start_ns=start, end_ns=end, thread=thread, name=name, kind=kind, threads=own)


def _order(thread: I32, start: I64) -> I64 | slice:
    """Order by thread and start; exports mostly are in it."""
    return slice(None) if ascends(thread, start) else np.lexsort((start, thread))


def _waiting_copies(view: DeviceView) -> I64:
    """Rows of API calls of copies between host and device in which the host waited for the device.

    A copy from or to pageable memory does that whatever its name says; `.item()` is one. Such a call returns
    no earlier than the copy is done, or (to the device, where the last part is staged) than it has begun,
    long after the call.
    """
    trace = view.trace
    copies = trace.copies
    between = (copies.kind == CopyKind.HOST_TO_DEVICE) | (copies.kind == CopyKind.DEVICE_TO_HOST)
    rows = np.flatnonzero(between & (copies.device == view.activity.device))
    calls = view.launches.copies[rows]
    rows, calls = rows[calls >= 0], calls[calls >= 0]
    made, returned = trace.api_calls.start_ns[calls], trace.api_calls.end_ns[calls]
    late = copies.start_ns[rows] - made > LAUNCH_LATENCY_MAX_NS
    waited: Bool = (returned >= copies.end_ns[rows]) | (late & (returned >= copies.start_ns[rows]))
    calls = calls[waited]
    names = trace.api_calls.name[calls]
    is_copy = said_by_names(
        trace.strings, names, lambda name: _COPY.fullmatch(plain_name(name)) is not None, False
    )
    return np.asarray(calls[is_copy])


def _blocking_launches(view: DeviceView) -> I64:
    """Rows of API calls of launches, where nearly all return no earlier than their kernel ends: with
    CUDA_LAUNCH_BLOCKING=1. How short ones end beside their calls tells nothing, nor beside slow calls."""
    kernels, calls = view.trace.kernels, view.launches.kernels
    rows = np.flatnonzero((calls >= 0) & (kernels.device == view.activity.device))
    api, took = view.trace.api_calls, kernels.end_ns[rows] - kernels.start_ns[rows]
    waited = api.end_ns[calls[rows]] >= kernels.end_ns[rows]
    tells = took > 2 * LAUNCH_LATENCY_MAX_NS
    in_it = waited & (api.end_ns[calls[rows]] - api.start_ns[calls[rows]] <= 2 * took)
    blocking = in_it[tells].sum() > max(_NEARLY_ALL * tells.sum(), _FEW)
    return unique(calls[rows[waited]]) if blocking else rows[:0]
