"""What the capture says of each communication: its payload, and the other side of grouped ones.

Kineto writes the facts on the kernel. Nsight has them on the host range of the NCCL call, and the kernel is
launched inside that range; unless the call stands in a group (ncclGroupStart … ncclGroupEnd), whose kernels
are launched by the outermost ncclGroupEnd and belong to what was queued since the outermost start, on that
thread. PyTorch's send/receive batches, all-to-all and coalesced collectives are such groups.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfdoc.analyzers.base.intervals import I64, exact_sum
from perfdoc.analyzers.device.activity import Activity, Communication
from perfdoc.analyzers.device.launches import innermost_at_launch
from perfdoc.analyzers.kernel_class.rules import operation_of
from perfdoc.patterns import pattern_of
from perfdoc.traces import RangeKind, Trace
from perfdoc.traces.table import U64, Bool, among, unique

NONE = -1
GROUP_START, GROUP_END = "ncclGroupStart", "ncclGroupEnd"


def with_payloads(trace: Trace, activity: Activity) -> Communication:
    """The device's communication with what payloads say of it: payload, communicator and bytes; and with
    all-to-alls named so.

    A group's kernel has a communicator whenever the group's members agree, and as bytes the sum of its
    members; a copy what it moves, since one call may make a copy for each of the other ranks.
    """
    comm = activity.communication
    payload = np.full(len(comm.kernel), NONE, np.int64)
    communicator = np.zeros(len(comm.kernel), np.uint64)
    size = comm.bytes.copy()
    alike = np.zeros(len(comm.kernel), bool)
    if len(trace.payloads):
        by_kernel = np.full(len(trace.kernels) + 1, NONE, np.int64)  # the last entry answers for kernel -1
        rows = np.flatnonzero(trace.payloads.kernel >= 0)
        by_kernel[trace.payloads.kernel[rows]] = rows
        payload = by_kernel[comm.kernel]
        in_call = _enclosing_call(trace, activity)
        payload = np.where(payload >= 0, payload, in_call)
        known = payload >= 0
        communicator[known] = trace.payloads.communicator[payload[known]]
        with_kernel = known & (comm.kernel >= 0)
        size[with_kernel] = trace.payloads.bytes[payload[with_kernel]]
        alike[with_kernel] = True
        _add_groups(trace, activity, payload, communicator, size, alike)
    comm = replace(comm, payload=payload, communicator=communicator, bytes=size, bytes_of_one_operation=alike)
    return _name_exchanges(trace, comm)


def _enclosing_call(trace: Trace, activity: Activity) -> I64:
    """Payload of the innermost NCCL call that was running at launch, on the launching thread."""
    rows = np.flatnonzero(trace.payloads.range >= 0)
    at = innermost_at_launch(trace, trace.payloads.range[rows], activity.communication)
    return np.where(at >= 0, rows[at], NONE) if len(rows) else at


def _add_groups(
    trace: Trace, activity: Activity, payload: I64, communicator: U64, size: I64, alike: Bool
) -> None:
    """Fill in the kernels that an ncclGroupEnd launched, from the calls queued in that group."""
    comm = activity.communication
    used = trace.range_names_like(lambda name: name in (GROUP_START, GROUP_END))
    names = {trace.strings[i]: i for i in used}
    if len(names) < 2:
        return
    name = trace.ranges.name
    edges = np.flatnonzero((name == names[GROUP_START]) | (name == names[GROUP_END]))
    calls = np.flatnonzero(trace.payloads.range >= 0)
    call_range = trace.payloads.range[calls]
    open_rows = np.flatnonzero((payload < 0) & (comm.kernel >= 0))
    for thread in unique(comm.launch_thread[comm.launch_thread >= 0]).tolist():
        rows, launch_ns = _by_time(open_rows[comm.launch_thread[open_rows] == thread], comm.launch_start_ns)
        queue = np.flatnonzero(trace.ranges.thread[call_range] == thread)
        queue, call_ns = _by_time(queue, trace.ranges.start_ns[call_range])
        for start, end_start, end_end in outermost_groups(trace, edges[trace.ranges.thread[edges] == thread]):
            launched = rows[slice(*np.searchsorted(launch_ns, (end_start, end_end), "left"))]
            queued = calls[queue[slice(*np.searchsorted(call_ns, (start, end_start), "left"))]]
            if not len(launched) or not len(queued):
                continue
            ids = unique(trace.payloads.communicator[queued])
            if len(ids) == 1:
                communicator[launched] = ids[0]
                sizes = trace.payloads.bytes[queued]
                if len(launched) == 1 and (sizes >= 0).all():
                    size[launched] = min(exact_sum(sizes), np.iinfo(np.int64).max)
                    alike[launched] = len(unique(trace.payloads.operation[queued])) == 1


def _by_time(rows: I64, time_ns: I64) -> tuple[I64, I64]:
    """Rows in the order of their times, and those times."""
    rows = rows[np.argsort(time_ns[rows], kind="stable")]
    return rows, time_ns[rows]


def outermost_groups(trace: Trace, edges: I64) -> list[tuple[int, int, int]]:
    """Outermost groups of one thread: start of the group, start and end of the call that ends it.

    edges: the thread's ranges that are called GROUP_START or GROUP_END.
    """
    found = []
    depth, opened = 0, 0
    for row in edges[np.argsort(trace.ranges.start_ns[edges], kind="stable")].tolist():
        if trace.strings[trace.ranges.name[row]] == GROUP_START:
            opened = int(trace.ranges.start_ns[row]) if depth == 0 else opened
            depth += 1
        elif depth > 0:
            depth -= 1
            if depth == 0:
                found.append((opened, int(trace.ranges.start_ns[row]), int(trace.ranges.end_ns[row])))
    return found


_NOBODY = np.iinfo(np.int64).max


def peers_of_groups(trace: Trace, comm: Communication, rows: I64) -> I64:
    """For each of the rows the one peer of all calls that were queued in the group that launched it; -1 where
    they name several or none, or the group launched more than this kernel."""
    least, most, *_ = _peers(trace, comm, rows)
    return np.where(least == most, most, -1)


def ways_of(trace: Trace, comm: Communication, rows: I64) -> tuple[I64, I64]:
    """For each of the rows how many sends and how many receives it runs, by its own notes, else by the calls
    in the group that launched it; 0 and 0 where nothing says."""
    *_, sends, receives = _peers(trace, comm, rows)
    own = np.flatnonzero(comm.payload[rows] >= 0)
    way = _ways(trace)[trace.payloads.operation[comm.payload[rows[own]]]]
    sends[own], receives[own] = way == _SENDS, way == _RECEIVES
    return sends, receives


_SENDS, _RECEIVES = 1, 2


def _ways(trace: Trace) -> I64:
    """By string, whether an operation of this name sends or receives."""
    way = np.zeros(len(trace.strings), np.int64)
    for i in unique(trace.payloads.operation).tolist():
        word = operation_of(trace.strings[i])
        way[i] = _SENDS if word == "send" else _RECEIVES if word == "recv" else 0
    return way


def _peers(trace: Trace, comm: Communication, rows: I64) -> tuple[I64, I64, I64, I64, I64]:
    """Least and greatest peer (-1 none) of the calls in the group that launched each row, how many peers (0
    where none is known, or the group launched more than this kernel), and how many sends and receives."""
    least, most, count, sends, receives = (np.full(len(rows), fill, np.int64) for fill in (-1, -1, 0, 0, 0))
    way_of = _ways(trace)
    names = trace.range_names_like(lambda name: name in (GROUP_START, GROUP_END))
    edges = np.flatnonzero(among(trace.ranges.name, names))
    calls = np.flatnonzero((trace.payloads.range >= 0) & (trace.payloads.peer >= 0))
    call_range = trace.payloads.range[calls]
    for thread in unique(comm.launch_thread[rows]).tolist():
        groups = outermost_groups(trace, edges[trace.ranges.thread[edges] == thread])
        if thread < 0 or not groups:
            continue
        start, end_start, end_end = np.array(groups, np.int64).T
        queued = calls[trace.ranges.thread[call_range] == thread]
        queued_ns = trace.ranges.start_ns[trace.payloads.range[queued]]
        of_call = np.searchsorted(start, queued_ns, "right") - 1
        inside = (of_call >= 0) & (queued_ns < end_start[of_call])
        of_call, peer = of_call[inside], trace.payloads.peer[queued[inside]].astype(np.int64)
        way = way_of[trace.payloads.operation[queued[inside]]]
        sent, received = (np.bincount(of_call[way == w], minlength=len(start)) for w in (_SENDS, _RECEIVES))
        lowest, highest = np.full(len(start), _NOBODY), np.full(len(start), -1)
        np.minimum.at(lowest, of_call, peer)
        np.maximum.at(highest, of_call, peer)
        first, peers = peer.min(initial=0), np.ptp(np.append(peer, 0)) + 1
        each = unique(of_call * peers + peer - first)
        different = np.bincount(each // peers, minlength=len(start))

        mine = np.flatnonzero(comm.launch_thread[rows] == thread)
        launch_ns = comm.launch_start_ns[rows[mine]]
        of_row = np.searchsorted(end_start, launch_ns, "right") - 1
        launched = (of_row >= 0) & (launch_ns < end_end[of_row])
        kernels = np.bincount(of_row[launched], minlength=len(start))
        known = launched & (highest[of_row] >= 0) & (kernels[of_row] == 1)
        least[mine[known]], most[mine[known]] = lowest[of_row[known]], highest[of_row[known]]
        count[mine[known]] = different[of_row[known]]
        sends[mine[known]], receives[mine[known]] = sent[of_row[known]], received[of_row[known]]
    return least, most, count, sends, receives


NEIGHBOURS = 2
"""Of a rank in a pipeline or a ring: a group that speaks with more ranks is an exchange among all."""
_SAID = r"(?i)(?<![a-z])all[ _-]?(?:to|2)[ _-]?all(?:[ _-]?v)?(?![a-z])|(?<![a-z])a2a(?![a-z])|alltoall"


def _name_exchanges(trace: Trace, comm: Communication) -> Communication:
    """The same, with send/receive kernels of an all-to-all named so: their names are those of a pipeline's
    messages.

    NCCL has no kernel for an all-to-all: PyTorch sends to every rank and receives from every rank in one
    group. What tells is the operation on the kernel, a range around its launch, or a group of calls with more
    than two peers: a stage of a pipeline has two neighbours, and so has a rank of a ring.
    """
    kinds = list(comm.kinds)
    ambiguous = [i for i, k in enumerate(kinds) if k is not None and k.collective == "send_recv"]
    rows = np.flatnonzero(among(comm.kind, ambiguous))
    if not len(rows):
        return comm
    is_exchange = _by_operation(trace, comm.payload) | _by_range(trace, comm)
    is_exchange[rows] |= _peers(trace, comm, rows)[2] > NEIGHBOURS
    rows = rows[is_exchange[rows]]
    kind = comm.kind.copy()
    for i in unique(kind[rows]).tolist():
        known = kinds[i]
        assert known is not None  # a copy is no send/receive kernel
        kind[rows[comm.kind[rows] == i]] = len(kinds)
        kinds.append(replace(known, collective="all_to_all"))
    return replace(comm, kind=kind, kinds=kinds)


def _by_operation(trace: Trace, payload: I64) -> Bool:
    """PyTorch writes the operation on the kernel."""
    known = payload >= 0
    if not known.any():
        return known
    operation = trace.payloads.operation[np.maximum(payload, 0)]
    names = [i for i in unique(operation[known]).tolist() if pattern_of(_SAID).search(trace.strings[i])]
    return known & among(operation, names)


def _by_range(trace: Trace, comm: Communication) -> Bool:
    """Inside a range that says so: PyTorch's `nccl:all_to_all`, `c10d::alltoall_base_`, or a user's."""
    names = trace.range_names_like(lambda name: _may_say(name) and pattern_of(_SAID).search(name[:512]))
    ranges = np.flatnonzero(among(trace.ranges.name, names) & (trace.ranges.kind != RangeKind.MARK))
    if not len(ranges):
        return np.zeros(len(comm.kind), bool)
    return innermost_at_launch(trace, ranges, comm) >= 0


def _may_say(name: str) -> bool:
    lower = name[:512].lower()
    return "a2a" in lower or "all" in lower
