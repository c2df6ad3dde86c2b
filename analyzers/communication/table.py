"""The communication table of one device: what compute hides and what is exposed, by kind and message size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from perfdoc.analyzers.base.intervals import I64, Intervals, exact_sum, union
from perfdoc.analyzers.base.rows import row_keys
from perfdoc.analyzers.device.activity import DIMENSIONS, EVIDENCE, PEER_COPY, Activity, Communication
from perfdoc.analyzers.device.launches import group_sizes
from perfdoc.results.ranks import Communication as CommunicationRow
from perfdoc.results.ranks import MessageSizes
from perfdoc.traces import Trace
from perfdoc.traces.table import unique

SMALL_BYTES = 1 << 20
"""Up to here a collective takes about as long as its latency: at 100 GB/s 1 MiB moves in 10 us, and over
several nodes it takes 20 us or more however little it moves."""
BOUNDS_BYTES = (1 << 16, SMALL_BYTES, 1 << 24)
"""Upper bounds of the classes of message size; the last class has none."""


def message_sizes(
    comm: Communication, rows: I64, compute: Intervals, start_ns: int, end_ns: int
) -> list[MessageSizes]:
    """These rows by class of message size, ascending; those of unknown size are in none."""
    size = comm.bytes[rows]
    group = np.searchsorted(BOUNDS_BYTES, size, "left")
    found = []
    for index, most in enumerate((*BOUNDS_BYTES, None)):
        mine = rows[(group == index) & (size >= 0)]
        if len(mine):
            covered = union(comm.start_ns[mine], comm.end_ns[mine]).clip(start_ns, end_ns)
            exposed = covered.total_ns - compute.overlap_ns(covered)
            found.append(MessageSizes(most_bytes=most, count=len(mine), exposed_ns=exposed))
    return found


MAX_GROUPS = 256
"""Groups with rows of their own, those that communicate longest; the others share rows. A job has a few for
each rank, a hostile trace as many as it has kernels."""


def communication_table(
    trace: Trace, activity: Activity, start_ns: int, end_ns: int
) -> list[CommunicationRow]:
    """Rows by falling exposed time: one for each dimension, transport, collective, evidence and group.

    Rows of one dimension may overlap one another in time, so they sum to at least the dimension's own union.
    """
    comm = activity.communication
    # A zero-length row counts too: it moved something in less than a tick of the clock.
    instant = comm.start_ns == comm.end_ns
    inside = np.flatnonzero(
        (comm.start_ns < end_ns) & ((comm.end_ns > start_ns) | (instant & (comm.start_ns >= start_ns)))
    )
    if not len(inside):
        return []
    group_names, group = _groups(trace, comm, inside)
    labels = [
        (k.transport, k.collective, k.element_type) if k else (PEER_COPY, "peer_copy", "") for k in comm.kinds
    ]
    distinct_labels = sorted(set(labels))
    label = np.array([distinct_labels.index(x) for x in labels], np.int64)[comm.kind[inside]]
    keys = (comm.dimension[inside], label, comm.evidence[inside], group)
    example, member = row_keys(*keys)
    compute = activity.compute.clip(start_ns, end_ns)
    size = group_sizes(trace, comm.payload, comm.communicator)
    rows = []
    order = np.argsort(member, kind="stable")
    firsts = np.searchsorted(member[order], np.arange(1, len(example)))
    for (dimension, label_index, evidence, group_index), at in zip(
        zip(*(key[example].tolist() for key in keys), strict=True), np.split(order, firsts), strict=True
    ):
        mine = inside[at]
        covered = union(comm.start_ns[mine], comm.end_ns[mine]).clip(start_ns, end_ns)
        hidden = compute.overlap_ns(covered)
        transport, collective, element_type = distinct_labels[label_index]
        rows.append(
            CommunicationRow(
                dimension=DIMENSIONS[dimension],
                transport=transport,
                collective=collective,
                element_type=element_type,
                group=group_names[group_index],
                count=len(mine),
                total_ns=covered.total_ns,
                hidden_ns=hidden,
                exposed_ns=covered.total_ns - hidden,
                blocking_ns=_blocking_ns(comm, mine, compute, start_ns, end_ns),
                bytes=None if (comm.bytes[mine] < 0).any() else exact_sum(comm.bytes[mine]),
                bus_bandwidth_gbps=bus_bandwidth_gbps(
                    collective,
                    comm.bytes[mine],
                    np.where(comm.bytes_of_one_operation[mine], size[mine], -1),
                    comm.end_ns[mine] - comm.start_ns[mine],
                ),
                evidence=EVIDENCE[evidence],
                sizes=message_sizes(comm, mine, compute, start_ns, end_ns),
            )
        )
    return sorted(rows, key=lambda r: (-r.exposed_ns, -r.total_ns, r.transport, r.collective, r.group))


def _groups(trace: Trace, comm: Communication, rows: I64) -> tuple[list[str], I64]:
    """Names of groups, and for each row the index of its group's name: PyTorch's description, else its name,
    else NCCL's communicator id in hexadecimal, else nothing."""
    names = [""]
    index = np.zeros(len(rows), np.int64)
    payload = comm.payload[rows]

    def add(identity: np.ndarray, name_of: Callable[[int], str]) -> None:
        known = np.flatnonzero(identity > 0)
        values, at = np.unique(identity[known], return_inverse=True)
        index[known] = at + len(names)
        names.extend(name_of(i) for i in values.tolist())

    if len(trace.payloads):
        at = np.maximum(payload, 0)
        for column in (trace.payloads.group_name, trace.payloads.group_description):
            add(np.where(payload >= 0, column[at], 0), trace.strings.__getitem__)
    add(np.where(index == 0, comm.communicator[rows], np.uint64(0)), "0x{:016x}".format)
    used = unique(index)
    if len(used) <= MAX_GROUPS:
        return names, index
    # The groups with most communication keep their names.
    time = np.bincount(index, weights=comm.end_ns[rows] - comm.start_ns[rows], minlength=len(names))
    kept = np.zeros(len(names), bool)
    kept[used[np.argsort(-time[used], kind="stable")[:MAX_GROUPS]]] = True
    names.append(f"({len(used) - MAX_GROUPS:,} other groups)")
    return names, np.where(kept[index], index, len(names) - 1)


def _blocking_ns(
    comm: Communication, rows: I64, compute: Intervals, start_ns: int, end_ns: int
) -> int | None:
    """Union of the stretches in which compute waited for any of the rows, less what other compute ran."""
    if comm.blocked_since_ns is None:
        return None
    begin = np.maximum(comm.start_ns[rows], comm.blocked_since_ns[rows])
    waited = begin < comm.end_ns[rows]
    stretch = union(begin[waited], comm.end_ns[rows][waited]).clip(start_ns, end_ns)
    return stretch.total_ns - compute.overlap_ns(stretch)


_FACTORS: Mapping[str, Callable[[float], float]] = MappingProxyType(
    {
        "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
        "all_gather": lambda ranks: ranks - 1,
        "reduce_scatter": lambda ranks: ranks - 1,
        "all_to_all": lambda ranks: ranks - 1,
        "broadcast": lambda ranks: 1.0,
        "reduce": lambda ranks: 1.0,
    }
)


def bus_bandwidth_gbps(collective: str, size_bytes: I64, group_size: I64, duration_ns: I64) -> float | None:
    """10^9 bytes a second over the operations' own durations, waiting for late ranks included.

    Factors as nccl-tests defines them (doc/PERFORMANCE.md), for sizes as docs/formats.md counts them: the
    whole buffer for all-reduce and broadcast, one rank's part for all-gather and reduce-scatter, one peer's
    for all-to-all.

    None unless size and group of every one are known, the group has others in it, and the collective has a
    factor. 8 ranks all-reduce 1 GB in 10 ms: 1 GB x 2 x 7/8 / 10 ms = 175 GB/s.
    """
    factor = _FACTORS.get(collective)
    total_ns = exact_sum(duration_ns)
    if factor is None or total_ns <= 0 or (size_bytes < 0).any() or (group_size < 2).any():
        return None
    moved = sum(
        factor(float(ranks)) * exact_sum(size_bytes[group_size == ranks])
        for ranks in unique(group_size).tolist()
    )
    return moved / total_ns
