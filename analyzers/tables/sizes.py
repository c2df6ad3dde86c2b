"""Collectives by message size over all ranks, and the bandwidth that each size reaches."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

import numpy as np

from perfdoc.analyzers.base.intervals import I64, exact_sum
from perfdoc.analyzers.base.rows import row_keys
from perfdoc.analyzers.communication.calls import CollectiveCalls
from perfdoc.analyzers.communication.matches import Matches
from perfdoc.analyzers.communication.table import bus_bandwidth_gbps
from perfdoc.analyzers.device.activity import DIMENSIONS, PEER_COPY
from perfdoc.analyzers.device.launches import group_sizes
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.records import dataclass
from perfdoc.results.tables import CollectiveSize
from perfdoc.traces import Payloads
from perfdoc.traces.table import I32, Bool, Table, hashed, unique

UNKNOWN = -1
DISTINCT_SIZES = 8
"""Of a kind of collective; of more than that a row is for sizes from one power of two to the next."""
_POWERS = 2 ** np.arange(63, dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class SentBytes:
    """Of all-to-alls, to all ranks, itself included; -1 is unknown, and other calls."""

    sent_bytes: I64
    received_bytes: I64
    most_sent_bytes: I64


@dataclass(frozen=True, kw_only=True)
class SizedCalls:
    """Columns beside those of CollectiveCalls; -1 is unknown."""

    transports: tuple[str, ...]
    transport: I32
    """Index into `transports`."""
    group_size: I32
    is_one_operation: Bool
    """Whether `bytes` is of operations of one kind."""
    exchanged: SentBytes | None
    """None where nothing is known of any call."""


def sized_calls(view: DeviceView, calls: CollectiveCalls) -> SizedCalls:
    """What sizes and bandwidths need of the communication of a device."""
    comm, count = view.activity.communication, len(calls)
    of_group = np.array([*(g.size or UNKNOWN for g in calls.groups), UNKNOWN], np.int64)
    listed = of_group[calls.group]
    if view.activity.on_host:
        from perfdoc.analyzers.device.cpu_rank import TRANSPORT

        return SizedCalls(
            transports=(TRANSPORT,),
            transport=np.zeros(count, np.int32),
            group_size=_narrow(listed),
            is_one_operation=np.ones(count, bool),
            exchanged=None,
        )
    words, of_kind = hashed([k.transport if k else PEER_COPY for k in comm.kinds])
    payloads = view.trace.payloads
    size = group_sizes(view.trace, comm.payload, comm.communicator)
    transport = of_kind.astype(np.int32)[comm.kind] if words else np.full(count, UNKNOWN, np.int32)
    return SizedCalls(
        transports=tuple(words),
        transport=transport,
        group_size=_narrow(np.where(size > 0, size, listed)),
        is_one_operation=comm.bytes_of_one_operation.astype(bool),
        exchanged=_exchanged(payloads, comm.payload) if len(payloads) else None,
    )


def _narrow(group_size: I64) -> I32:
    """No job has more ranks; a hostile trace may say so."""
    known = (group_size >= 0) & (group_size < 2**31)
    return np.where(known, group_size, UNKNOWN).astype(np.int32)


def _exchanged(payloads: Payloads, of_call: I64) -> SentBytes | None:
    known, row = of_call >= 0, np.maximum(of_call, 0)
    sent, received, most = (
        np.where(known, column[row], UNKNOWN)
        for column in (payloads.sent_bytes, payloads.received_bytes, payloads.most_sent_bytes)
    )
    if all((column == UNKNOWN).all() for column in (sent, received, most)):
        return None
    return SentBytes(sent_bytes=sent, received_bytes=received, most_sent_bytes=most)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Operations(Table):
    """Operations of known size inside the windows, of all ranks."""

    dimension: I64
    collective: I64
    transport: I64
    bytes: I64
    group_size: I64
    """UNKNOWN too where the size adds up operations of several kinds."""
    own_ns: I64
    transfer_ns: I64
    """UNKNOWN where it was not matched."""


def collective_sizes(
    calls: Sequence[CollectiveCalls],
    sized: Sequence[SizedCalls],
    matches: Matches,
    contradicted: Set[int] = frozenset(),
) -> list[CollectiveSize]:
    """Rows of all ranks together. calls, sized: of every rank, in the order of the matches' members.
    contradicted: groups of `matches` that were matched wrongly."""
    words: dict[str, int] = {}
    transfers = _transfers(calls, matches, contradicted)
    parts = [_operations(c, s, t, words) for c, s, t in zip(calls, sized, transfers, strict=True)]
    ops = _Operations.joined(parts)
    texts = list(words)
    first, kind = row_keys(ops.dimension, ops.collective, ops.transport)
    found = []
    for k, example in enumerate(first.tolist()):
        mine = np.flatnonzero(kind == k)
        names = (
            DIMENSIONS[ops.dimension[example]],
            texts[ops.collective[example]],
            texts[ops.transport[example]],
        )
        size = ops.bytes[mine]
        group = size
        if len(unique(size)) > DISTINCT_SIZES:
            group = np.searchsorted(_POWERS, size, "right")
        found.append([_row(ops, mine[group == g], *names) for g in unique(group).tolist()])
    found.sort(key=lambda rows: -sum(row.total_ns for row in rows))
    return _with_best([row for rows in found for row in rows])


def _operations(
    calls: CollectiveCalls, sized: SizedCalls, transfer_ns: I64, words: dict[str, int]
) -> _Operations:
    rows = np.flatnonzero(calls.in_window & (calls.bytes >= 0) & calls.end_is_exact & (sized.group_size != 1))
    collective = np.array([words.setdefault(w, len(words)) for w in calls.operations], np.int64)
    transport = np.array([words.setdefault(w, len(words)) for w in sized.transports], np.int64)
    return _Operations(
        dimension=calls.dimension[rows].astype(np.int64),
        collective=collective[calls.operation[rows]],
        transport=transport[sized.transport[rows]],
        bytes=calls.bytes[rows],
        group_size=np.where(sized.is_one_operation[rows], sized.group_size[rows], UNKNOWN).astype(np.int64),
        own_ns=(calls.end_ns - calls.start_ns)[rows],
        transfer_ns=transfer_ns[rows],
    )


def _transfers(calls: Sequence[CollectiveCalls], matches: Matches, contradicted: Set[int]) -> list[I64]:
    """By rank, for each of its rows: the shortest duration of the collective over its ranks, which no late
    rank made longer; UNKNOWN where it was not matched whole."""
    found = [np.full(len(c), UNKNOWN, np.int64) for c in calls]
    if not len(matches):
        return found
    own, exact = np.empty(len(matches.row), np.int64), np.empty(len(matches.row), bool)
    for rank, mine in zip(calls, matches.of_member, strict=True):
        rows = matches.row[mine]
        own[mine] = rank.end_ns[rows] - rank.start_ns[rows]
        exact[mine] = rank.end_is_exact[rows]
    first = matches.first[:-1]
    whole = np.logical_and.reduceat(exact, first) & matches.is_complete
    whole &= ~np.isin(matches.group, list(contradicted))
    transfer = np.where(whole, np.minimum.reduceat(own, first), UNKNOWN)[matches.collective]
    for rank_found, mine in zip(found, matches.of_member, strict=True):
        rank_found[matches.row[mine]] = transfer[mine]
    return found


def _row(ops: _Operations, rows: I64, dimension: str, collective: str, transport: str) -> CollectiveSize:
    size, group, own = ops.bytes[rows], ops.group_size[rows], ops.own_ns[rows]
    known = ops.transfer_ns[rows] >= 0
    transfer = ops.transfer_ns[rows][known]
    total_ns = exact_sum(own)
    by_transfer = len(transfer) > 0
    gbps = bus_bandwidth_gbps(
        collective, *((size[known], group[known], transfer) if by_transfer else (size, group, own))
    )
    sizes = unique(group)
    return CollectiveSize(
        dimension=dimension,
        collective=collective,
        transport=transport,
        least_bytes=int(size.min()),
        most_bytes=int(size.max()),
        ranks=int(sizes[0]) if len(sizes) == 1 and sizes[0] > 0 else None,
        count=len(rows),
        total_ns=total_ns,
        mean_ns=total_ns // len(rows),
        matched=len(transfer),
        transfer_ns=exact_sum(transfer) if by_transfer else None,
        basis="transfer" if by_transfer else "duration",
        bus_bandwidth_gbps=gbps,
        best_gbps=None,
        of_best_frac=None,
    )


def _with_best(rows: list[CollectiveSize]) -> list[CollectiveSize]:
    """Each row beside the best of its kind with messages as large or larger. Of its own collective: without
    NVLink a broadcast, which goes one way, reaches twice the bus bandwidth of an all-reduce."""
    found = []
    for row in rows:
        others = [
            r.bus_bandwidth_gbps
            for r in rows
            if (r.dimension, r.collective, r.transport) == (row.dimension, row.collective, row.transport)
            and r.least_bytes >= row.least_bytes
            and r.bus_bandwidth_gbps is not None
        ]
        best = max(others, default=None)
        own = row.bus_bandwidth_gbps
        found.append(
            replace(row, best_gbps=best, of_best_frac=own / best if own is not None and best else None)
        )
    return found
