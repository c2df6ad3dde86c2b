"""Messages between pipeline stages on one device, and what the device waited for each of them.

A kernel of NCCL that receives spins until its peer has sent, so its duration is waiting and transfer in one.
How long the device stood still for it shows where nothing else ran until it ended.
"""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.base.intervals import I64, Intervals, union
from perfdoc.analyzers.communication.calls import host_rows
from perfdoc.analyzers.communication.payloads import GROUP_END, GROUP_START, outermost_groups
from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.device.idle import LAUNCH_LATENCY_MAX_NS
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.kernel_class.rules import operation_of
from perfdoc.records import dataclass
from perfdoc.traces.model import UNKNOWN
from perfdoc.traces.table import Bool

PP = DIMENSIONS.index("pp")


@dataclass(frozen=True, kw_only=True)
class Messages:
    """Pipeline communication of a device by start time. A row is a kernel (on a CPU rank a call), which may
    carry several messages; those are the parts."""

    launch_ns: I64
    """On the host; -1 unknown."""
    start_ns: I64
    end_ns: I64
    wait_ns: I64
    """Since when nothing else ran until it ended; its end where something else still did."""
    gap_before_ns: I64
    """Idle between what ran before and this, though it had been launched."""
    gap_after_ns: I64
    """Idle between this and what ran next, though that had been launched."""
    bytes: I64
    """-1 unknown."""
    part_row: I64
    part_sends: Bool
    part_peer: I64
    """Global rank on a CPU rank, else the rank within the communicator."""
    part_number: I64
    """The same on both sides of a message, within its channel and way; -1 unknown."""
    part_channel: I64
    """Index into `channels`."""
    channels: tuple[int | str, ...]
    """NCCL's communicator id; on a CPU rank the group's description."""

    def __len__(self) -> int:
        return len(self.start_ns)


_NONE = np.empty(0, np.int64)
_NO_MESSAGES = Messages(
    launch_ns=_NONE,
    start_ns=_NONE,
    end_ns=_NONE,
    wait_ns=_NONE,
    gap_before_ns=_NONE,
    gap_after_ns=_NONE,
    bytes=_NONE,
    part_row=_NONE,
    part_sends=np.empty(0, bool),
    part_peer=_NONE,
    part_number=_NONE,
    part_channel=_NONE,
    channels=(),
)


def find_messages(view: DeviceView) -> Messages:
    """The pipeline communication of a device over the whole capture."""
    return _of_host(view) if view.activity.on_host else _of_device(view)


def _of_device(view: DeviceView) -> Messages:
    activity, comm = view.activity, view.activity.communication
    rows = np.flatnonzero(comm.dimension == PP)
    if not len(rows):
        return _NO_MESSAGES
    start, end = comm.start_ns[rows], comm.end_ns[rows]
    others = activity.compute | activity.copies | _union(view, comm.dimension != PP)
    returned = activity.launch_end_ns[activity.comm_rows[rows]]
    before, after = _gaps(view, start, end, returned)
    part_row, sends, peer, communicator = _parts(view, rows)
    ids, channel = np.unique(communicator, return_inverse=True)
    return Messages(
        launch_ns=comm.launch_start_ns[rows],
        start_ns=start,
        end_ns=end,
        wait_ns=_waits(start, end, others),
        gap_before_ns=before,
        gap_after_ns=after,
        bytes=comm.bytes[rows],
        part_row=part_row,
        part_sends=sends,
        part_peer=peer,
        # PyTorch counts the calls of each side by itself: no number that both share.
        part_number=np.full(len(peer), UNKNOWN, np.int64),
        part_channel=channel.ravel().astype(np.int64),
        channels=tuple(ids.tolist()),
    )


def _union(view: DeviceView, mask: Bool) -> Intervals:
    comm = view.activity.communication
    return union(comm.start_ns[mask], comm.end_ns[mask])


def _of_host(view: DeviceView) -> Messages:
    calls = host_rows(view)
    rows = np.flatnonzero(calls.dimension == PP)
    if not len(rows):
        return _NO_MESSAGES
    start, end = calls.start_ns[rows], calls.end_ns[rows]
    others = view.activity.compute | _union(view, view.activity.communication.dimension != PP)
    words = (*calls.operations, "")
    one_way = np.array([w in ("send", "recv") for w in words], bool)[calls.operation[rows]]
    parts = np.flatnonzero(one_way & (calls.peer[rows] >= 0))
    names = [g.description or g.name for g in calls.groups]
    channels = tuple(dict.fromkeys(names))
    channel_of = np.array([*(channels.index(n) for n in names), UNKNOWN], np.int64)
    nothing = np.zeros(len(rows), np.int64)
    return Messages(
        launch_ns=start,
        start_ns=start,
        end_ns=end,
        wait_ns=_waits(start, end, others),
        gap_before_ns=nothing,
        gap_after_ns=nothing,
        bytes=calls.bytes[rows],
        part_row=parts,
        part_sends=np.array([w == "send" for w in words], bool)[calls.operation[rows[parts]]],
        part_peer=calls.peer[rows[parts]],
        part_number=calls.sequence[rows[parts]],
        part_channel=channel_of[calls.group[rows[parts]]],
        channels=channels,
    )


def _waits(start: I64, end: I64, others: Intervals) -> I64:
    """Since when nothing of the others ran until each end; the end where something did."""
    if not len(others):
        return start
    last = np.searchsorted(others.end_ns, end, "right") - 1
    dry = np.where(last >= 0, others.end_ns[np.maximum(last, 0)], start)
    hidden = others.covered_within(end - 1, end) > 0
    return np.where(hidden, end, np.minimum(np.maximum(start, dry), end))


def _gaps(view: DeviceView, start: I64, end: I64, returned: I64) -> tuple[I64, I64]:
    """Short idle times on either side of each row with the work already launched; one between two rows
    counts once, before the later one."""
    activity = view.activity
    busy, first = activity.busy, activity.start_ns
    last = np.searchsorted(busy.end_ns, start, "right") - 1
    dry = np.where(last >= 0, busy.end_ns[np.maximum(last, 0)], start)
    dry = np.where(busy.covered_within(start - 1, start) > 0, start, dry)
    before = start - np.clip(np.maximum(returned, dry), dry, start)
    before[(returned < 0) | (before > LAUNCH_LATENCY_MAX_NS)] = 0

    following = np.searchsorted(first, end, "left")
    exists = following < len(first)
    following = np.minimum(following, len(first) - 1)
    resumes = np.where(exists & (busy.covered_within(end, end + 1) == 0), first[following], end)
    launched = activity.launch_end_ns[following]
    after = resumes - np.clip(np.maximum(launched, end), end, resumes)
    after[(launched < 0) | (after > LAUNCH_LATENCY_MAX_NS) | np.isin(resumes, start)] = 0
    return before, after


def _parts(view: DeviceView, rows: I64) -> tuple[I64, Bool, I64, I64]:
    """(row, whether it sends, peer, communicator) of every message that the capture tells of."""
    trace, comm = view.trace, view.activity.communication
    payloads = trace.payloads
    ways = {
        int(i): word
        for i in np.unique(payloads.operation).tolist()
        if (word := operation_of(trace.strings[i])) in ("send", "recv")
    }
    way = np.full(len(trace.strings) + 1, UNKNOWN, np.int64)
    way[list(ways)] = [w == "send" for w in ways.values()]
    if not ways:
        return _NONE, _NONE.astype(bool), _NONE, _NONE
    # A kernel with a payload of its own is one message.
    own = np.flatnonzero(comm.payload[rows] >= 0)
    at, row = [own], [comm.payload[rows[own]]]
    for thread in np.unique(comm.launch_thread[rows]).tolist():
        grouped, calls = _of_groups(view, rows, thread)
        at.append(grouped)
        row.append(calls)
    part, payload = np.concatenate(at), np.concatenate(row)
    known = (way[payloads.operation[payload]] >= 0) & (payloads.peer[payload] >= 0)
    part, payload = part[known], payload[known]
    order = np.argsort(part, kind="stable")
    part, payload = part[order], payload[order]
    return (
        part,
        way[payloads.operation[payload]] == 1,
        payloads.peer[payload],
        payloads.communicator[payload].view(np.int64),
    )


def _of_groups(view: DeviceView, rows: I64, thread: int) -> tuple[I64, I64]:
    """Pairs (position in rows, payload) of the kernels that a group call launched on a thread."""
    trace, comm = view.trace, view.activity.communication
    ranges = trace.ranges
    names = trace.range_names_like(lambda name: name in (GROUP_START, GROUP_END))
    edges = np.flatnonzero(np.isin(ranges.name, names) & (ranges.thread == thread))
    groups = outermost_groups(trace, edges) if thread >= 0 else []
    if not groups:
        return _NONE, _NONE
    start, end_start, end_end = np.array(groups, np.int64).T
    queue = np.flatnonzero(trace.payloads.range >= 0)
    queue = queue[ranges.thread[trace.payloads.range[queue]] == thread]
    called = ranges.start_ns[trace.payloads.range[queue]]
    group = np.searchsorted(start, called, "right") - 1
    inside = (group >= 0) & (called < end_start[np.maximum(group, 0)])
    queue, group = queue[inside], group[inside]

    mine = np.flatnonzero((comm.payload[rows] < 0) & (comm.launch_thread[rows] == thread))
    launched = comm.launch_start_ns[rows[mine]]
    ended = np.searchsorted(end_start, launched, "right") - 1
    inside = (ended >= 0) & (launched < end_end[np.maximum(ended, 0)])
    mine, ended = mine[inside], ended[inside]
    # A group that launched several kernels does not tell which of its messages is in which.
    single = np.bincount(ended, minlength=len(start)) == 1
    kernel_of = np.full(len(start), UNKNOWN, np.int64)
    kernel_of[ended] = mine
    useful = single[group] & (kernel_of[group] >= 0)
    return kernel_of[group[useful]], queue[useful]
