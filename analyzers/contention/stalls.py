"""Kernels delayed by resident communication: they started as it ended.

A kernel that needs its blocks on the device together (Transformer Engine's norms, any cooperative launch)
cannot start while communication keeps some of the SMs. It is counted where the trace excludes the other
causes: it had been launched, its stream was free, nothing that its stream may wait for was queued, no other
compute ran, and communication was resident for nearly all of the wait.

What a trace cannot exclude: with CUDA_DEVICE_MAX_CONNECTIONS=1 a kernel also waits behind a collective that
is queued before it and itself waits. Then kernels that need no room stall alike, so those are counted too.
"""

from __future__ import annotations

import re

import numpy as np

from perfdoc.analyzers.base.intervals import I64, union
from perfdoc.analyzers.base.rows import kept, picked
from perfdoc.analyzers.contention.samples import full_names
from perfdoc.analyzers.device.launches import start_of
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.patterns import pattern_of
from perfdoc.records import dataclass
from perfdoc.traces import SyncKind
from perfdoc.traces.table import Bool, unique

_EVENT_WAIT = pattern_of(r"StreamWaitEvent")
_OTHER_WAIT = pattern_of(
    r"StreamWaitValue|StreamBatchMemOp|LaunchHostFunc|StreamAddCallback|ExternalSemaphores"
)


def _may_wait(view: DeviceView, stream: I64, after_ns: I64, before_ns: I64) -> Bool:
    """Whether each stream may have had to wait, by calls in (after, before) of the host's time.

    A call names no stream, so any of the process counts, unless the capture says whose wait it was.
    """
    other, event = (_starts_of_calls(view, pattern) for pattern in (_OTHER_WAIT, _EVENT_WAIT))
    waits = _between(other, after_ns, before_ns)
    if not view.trace.capabilities["event_edges"].available:
        return waits | _between(event, after_ns, before_ns)
    syncs = view.trace.syncs
    rows = np.flatnonzero((syncs.process == view.device.process) & (syncs.kind == SyncKind.STREAM_WAIT_EVENT))
    called = start_of(view.trace, view.launches.syncs[rows])
    called = np.where(called >= 0, called, syncs.start_ns[rows])
    for s in unique(stream).tolist():
        of_stream = stream == s
        times = np.sort(called[syncs.stream[rows] == s])
        waits[of_stream] |= _between(times, after_ns[of_stream], before_ns[of_stream])
    return waits


def _starts_of_calls(view: DeviceView, pattern: re.Pattern[str]) -> I64:
    """Start of the process's calls whose names the pattern finds, sorted."""
    trace = view.trace
    matches = trace.call_names_with(pattern)
    rows = trace.calls_of(trace.threads_of(view.device.process))
    return np.sort(trace.api_calls.start_ns[rows[matches[picked(trace.api_calls.name, rows)]]])


def _between(times: I64, after_ns: I64, before_ns: I64) -> Bool:
    """Whether any time lies in each open interval."""
    inside: Bool = np.searchsorted(times, before_ns, "left") > np.searchsorted(times, after_ns, "right")
    return inside


START_AFTER_END_MAX_NS = 5_000
"""A held-up kernel starts so soon after the end of the communication."""
START_BEFORE_END_MAX_NS = 1_000
"""... or so little before it: its first blocks take the SMs of the first blocks that are done."""
STALL_MIN_NS = 10_000
"""Shorter waits are the ordinary distance between kernels."""
RESIDENT_MIN_FRAC = 0.9
"""Share of the wait in which communication was resident."""
OTHER_COMPUTE_MAX_FRAC = 0.1
"""Share of the wait in which other compute ran: that may have been the cause instead."""

_MOST_STREAMS = 64
"""Streams that are looked at, those with the most candidates; more than any program uses for compute."""


@dataclass(frozen=True, kw_only=True)
class Stalls:
    """Held-up starts of one device, inside the window."""

    is_norm: Bool
    """Of each: whether it is a norm's."""
    name: I64
    """Index into Trace.strings."""
    ready_ns: I64
    """Since when the kernel could have run."""
    start_ns: I64
    undecided: int
    """Norms that look delayed but were launched after a call that may make their stream wait, or on a stream
    that never ran beside communication, so that it may be ordered after it."""

    def lost_ns(self, of_norms: bool) -> int:
        """Time that they waited, in all."""
        return int((self.start_ns - self.ready_ns)[self.is_norm == of_norms].sum())

    def count(self, of_norms: bool) -> int:
        """How many there are."""
        return int((self.is_norm == of_norms).sum())


_NONE = Stalls(
    is_norm=np.empty(0, bool),
    name=np.empty(0, np.int64),
    ready_ns=np.empty(0, np.int64),
    start_ns=np.empty(0, np.int64),
    undecided=0,
)


def find_stalls(view: DeviceView) -> Stalls | None:
    """None where the capture does not say when kernels were launched."""
    if not view.trace.capabilities["launch_correlation"].available:
        return None
    api = view.trace.api_calls
    candidates = _start_as_communication_ends(view)
    launch = view.launches.kernels[candidates]
    queued_ns = view.trace.kernels.start_ns[candidates] - api.end_ns[launch] if len(api) else launch
    could = (launch >= 0) & (view.trace.kernels.graph_node[candidates] < 0) & (queued_ns >= STALL_MIN_NS)
    candidates, launch = candidates[could], launch[could]
    if not len(candidates):
        return _NONE
    streams, count = np.unique(view.trace.kernels.stream[candidates], return_counts=True)
    if len(streams) > _MOST_STREAMS:
        looked = np.isin(view.trace.kernels.stream[candidates], streams[np.argsort(-count)[:_MOST_STREAMS]])
        candidates, launch = candidates[looked], launch[looked]
    pred_end, pred_launch = _before_on_stream(view, candidates)
    start = view.trace.kernels.start_ns[candidates]
    ready = np.maximum(api.end_ns[launch], pred_end)
    looks = _held_up(view, ready, start)
    if not looks.any():
        return _NONE
    candidates, pred_launch, launch, start, ready = (
        c[looks] for c in (candidates, pred_launch, launch, start, ready)
    )

    stream = view.trace.kernels.stream[candidates]
    clear = ~_may_wait(view, stream, pred_launch, api.start_ns[launch]) & _runs_beside(view, stream)
    is_norm = _is_norm(view, candidates)
    return Stalls(
        is_norm=is_norm[clear],
        name=full_names(view.trace.kernels, candidates[clear]),
        ready_ns=ready[clear],
        start_ns=start[clear],
        undecided=int((is_norm & ~clear).sum()),
    )


def _start_as_communication_ends(view: DeviceView) -> I64:
    """Rows of compute kernels of the window that start at the end of a communication kernel."""
    kernels, activity, window = view.trace.kernels, view.activity, view.window
    rows = activity.kernel_rows
    starts = kernels.start_ns[rows]
    if (starts[1:] < starts[:-1]).any():
        order = np.argsort(starts, kind="stable")
        rows, starts = rows[order], starts[order]
    ends = unique(kernels.end_ns[activity.kernel_rows[activity.kernel_is_comm]])
    ends = ends[(ends >= window.start_ns) & (ends < window.end_ns)]
    near = union(ends - START_BEFORE_END_MAX_NS, ends + START_AFTER_END_MAX_NS + 1)
    first = np.searchsorted(starts, near.start_ns, "left")
    count = np.searchsorted(starts, near.end_ns, "left") - first
    at = np.repeat(first - (np.cumsum(count) - count), count) + np.arange(count.sum())
    found = rows[at]
    compute: I64 = found[~view.kinds.is_communication[found]]
    return compute


def _before_on_stream(view: DeviceView, rows: I64) -> tuple[I64, I64]:
    """For each kernel the end and the launch of what ran before it on its stream; -1 where nothing did."""
    activity = view.activity
    stream, start = view.trace.kernels.stream[rows], view.trace.kernels.start_ns[rows]
    end = np.full(len(rows), -1, np.int64)
    launch = np.full(len(rows), -1, np.int64)
    for s in unique(stream).tolist():
        mine = np.flatnonzero(stream == s)
        lane = np.flatnonzero(activity.stream == s)
        at = np.searchsorted(activity.start_ns[lane], start[mine], "left") - 1
        before = lane[np.maximum(at, 0)]
        reach = np.maximum.accumulate(activity.end_ns[lane])
        end[mine] = np.where(at >= 0, reach[np.maximum(at, 0)], -1)
        launch[mine] = np.where(at >= 0, activity.launch_start_ns[before], -1)
    return end, launch


def _held_up(view: DeviceView, ready: I64, start: I64) -> Bool:
    """Whether communication was resident from when each kernel was ready to when it started."""
    wait = start - ready
    until = np.maximum(ready, start)
    resident = view.activity.kernel_comm.covered_within(ready, until)
    computing = view.activity.compute.covered_within(ready, until)
    held: Bool = (
        (wait >= STALL_MIN_NS)
        & (resident >= RESIDENT_MIN_FRAC * wait)
        & (computing <= OTHER_COMPUTE_MAX_FRAC * wait)
    )
    return held


def _runs_beside(view: DeviceView, stream: I64) -> Bool:
    """Whether kernels of each stream ever ran beside communication of another one.

    The legacy default stream waits for every stream that was not made non-blocking: such streams never
    overlap with it.
    """
    kernels, activity = view.trace.kernels, view.activity
    is_comm = activity.kernel_is_comm
    rows, comm_rows = activity.kernel_rows[~is_comm], activity.kernel_rows[is_comm]
    comm_stream, of_stream = kernels.stream[comm_rows], kernels.stream.take(rows)
    found = np.zeros(len(stream), bool)
    for s in unique(stream).tolist():
        others = activity.kernel_comm
        if (comm_stream == s).any():
            foreign = comm_rows[comm_stream != s]
            others = union(kernels.start_ns[foreign], kernels.end_ns[foreign])
        (mine,) = kept(of_stream == s, rows)
        found[stream == s] = others.overlap_ns(union(kernels.start_ns[mine], kernels.end_ns[mine])) > 0
    return found


def _is_norm(view: DeviceView, rows: I64) -> Bool:
    classes = np.array([k.kernel_class for k in view.kinds.kinds], np.int64)
    found: Bool = classes[view.kinds.kind[rows]] == KernelClass.NORM
    return found
