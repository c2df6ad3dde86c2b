"""Kernels that were held up by resident communication and started as it ended.

A kernel that needs its blocks on the device together (Transformer Engine's norms, any cooperative launch)
cannot start while communication keeps some of the SMs. It is counted where the trace excludes the other
causes: it had been launched, its stream was free, no event and no host function was waited for, no other
compute ran, and communication was resident for nearly all of the wait.

What a trace cannot exclude: with CUDA_DEVICE_MAX_CONNECTIONS=1 a kernel also waits behind a collective that
is queued before it and itself waits. Then kernels that need no room stall alike, so those are counted too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.base.intervals import I64, union
from perfdoc.analyzers.contention.contention_samples import full_names
from perfdoc.analyzers.contention.contention_waits import Waits
from perfdoc.analyzers.device.device_view import DeviceView
from perfdoc.analyzers.kernel_class.kernel_class import KernelClass
from perfdoc.traces.table import Bool

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

_FIRST_LOOK = 10_000
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
    """Norms that look held up but queued behind a wait whose end is not known, or on a stream that never ran
    beside communication, so that it may be ordered after it."""

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
        kept = np.isin(view.trace.kernels.stream[candidates], streams[np.argsort(-count)[:_MOST_STREAMS]])
        candidates, launch = candidates[kept], launch[kept]
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
    awaited = Waits(view).until_ns(stream, pred_launch, api.start_ns[launch])
    clear = (awaited >= 0) & _runs_beside(view, stream)
    ready = np.maximum(ready, awaited)
    stalled = clear & _held_up(view, ready, start)
    is_norm = _is_norm(view, candidates)
    return Stalls(
        is_norm=is_norm[stalled],
        name=full_names(view.trace.kernels, candidates[stalled]),
        ready_ns=ready[stalled],
        start_ns=start[stalled],
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
    ends = np.unique(kernels.end_ns[activity.kernel_rows[activity.kernel_is_comm]])
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
    for s in np.unique(stream).tolist():
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
    rows, comm_rows = activity.kernel_rows, activity.kernel_rows[activity.kernel_is_comm]
    comm_stream = kernels.stream[comm_rows]
    found = np.zeros(len(stream), bool)
    for s in np.unique(stream).tolist():
        others = activity.kernel_comm
        if (comm_stream == s).any():
            foreign = comm_rows[comm_stream != s]
            others = union(kernels.start_ns[foreign], kernels.end_ns[foreign])
        mine = rows[(kernels.stream[rows] == s) & ~activity.kernel_is_comm]
        # A part of them is nearly always enough.
        parts = (mine[:_FIRST_LOOK], mine[_FIRST_LOOK:])
        found[stream == s] = any(
            (others.covered_within(kernels.start_ns[part], kernels.end_ns[part]) > 0).any() for part in parts
        )
    return found


def _is_norm(view: DeviceView, rows: I64) -> Bool:
    classes = np.array([k.kernel_class for k in view.kinds.kinds], np.int64)
    found: Bool = classes[view.kinds.kind[rows]] == KernelClass.NORM
    return found
