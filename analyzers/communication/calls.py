"""The communication of one device in columns that other ranks' can be matched with.

It runs where the capture was read; the result is small and travels to the process that compares ranks.
"""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.base.rows import row_keys
from perfdoc.analyzers.communication.known_groups import CallGroup, known_groups
from perfdoc.analyzers.communication.payloads import peers_of_groups
from perfdoc.analyzers.device.activity import DIMENSIONS, UNKNOWN_DIMENSION, Communication
from perfdoc.analyzers.device.dimension_names import dimension_of_group
from perfdoc.analyzers.device.launches import group_sizes, innermost_at_launch
from perfdoc.analyzers.device.range_names import numbered, rows_on
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.kernel_class.rules import operation_of
from perfdoc.patterns import pattern_of
from perfdoc.profiling.distributed.collective_name import parse_collective
from perfdoc.profiling.vocabulary import COLLECTIVE_RUN
from perfdoc.records import dataclass
from perfdoc.traces import RangeKind, Trace
from perfdoc.traces.table import I8, I32, Bool, unique
from perfdoc.traces.validate import MAX_TIME_NS

__all__ = ["CallGroup", "CallRows", "device_rows", "host_rows"]

_TORCH_RANGE = r"nccl:([A-Za-z_]{1,40})(?:\b|,)"
"""The range that PyTorch opens around a collective's launch, `nccl:all_to_all` with whatever follows."""

_ENDS_BY_WAIT = frozenset({"send", "recv", "reduce_scatter", "coalesced", "gather", "scatter"})
"""Operations of which gloo's threads report no completion: measured with torch 2.13 (docs/ranks.md)."""


@dataclass(frozen=True, kw_only=True)
class CallRows:
    """Communication of one device by start time; -1 is unknown."""

    start_ns: I64
    end_ns: I64
    launch_ns: I64
    stream: I64
    operation: I64
    operations: tuple[str, ...]
    group: I64
    groups: tuple[CallGroup, ...]
    dimension: I64
    bytes: I64
    sequence: I64
    peer: I64
    end_is_exact: Bool


def device_rows(view: DeviceView) -> CallRows:
    """Communication of a GPU: kernels and copies between GPUs."""
    trace, comm = view.trace, view.activity.communication
    operation, operations = _operations(trace, comm)
    group, groups = _groups(view, comm)
    sequence = np.full(len(operation), -1, np.int64)
    peer = sequence.copy()
    if len(trace.payloads):
        one_way = _are(operation, operations, "send", "recv")
        row, known = np.maximum(comm.payload, 0), comm.payload >= 0
        # PyTorch numbers sends and receives apart, each side for itself: no number that both share. It says
        # the other side's global rank, and NCCL's own calls its rank within the communicator.
        sequence = np.where(known & ~one_way, trace.payloads.sequence[row], -1)
        peer = np.where(known & one_way, trace.payloads.peer[row], -1)
        grouped = np.flatnonzero(~known & (group >= 0) & _are(operation, operations, "send_recv"))
        if len(grouped):
            peer[grouped] = peers_of_groups(trace, comm, grouped)
        by_call = ~known | (trace.payloads.range[row] >= 0)
        for i, entry in enumerate(groups):
            if entry.ranks:
                mine = (group == i) & (peer >= 0) & by_call
                table = np.array((*entry.ranks, -1), np.int64)
                peer[mine] = table[np.minimum(peer[mine], len(entry.ranks))]
    return CallRows(
        start_ns=comm.start_ns,
        end_ns=comm.end_ns,
        launch_ns=comm.launch_start_ns,
        stream=comm.stream,
        operation=operation,
        operations=operations,
        group=group,
        groups=groups,
        dimension=comm.dimension,
        bytes=comm.bytes,
        sequence=sequence,
        peer=peer,
        end_is_exact=np.ones(len(operation), bool),
    )


def _are(operation: I64, operations: tuple[str, ...], *words: str) -> Bool:
    """Whether each operation is one of the words."""
    return np.isin(operation, [i for i, o in enumerate(operations) if o in words])


def _operations(trace: Trace, comm: Communication) -> tuple[I64, tuple[str, ...]]:
    """What each is: by its payload, else the kernel; a send/receive kernel by PyTorch's range at launch."""
    words: dict[str, int] = {}

    def code(word: str) -> int:
        return words.setdefault(word, len(words))

    of_kind = [code(k.collective or "unknown" if k is not None else "peer_copy") for k in comm.kinds]
    operation = np.array(of_kind, np.int64)[comm.kind] if of_kind else np.zeros(len(comm.kind), np.int64)
    if len(trace.payloads):
        spelled = trace.payloads.operation[np.maximum(comm.payload, 0)].astype(np.int64)
        for i in unique(spelled[comm.payload >= 0]).tolist():
            word = operation_of(trace.strings[i])
            if word is not None:
                operation[(comm.payload >= 0) & (spelled == i)] = code(word)
    ambiguous = operation == words.get("send_recv", -1)
    if ambiguous.any():
        named = {
            i: code(word)
            for i in trace.range_names_like(lambda name: name.startswith("nccl:"))
            if (found := pattern_of(_TORCH_RANGE).match(trace.strings[i])) is not None
            and (word := operation_of(found[1])) is not None
        }
        table = np.full(len(trace.strings), -1, np.int64)
        table[list(named)] = list(named.values())
        ranges = np.flatnonzero((table[trace.ranges.name] >= 0) & (trace.ranges.kind != RangeKind.MARK))
        at = innermost_at_launch(trace, ranges, comm)
        known = ambiguous & (at >= 0)
        operation[known] = table[trace.ranges.name[ranges[at[known]]]]
    return operation, tuple(words)


def _groups(view: DeviceView, comm: Communication) -> tuple[I64, tuple[CallGroup, ...]]:
    """The group of each by NCCL's communicator id and PyTorch's name and description of it."""
    payloads, strings = view.trace.payloads, view.trace.strings
    name = np.zeros(len(comm.payload), np.int64)
    if len(payloads):
        row = np.maximum(comm.payload, 0)
        pair = payloads.group_name[row].astype(np.int64) * len(strings) + payloads.group_description[row]
        name = np.where(comm.payload >= 0, pair, 0)
    first, code = row_keys(comm.communicator.view(np.int64), name)
    listed = known_groups(view)
    groups: list[CallGroup] = []
    index = np.full(len(first), -1, np.int64)
    for i, row_of_key in enumerate(first.tolist()):
        communicator, text = int(comm.communicator[row_of_key]), int(name[row_of_key])
        group_name, description = strings[text // len(strings)], strings[text % len(strings)]
        if communicator or group_name:
            index[i] = len(groups)
            groups.append(listed.find(communicator, group_name, description))
    return index[code], tuple(groups)


def host_rows(view: DeviceView) -> CallRows:
    """Collectives of a CPU rank whose completion is known, from the ranges that the trainer names; as in its
    ledger without those of groups that have one member."""
    from perfdoc.analyzers.device.cpu_rank import group_of, groups_of_one_rank

    trace = view.trace
    alone = groups_of_one_rank(trace, view.activity.device)
    wanted = {
        i: fact
        for i in trace.range_names_like(lambda name: name.startswith(COLLECTIVE_RUN))
        if (fact := parse_collective(trace.strings[i])) is not None
        and group_of(trace.strings[i]) not in alone
    }
    table = np.full(len(trace.strings), -1, np.int64)
    table[list(wanted)] = np.arange(len(wanted))
    threads = trace.threads_of(view.device.process)
    rows = np.flatnonzero((table[trace.ranges.name] >= 0) & ~trace.ranges.never_closed)
    rows = rows_on(trace, rows, threads)
    rows = rows[np.argsort(trace.ranges.start_ns[rows], kind="stable")]
    fact_of = table[trace.ranges.name[rows]]
    words: dict[str, int] = {}
    groups: dict[tuple[str, str], int] = {}
    columns = np.empty((len(wanted), 6), np.int64)
    for i, fact in enumerate(wanted.values()):
        dimension = fact.dimension or dimension_of_group(fact.group)
        columns[i] = (
            words.setdefault(fact.operation, len(words)),
            groups.setdefault((fact.group_name, fact.group), len(groups)),
            UNKNOWN_DIMENSION if dimension is None else DIMENSIONS.index(dimension),
            -1 if fact.bytes is None else fact.bytes,
            fact.sequence,
            -1 if fact.peer is None else fact.peer,
        )
    operation, group, dimension, size, sequence, peer = columns[fact_of].T
    listed = known_groups(view)
    by_wait = [i for w, i in words.items() if w in _ENDS_BY_WAIT]
    return CallRows(
        start_ns=trace.ranges.start_ns[rows],
        end_ns=trace.ranges.end_ns[rows],
        launch_ns=trace.ranges.start_ns[rows],
        stream=np.zeros(len(rows), np.int64),
        operation=operation,
        operations=tuple(words),
        group=group,
        groups=tuple(listed.find(0, name, description) for name, description in groups),
        dimension=dimension,
        bytes=size,
        sequence=sequence,
        peer=peer,
        end_is_exact=~np.isin(operation, by_wait),
    )


@dataclass(frozen=True, kw_only=True)
class CollectiveCalls:
    """All communication of one device over its whole capture, by start time."""

    clock: str
    """Path of the capture. Devices of one capture share its clock."""
    label: str
    """What to call it where its rank is not known."""
    process: int
    rank: int | None
    """Global rank, as the capture says; never from the file's name."""
    rank_evidence: str
    world_size: int | None
    utc_origin_ns: int | None
    """UTC of time 0 of the capture's clock; None unknown."""
    on_host: bool
    """A rank that trains on the CPU."""
    groups: tuple[CallGroup, ...]
    operations: tuple[str, ...]
    start_ns: I64
    """On the capture's own clock, like end_ns."""
    end_ns: I64
    group: I32
    """Index into `groups`; -1 where the capture does not say."""
    group_size: I32
    """Ranks that take part, where the call itself says so; -1 unknown."""
    operation: I32
    """Index into `operations`."""
    dimension: I8
    """Index into activity.DIMENSIONS."""
    bytes: I64
    """Message size; -1 unknown."""
    sequence: I64
    """Number within the group, the same on every member; -1 unknown."""
    peer: I32
    """Other side of a send or receive; -1 unknown. The global rank if `has_global_peers` or the group's ranks
    are known, else the rank within the group."""
    has_global_peers: bool
    """PyTorch tells the other side's global rank, NCCL its rank within the communicator."""
    lane: I32
    """Streams by their first communication, from 0."""
    step: I64
    """Number of the step that it was launched in; -1 unknown."""
    in_window: Bool
    """Whether it began inside the window."""
    end_is_exact: Bool
    """False where the end is only the end of a wait for it: sends, receives and reduce-scatters of gloo."""

    def __len__(self) -> int:
        return len(self.start_ns)


def collective_calls(view: DeviceView) -> CollectiveCalls:
    """The communication of a device, compact and picklable (about 70 bytes a row)."""
    activity, device, trace = view.activity, view.device, view.trace
    rows = host_rows(view) if activity.on_host else device_rows(view)
    window, origin, comm = view.window, trace.utc_origin_ns, activity.communication
    none = np.full(len(rows.group), -1)
    sizes = none if activity.on_host else group_sizes(trace, comm.payload, comm.communicator)
    return CollectiveCalls(
        clock=str(trace.path),
        label=f"device {device.ordinal} of process {device.process} in {trace.path.name}",
        process=device.process,
        rank=device.rank,
        rank_evidence=device.rank_evidence,
        world_size=trace.world_size or view.facts.world_size,
        # Further, and sums of two times leave the range of int64.
        utc_origin_ns=origin if origin is not None and 0 <= origin < MAX_TIME_NS else None,
        on_host=activity.on_host,
        groups=rows.groups,
        operations=rows.operations,
        start_ns=rows.start_ns,
        end_ns=rows.end_ns,
        group=rows.group.astype(np.int32),
        group_size=np.where(sizes < 2**31, sizes, -1).astype(np.int32),
        operation=rows.operation.astype(np.int32),
        dimension=rows.dimension.astype(np.int8),
        bytes=rows.bytes,
        sequence=rows.sequence,
        peer=np.where(rows.peer < 2**31, rows.peer, -1).astype(np.int32),
        has_global_peers=activity.on_host or trace.peers_are_global,
        lane=_lanes(rows.stream),
        step=_steps(view, rows),
        in_window=(rows.start_ns >= window.start_ns) & (rows.start_ns < window.end_ns),
        end_is_exact=rows.end_is_exact,
    )


def _lanes(stream: I64) -> I32:
    streams, first, code = np.unique(stream, return_index=True, return_inverse=True)
    position = np.empty(len(streams), np.int32)
    position[np.argsort(first)] = np.arange(len(streams), dtype=np.int32)
    return position[code.ravel()]


def _steps(view: DeviceView, rows: CallRows) -> I64:
    """Number of the last step to open before each launch; -1 where steps have no numbers."""
    steps, ranges = view.window.step_list, view.step_ranges
    found = [numbered(s.name) for s in steps]
    number = np.array([f[1] for f in found if f is not None and not f[2]], np.int64)
    # Numbers that come again (those of an epoch) name no step.
    if not steps or len(number) < len(steps) or (np.diff(number) <= 0).any():
        return np.full(len(rows.start_ns), -1, np.int64)
    at = np.searchsorted(ranges.start_ns, rows.launch_ns, "right") - 1
    inside = (at >= 0) & (rows.launch_ns >= 0) & (rows.launch_ns < ranges.end_ns[-1])
    return np.where(inside, number[np.maximum(at, 0)], -1)
