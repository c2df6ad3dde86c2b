"""What one device did in its steps, operation by operation: the stretches of work between the messages and
collectives that it shares with other ranks, and these.

It runs where the capture was read. No range and no setting is needed: which stretch is the forward or the
backward pass of which micro-batch is found from the messages of all ranks, in `recorded_schedule`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfdoc.analyzers.base.intervals import I64, Intervals, index_within, union
from perfdoc.analyzers.communication.calls import CallGroup, CollectiveCalls
from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.pipeline.halves import Sides, split_blocks
from perfdoc.analyzers.pipeline.passes import INSIDE_A_PASS
from perfdoc.traces.table import Bool

COMPUTE, MESSAGE, COLLECTIVE = 0, 1, 2
MESSAGES = frozenset({"send", "recv", "send_recv", "coalesced"})
"""Operations between two ranks; the last two may be several of them, either way."""
MAX_OPERATIONS = 2_000
"""Of a step; with more (a sharded model gathers layer by layer) operations are not compared one by one."""
MAX_CELLS = 100_000
"""Operations times steps of one rank."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RankOperations:
    """One device's operations, of those steps that have the same ones in the same order.

    Columns are by operation, in order; matrices by operation and step. Times on the capture's clock.
    """

    rank: int | None
    label: str
    reason: str
    """Why there are none; empty where there are."""
    step_names: tuple[str, ...]
    left_out: int
    """Steps with other operations."""
    kind: I64
    """COMPUTE, MESSAGE or COLLECTIVE."""
    operation: tuple[str, ...]
    """`all_reduce`, `send`; empty for compute."""
    group: I64
    """Index into `groups`; -1 unknown."""
    groups: tuple[CallGroup, ...]
    dimension: I64
    """Index into activity.DIMENSIONS."""
    peer: I64
    """Global rank of the other side of a send or receive; -1 unknown."""
    lane: I64
    """Which stream communication ran on."""
    is_awaited: Bool
    """Whether work went on only behind it."""
    start_ns: I64
    duration_ns: I64
    """Of compute from its first work to its last one, communication inside a pass included."""
    busy_ns: I64
    """Of compute without the gaps in it."""
    split_ns: I64
    """Of compute: how much of its duration lies before the work changes in kind (another thread launches it,
    or other kernels); -1 where it does not."""
    sides: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    """What ran before and behind that (hashes of names); all in the first where it does not change."""
    row: I64
    """Row of the device's CollectiveCalls, by operation and step; -1 of compute."""
    step_ns: I64
    """By step."""

    def __len__(self) -> int:
        return len(self.kind)


def no_operations(reason: str, label: str = "", rank: int | None = None) -> RankOperations:
    """Of a device where they cannot be told."""
    none, square = np.empty(0, np.int64), np.empty((0, 0), np.int64)
    return RankOperations(
        rank=rank,
        label=label,
        reason=reason,
        step_names=(),
        left_out=0,
        kind=none,
        operation=(),
        group=none,
        groups=(),
        dimension=none,
        peer=none,
        lane=none,
        is_awaited=none.astype(bool),
        start_ns=square,
        duration_ns=square,
        busy_ns=square,
        split_ns=square,
        sides=(),
        row=square,
        step_ns=none,
    )


def rank_operations(view: DeviceView, calls: CollectiveCalls) -> RankOperations:
    """The operations of a device in the steps of its window. calls: its communication."""
    steps = view.window.step_list
    label, rank = calls.label, calls.rank
    if not steps:
        return no_operations("the window is not made of steps", label, rank)
    begin, end = (np.array([getattr(s, n) for s in steps], np.int64) for n in ("start_ns", "end_ns"))
    step = index_within(begin, end, calls.start_ns)
    shared = (step >= 0) & ~np.isin(calls.dimension, INSIDE_A_PASS)
    shared &= (calls.group >= 0) | np.isin(calls.operation, _codes(calls, MESSAGES))
    rows = np.flatnonzero(shared)
    if not len(rows):
        return no_operations("no communication between ranks lies between passes", label, rank)
    if len(rows) > MAX_OPERATIONS * len(steps):
        return no_operations(f"more than {MAX_OPERATIONS} collectives in a step", label, rank)
    work = _work(view, calls)
    # Where work goes on behind it and none ran beside its end; ends are rounded.
    near = (calls.end_ns - calls.start_ns)[rows] // 10 + 1
    waits = 2 * work.covered_within(calls.end_ns[rows] - near, calls.end_ns[rows]) < near
    signature = np.column_stack(
        [c[rows].astype(np.int64) for c in (calls.operation, calls.group, calls.peer, calls.lane)]
    )
    kept, order = _alike(step[rows], signature, len(steps))
    if not len(kept) or order.size > MAX_CELLS:
        return no_operations("no two steps have the same operations in the same order", label, rank)
    return _laid_out(view, calls, rows[order], waits[order], kept, (begin[kept], end[kept]), work)


def _codes(calls: CollectiveCalls, words: frozenset[str]) -> list[int]:
    return [i for i, word in enumerate(calls.operations) if word in words]


def _work(view: DeviceView, calls: CollectiveCalls) -> Intervals:
    """What a pass is made of: compute, and communication inside a pass."""
    inside = np.isin(calls.dimension, INSIDE_A_PASS)
    if not inside.any():
        return view.activity.compute
    return view.activity.compute | union(calls.start_ns[inside], calls.end_ns[inside])


def _alike(step: I64, signature: NDArray[np.int64], steps: int) -> tuple[I64, I64]:
    """Steps that have the same operations in the same order, the largest such set, and the positions of
    theirs (by step, then operation) among the rows; both empty where no two have."""
    counts = np.bincount(step, minlength=steps)
    first = np.concatenate(([0], np.cumsum(counts)))
    found: dict[bytes, list[int]] = {}
    for i in range(steps):
        found.setdefault(signature[first[i] : first[i + 1]].tobytes(), []).append(i)
    most = max((s for s in found.values() if counts[s[0]]), key=len, default=[])
    if not most or (len(most) == 1 and steps > 1):
        return np.empty(0, np.int64), np.empty((0, 0), np.int64)
    kept = np.array(most, np.int64)
    return kept, first[kept][:, None] + np.arange(counts[most[0]])


def _laid_out(
    view: DeviceView,
    calls: CollectiveCalls,
    rows: I64,
    waits: Bool,
    kept: I64,
    bounds: tuple[I64, I64],
    work: Intervals,
) -> RankOperations:
    """rows, waits: by step and operation."""
    begin, end = bounds
    awaited = waits.mean(axis=0) >= 0.5
    start, done = calls.start_ns[rows], calls.end_ns[rows]
    free = np.maximum.accumulate(np.where(awaited, done, start), axis=1)
    since = np.column_stack((begin, free))
    until = np.maximum(np.column_stack((start, end)), since)
    first, last = _filled(work, since, until)
    busy = work.covered_within(first, last)
    shape = first.shape
    is_message = np.isin(calls.operation[rows[0]], _codes(calls, MESSAGES))
    sides: list[Sides] = [((), ())] * shape[1]
    split = np.full(shape, -1, np.int64)
    if is_message.any():
        split, sides = split_blocks(view, first, last)
    count = rows.shape[1]
    # Compute and what follows it in turn; compute that is nowhere is no operation.
    place = np.arange(2 * count + 1)
    is_shared = place % 2 == 1
    at = place // 2
    one = rows[0]

    def column(values: NDArray[np.integer], unknown: int = -1) -> I64:
        found = np.full(len(place), unknown, np.int64)
        found[is_shared] = values[one]
        return found

    def matrix(compute: I64, shared: I64) -> I64:
        both = np.empty((len(place), shape[0]), np.int64)
        both[::2], both[1::2] = compute.T, shared.T
        return both

    kind = np.zeros(len(place), np.int64)
    kind[is_shared] = np.where(is_message, MESSAGE, COLLECTIVE)
    lasts = matrix(last - first, done - start)
    real = is_shared | (np.median(lasts, axis=1) > 0)
    waited = np.ones(len(place), bool)
    waited[is_shared] = awaited
    peer = _global_peers(calls, one)
    return RankOperations(
        rank=calls.rank,
        label=calls.label,
        reason="",
        step_names=tuple(view.window.step_list[i].name for i in kept.tolist()),
        left_out=view.window.steps - len(kept),
        kind=kind[real],
        operation=tuple(
            calls.operations[int(calls.operation[one[at[i]]])] if is_shared[i] else ""
            for i in np.flatnonzero(real).tolist()
        ),
        group=column(calls.group)[real],
        groups=calls.groups,
        dimension=column(calls.dimension, DIMENSIONS.index("unknown"))[real],
        peer=np.where(is_shared, peer[np.minimum(at, count - 1)], -1)[real],
        lane=column(calls.lane)[real],
        is_awaited=waited[real],
        start_ns=matrix(first, start)[real],
        duration_ns=lasts[real],
        busy_ns=matrix(busy, np.zeros_like(start))[real],
        split_ns=matrix(split, np.full_like(start, -1))[real],
        sides=tuple(((), ()) if is_shared[i] else sides[at[i]] for i in np.flatnonzero(real).tolist()),
        row=matrix(np.full_like(first, -1), rows)[real],
        step_ns=end - begin,
    )


def _filled(work: Intervals, since: I64, until: I64) -> tuple[I64, I64]:
    """First start and last end of the work inside each stretch; equal where there is none."""
    if not len(work):
        return since, since
    first = np.minimum(np.searchsorted(work.end_ns, since, "right"), len(work) - 1)
    last = np.maximum(np.searchsorted(work.start_ns, until, "left") - 1, 0)
    begin = np.maximum(work.start_ns[first], since)
    finish = np.minimum(work.end_ns[last], until)
    empty = (finish <= begin) | (work.end_ns[first] <= since) | (work.start_ns[last] >= until)
    return np.where(empty, since, begin), np.where(empty, since, finish)


def _global_peers(calls: CollectiveCalls, rows: I64) -> I64:
    """The other side's global rank; -1 where only its place in an unknown group is known."""
    peer = calls.peer[rows].astype(np.int64)
    if calls.has_global_peers:
        return peer
    listed = np.array([bool(g.ranks) for g in calls.groups] + [False])
    return np.where(listed[calls.group[rows]], peer, -1)
