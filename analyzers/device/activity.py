"""What ran on one device, sorted into compute, communication and copies.

A copy between GPUs does. So does a copy inside a GPU that NCCL's own call launched: its copy-engine
collectives write through memory that is mapped from the other ranks, which CUPTI may report as one device's.
In a group of one rank such a copy moves nothing between ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from perfdoc.analyzers.base.intervals import I64, Intervals, union
from perfdoc.analyzers.base.rows import kept, picked, said_by_names
from perfdoc.analyzers.device.launches import Launches, group_sizes, innermost
from perfdoc.analyzers.kernel_class.classify import KernelKind, KernelKinds
from perfdoc.records import dataclass
from perfdoc.results import ranks
from perfdoc.traces import CopyKind, Trace
from perfdoc.traces.model import Operators, Ranges
from perfdoc.traces.table import I32, U64, Bool


def communicating_copies(trace: Trace, rows: I64, launches: Launches) -> Bool:
    """For each of these rows of Trace.copies, whether it is communication."""
    kind = trace.copies.kind[rows]
    found = np.asarray(kind == CopyKind.PEER_TO_PEER)
    api = launches.copies[rows]
    asked = np.flatnonzero((kind == CopyKind.DEVICE_TO_DEVICE) & (api >= 0))
    if not len(asked):
        return found

    def within(table: Ranges | Operators, outer: I64, inner: I64) -> Bool:
        """Which of these copies were launched inside of one of these rows."""
        columns = table.start_ns[outer], table.end_ns[outer], table.thread[outer].astype(np.int64)
        times, threads = trace.api_calls.start_ns[api[inner]], trace.api_calls.thread[api[inner]]
        return innermost(*columns, times, threads.astype(np.int64)) >= 0

    calls = np.flatnonzero(trace.payloads.range >= 0)
    # NCCL's calls do not say how many ranks take part, the creation of their communicator does.
    calls = calls[group_sizes(trace, calls, trace.payloads.communicator[calls]) != 1] if len(calls) else calls
    found[asked] = within(trace.ranges, trace.payloads.range[calls], asked)
    # Without payloads: a group of one rank copies singly, a collective on copy engines in batches.
    names = trace.api_calls.name[api[asked]]
    batches = asked[said_by_names(trace.strings, names, lambda name: "MemcpyBatch" in name, False)]
    if len(batches):
        nccl = said_by_names(trace.strings, trace.ranges.domain, lambda name: name == "NCCL", False)
        torch = said_by_names(trace.strings, trace.operators.name, lambda n: n == "record_param_comms", False)
        found[batches] |= within(trace.ranges, np.flatnonzero(nccl), batches)
        found[batches] |= within(trace.operators, np.flatnonzero(torch), batches)
    return found


DIMENSIONS = ranks.DIMENSIONS
UNKNOWN_DIMENSION = DIMENSIONS.index("unknown")

EVIDENCE = ("communicator", "group_description", "range", "operator", "structure", "pattern", "none")
"""How a dimension is known, strongest first."""

PEER_COPY = "copy_engine"
"""Transport of copies between GPUs: user buffers, copy-engine collectives, plain peer copies."""


@dataclass(frozen=True, kw_only=True)
class Communication:
    """Activities that move data between ranks, by start time."""

    start_ns: I64
    end_ns: I64
    dimension: I64
    """Index into DIMENSIONS."""
    kind: I64
    """Index into `kinds`."""
    kinds: Sequence[KernelKind | None]
    """What each is; None stands for a copy between GPUs."""
    kernel: I64
    """Row of Trace.kernels; -1 for a copy."""
    stream: I64
    launch_start_ns: I64
    """Start of the launching call; -1 unknown."""
    launch_thread: I64
    evidence: I64
    """Index into EVIDENCE: how the dimension is known."""
    payload: I64
    """Row of Trace.payloads; -1 none."""
    communicator: U64
    """NCCL's communicator id; 0 unknown."""
    bytes: I64
    """Message size, of a copy what it moves; -1 unknown."""
    bytes_of_one_operation: Bool
    """Whether `bytes` is of operations of one kind."""
    blocked_since_ns: I64 | None
    """Since when compute provably waited for it, the largest int64 if it did not; None: not measured."""


@dataclass(frozen=True, kw_only=True)
class Activity:
    """Everything that ran on one device over the whole capture.

    A nanosecond is compute where any kernel that is not communication runs, or a CUDA graph traced as a
    whole (what is inside of it is unseen); see docs/ledger.md.
    """

    device: int
    kernel_rows: I64
    kernel_is_comm: Bool
    kernel_compute: Intervals
    """Kernels that are not communication."""
    kernel_comm: Intervals
    """Kernels that are."""
    compute: Intervals
    """kernel_compute and whole CUDA graphs."""
    comm: Intervals
    """kernel_comm and copies between GPUs."""
    copies: Intervals
    """Copies and sets that are not communication."""
    communication: Communication
    comm_rows: I64
    """For each row of `communication` the index into the columns below."""
    busy: Intervals
    start_ns: I64
    """Start of every activity, sorted."""
    end_ns: I64
    launch_start_ns: I64
    """Start of the call that launched each; -1 unknown."""
    launch_end_ns: I64
    launch_thread: I32
    stream: I64
    kernel: I32
    """Row of Trace.kernels; -1 for what is no kernel."""
    is_compute: Bool
    """Kernels that are not communication, and whole CUDA graphs."""
    on_host: bool = False
    """Whether this is a rank that trains on the CPU, so that host time is device time."""

    @property
    def span(self) -> tuple[int, int]:
        """First start and last end."""
        return int(self.start_ns[0]), int(self.end_ns.max())

    @cached_property
    def launching_threads(self) -> I64:
        """Indices of the threads that launched the device's work, ascending; -1 among them where some launch
        is unknown."""
        return np.flatnonzero(np.bincount(self.launch_thread + 1)) - 1


def without_launches(activity: Activity) -> Activity:
    """The same, of a file that holds only part of the events: what launched its work is not known."""
    unknown = np.full(len(activity.start_ns), -1, np.int64)
    thread = unknown.astype(np.int32)
    return replace(activity, launch_start_ns=unknown, launch_end_ns=unknown, launch_thread=thread)


def device_activity(trace: Trace, device: int, kinds: KernelKinds, launches: Launches) -> Activity | None:
    """The activity of one device; None where it ran neither kernels nor CUDA graphs."""
    k_rows = np.flatnonzero(trace.kernels.device == device)
    g_rows = np.flatnonzero(trace.graph_launches.device == device)
    c_rows = np.flatnonzero(trace.copies.device == device)
    if not len(k_rows) and not len(g_rows):
        return None
    k_start, k_end = picked(trace.kernels.start_ns, k_rows), picked(trace.kernels.end_ns, k_rows)
    g_start, g_end = trace.graph_launches.start_ns[g_rows], trace.graph_launches.end_ns[g_rows]
    c_start, c_end = trace.copies.start_ns[c_rows], trace.copies.end_ns[c_rows]
    is_comm = picked(kinds.is_communication, k_rows)
    is_peer = communicating_copies(trace, c_rows, launches)

    kernel_compute = union(*kept(~is_comm, k_start, k_end))
    kernel_comm = union(*kept(is_comm, k_start, k_end))
    compute = kernel_compute | union(g_start, g_end)
    communication, comm_order = _communication(trace, kinds, launches, k_rows[is_comm], c_rows[is_peer])
    comm = kernel_comm | union(c_start[is_peer], c_end[is_peer])
    copies = union(c_start[~is_peer], c_end[~is_peer])

    start = np.concatenate((k_start, g_start, c_start))
    order = np.argsort(start, kind="stable")
    sorted_at = np.empty(len(order), np.int64)
    sorted_at[order] = np.arange(len(order))
    unsorted_comm = np.concatenate(
        (np.flatnonzero(is_comm), len(k_rows) + len(g_rows) + np.flatnonzero(is_peer))
    )
    is_compute = np.concatenate((~is_comm, np.ones(len(g_rows), bool), np.zeros(len(c_rows), bool)))
    api_row = np.concatenate(
        (picked(launches.kernels, k_rows), launches.graph_launches[g_rows], launches.copies[c_rows])
    ).take(order)
    start, end = start.take(order), np.concatenate((k_end, g_end, c_end)).take(order)
    stream = picked(trace.kernels.stream, k_rows)
    launch_start, launch_end, launch_thread = (
        _pick(column, api_row)
        for column in (trace.api_calls.start_ns, trace.api_calls.end_ns, trace.api_calls.thread)
    )
    return Activity(
        device=device,
        kernel_rows=k_rows,
        kernel_is_comm=is_comm,
        kernel_compute=kernel_compute,
        kernel_comm=kernel_comm,
        compute=compute,
        comm=comm,
        copies=copies,
        communication=communication,
        comm_rows=sorted_at[unsorted_comm][comm_order],
        busy=union(start, end),
        start_ns=start,
        end_ns=end,
        launch_start_ns=launch_start,
        launch_end_ns=launch_end,
        launch_thread=launch_thread,
        stream=np.concatenate(
            (stream, trace.graph_launches.stream[g_rows], trace.copies.stream[c_rows])
        ).take(order),
        kernel=np.append(k_rows, np.full(len(g_rows) + len(c_rows), -1)).astype(np.int32).take(order),
        is_compute=is_compute.take(order),
    )


def _pick(column: np.ndarray, row: I64) -> np.ndarray:
    """Values at rows, -1 for row -1."""
    if not len(column):
        return np.full(len(row), -1, column.dtype)
    if row.min(initial=0) >= 0:
        return column.take(row)
    return np.where(row >= 0, column[np.maximum(row, 0)], -1)


def _communication(
    trace: Trace, kinds: KernelKinds, launches: Launches, kernels: I64, copies: I64
) -> tuple[Communication, I64]:
    """Kernels and peer copies by start time, nothing attributed yet; and the order that sorted them."""
    tables = ((trace.kernels, kernels), (trace.copies, copies))
    start, end, stream = (
        np.concatenate([getattr(table, column)[rows] for table, rows in tables])
        for column in ("start_ns", "end_ns", "stream")
    )
    order = np.argsort(start, kind="stable")
    api_row = np.concatenate((launches.kernels[kernels], launches.copies[copies]))[order]
    kind = np.concatenate((kinds.kind[kernels].astype(np.int64), np.full(len(copies), len(kinds.kinds))))
    none = np.full(len(start), -1, np.int64)
    communication = Communication(
        start_ns=start.take(order),
        end_ns=end[order],
        dimension=np.full(len(start), UNKNOWN_DIMENSION, np.int64),
        kind=kind[order],
        kinds=[*kinds.kinds, None],
        kernel=np.concatenate((kernels, np.full(len(copies), -1)))[order],
        stream=stream[order],
        launch_start_ns=_pick(trace.api_calls.start_ns, api_row),
        launch_thread=_pick(trace.api_calls.thread, api_row).astype(np.int64),
        evidence=np.full(len(start), EVIDENCE.index("none"), np.int64),
        payload=none,
        communicator=np.zeros(len(start), np.uint64),
        bytes=np.concatenate((none[: len(kernels)], trace.copies.bytes[copies]))[order],
        bytes_of_one_operation=np.zeros(len(start), bool),
        blocked_since_ns=None,
    )
    return communication, order
