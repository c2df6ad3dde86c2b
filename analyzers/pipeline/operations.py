"""What one device did in its steps, operation by operation: the stretches of work between the messages and
collectives that it shares with other ranks, and these.

It runs where the capture was read. No range and no setting is needed: which stretch is the forward or the
backward pass of which micro-batch is found from the messages of all ranks, in `recorded_schedule`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfdoc.analyzers.base.intervals import I64, Intervals, index_within
from perfdoc.analyzers.communication.calls import CallGroup, CollectiveCalls
from perfdoc.analyzers.device.activity import DIMENSIONS, UNKNOWN_DIMENSION
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.pipeline.exchanges import EXCHANGES, Stretches, find_stretches, no_stretches
from perfdoc.analyzers.pipeline.passes import INSIDE_A_PASS, work_of_passes
from perfdoc.records import dataclass
from perfdoc.traces.table import Bool, among, median

COMPUTE, MESSAGE, COLLECTIVE, WAIT = 0, 1, 2, 3
MESSAGES = frozenset({"send", "recv", "send_recv", "coalesced"})
"""Operations between two ranks; the last two may be several of them, either way."""
FEW_COLLECTIVES = 8
"""Of a step and an operation, where nothing tells their group."""
MAX_OPERATIONS = 2_000
"""Of a step; with more (a sharded model gathers layer by layer) operations are not compared one by one."""
SELDOM_FRAC = 0.002
"""Of all work between collectives: what lies at a place in less than half of the steps and is no more is left
out."""
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
    """COMPUTE, MESSAGE, COLLECTIVE, or WAIT for one that began earlier, beside work."""
    of: I64
    """Of a wait the index of what it waits for; else -1."""
    operation: tuple[str, ...]
    """`all_reduce`, `send`; empty for compute."""
    group: I64
    """Index into `groups`; -1 unknown."""
    groups: tuple[CallGroup, ...]
    group_size: I64
    """Ranks that take part in communication; -1 unknown."""
    dimension: I64
    """Index into activity.DIMENSIONS."""
    peer: I64
    """Global rank of the other side of a send or receive; -1 unknown."""
    lane: I64
    """Which stream communication ran on."""
    bytes: I64
    """Of communication as the capture tells; -1 unknown."""
    is_awaited: Bool
    """Whether work stands still from its beginning to its end."""
    start_ns: I64
    duration_ns: I64
    """Of compute from its first work to its last one, communication inside a pass included."""
    busy_ns: I64
    """Of compute without the gaps in it."""
    shared_ns: I64
    """Of that what only communication inside a pass fills: work of other ranks, or waiting for them."""
    split_ns: I64
    """Of compute: how much of its duration lies before the work changes in kind (another thread launches it,
    or other kernels); -1 where it does not."""
    busy_before_ns: I64
    shared_before_ns: I64
    """The parts of busy_ns and shared_ns that lie before that; all of them where the work does not change."""
    sides: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    """What ran before and behind that (hashes of names); all in the first where it does not change."""
    row: I64
    """Row of the device's CollectiveCalls, by operation and step; -1 of compute."""
    step_ns: I64
    """By step."""
    stretches: Stretches
    """Of compute, by operation."""

    def __len__(self) -> int:
        return len(self.kind)


def no_operations(reason: str, label: str = "", rank: int | None = None) -> RankOperations:
    """Of a device where they cannot be told."""
    none, square = np.empty(0, np.int64), np.empty((0, 0), np.int64)
    columns = ("kind", "of", "group", "group_size", "dimension", "peer", "lane", "bytes", "step_ns")
    matrices = "start", "duration", "busy", "shared", "split", "busy_before", "shared_before"
    return RankOperations(
        rank=rank,
        label=label,
        reason=reason,
        step_names=(),
        left_out=0,
        operation=(),
        groups=(),
        is_awaited=none.astype(bool),
        sides=(),
        stretches=no_stretches(),
        **dict.fromkeys(columns, none),
        **dict.fromkeys(("row", *(f"{m}_ns" for m in matrices)), square),
    )


def rank_operations(view: DeviceView, calls: CollectiveCalls) -> RankOperations:
    """The operations of a device in the steps of its window. calls: its communication."""
    steps = view.window.step_list
    label, rank = calls.label, calls.rank
    if not steps:
        return no_operations("the window is not made of steps", label, rank)
    begin, end = (np.array([getattr(s, n) for s in steps], np.int64) for n in ("start_ns", "end_ns"))
    step = index_within(begin, end, calls.start_ns)
    by_all = among(calls.operation, _codes(calls, EXCHANGES)) & (calls.dimension == UNKNOWN_DIMENSION)
    shared = (step >= 0) & ~among(calls.dimension, INSIDE_A_PASS) & ~by_all
    shared &= _between_passes(calls, shared, len(steps))
    rows = np.flatnonzero(shared)
    # What runs layer by layer, in whatever dimension, is part of a pass; so are exchanges of tokens or heads.
    by_layer = (step >= 0) & ~shared & (calls.dimension == UNKNOWN_DIMENSION)
    dimension = np.where(by_layer, INSIDE_A_PASS[0], calls.dimension)
    inside = np.flatnonzero((step >= 0) & among(dimension, INSIDE_A_PASS))
    if not len(rows) and not len(inside):
        return no_operations("no communication between ranks lies between passes", label, rank)
    if len(rows) > MAX_OPERATIONS * len(steps):
        return no_operations(f"more than {MAX_OPERATIONS} collectives in a step", label, rank)
    # Ranks that do all of a step together meet where they synchronise.
    together = not len(rows) and len(inside) <= MAX_OPERATIONS * len(steps)
    rows = inside if together else rows
    signature = np.column_stack(
        [c[rows].astype(np.int64) for c in (calls.operation, calls.group, calls.peer, calls.lane)]
    )
    kept, order = _alike(step[rows], signature, len(steps))
    if not together and not len(kept):
        # Streams have an order each; which of two comes first is a matter of chance.
        by_lane = np.lexsort((calls.lane[rows], step[rows]))
        rows, signature = rows[by_lane], signature[by_lane]
        kept, order = _alike(step[rows], signature, len(steps))
    if together and (not len(kept) or order.size > MAX_CELLS):
        together, rows = False, rows[:0]
    if not len(rows):  # each step is one stretch of work
        kept, order = np.arange(len(steps)), np.empty((len(steps), 0), np.int64)
    if not len(kept) or order.size > MAX_CELLS:
        return no_operations("no two steps have the same operations in the same order", label, rank)
    if together:
        dimension = np.full_like(dimension, UNKNOWN_DIMENSION)
    work = work_of_passes(view.activity.compute, calls.start_ns, calls.end_ns, dimension)
    # Where work goes on behind it and none ran beside its end; ends are rounded.
    near = (calls.end_ns - calls.start_ns)[rows] // 10 + 1
    waits = 2 * work.covered_within(calls.end_ns[rows] - near, calls.end_ns[rows]) < near
    bounds = begin[kept], end[kept]
    return _laid_out(view, calls, rows[order], waits[order], kept, bounds, work, together=together)


def _between_passes(calls: CollectiveCalls, inside: Bool, steps: int) -> Bool:
    """Messages, and collectives whose group is known; of others, and of those of unknown dimension beside
    messages, those that are no more than messages: what runs layer by layer is part of a pass."""
    is_message = among(calls.operation, _codes(calls, MESSAGES))
    messages = int(np.count_nonzero(is_message & inside))
    told = (calls.dimension != UNKNOWN_DIMENSION) | (messages == 0)
    known = is_message | ((calls.group >= 0) & told)
    most = max(FEW_COLLECTIVES, messages // steps) * steps
    operations = max(len(calls.operations), 1)
    kind = (calls.group + 1) * operations + calls.operation
    each = np.bincount(kind[inside & ~known], minlength=int(kind.max(initial=0)) + 1)
    found: Bool = known | (each[kind] <= most)
    return found


def _codes(calls: CollectiveCalls, words: frozenset[str]) -> list[int]:
    return [i for i, word in enumerate(calls.operations) if word in words]


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
    *,
    together: bool,
) -> RankOperations:
    """rows, waits: by step and operation. together: work reaches from one to the next."""
    from perfdoc.analyzers.pipeline.events import end_behind, find_events, where_posted
    from perfdoc.analyzers.pipeline.halves import Sides, split_blocks

    begin, end = bounds
    start, done = calls.start_ns[rows], calls.end_ns[rows]
    is_message = among(calls.operation, _codes(calls, MESSAGES))
    posted = where_posted(view, rows, start, is_message[rows])
    waits = waits & (is_message[rows] | ~end_behind(start, done, begin, work))
    events = find_events((start, done, posted), begin, waits, work)
    since = np.column_stack((begin, np.maximum.accumulate(events.end_ns, axis=1)))
    until = np.maximum(np.column_stack((events.begin_ns, end)), since)
    first, last = _filled(work, since, until)
    if together:
        first[:, 1:], last[:, :-1] = since[:, 1:], until[:, :-1]
    busy = work.covered_within(first, last)
    one = rows[0]
    # The last is for -1, of what is no operation.
    is_message = np.append(is_message[one], False)
    sides: list[Sides] = [((), ())] * first.shape[1]
    split = np.full(first.shape, -1, np.int64)
    if is_message.any():
        split, sides = split_blocks(view, first, last)
    changes = np.where(split < 0, last, np.minimum(first + split, last))
    busy_before = work.covered_within(first, changes)
    # Compute and an event in turn; compute that is nowhere is no operation.
    place = np.arange(2 * len(events.operation) + 1)
    at = np.where(place % 2 == 1, np.append(events.operation, -1)[place // 2], -1)
    is_wait = (at >= 0) & np.append(events.is_wait, False)[place // 2]
    is_shared = (at >= 0) & ~is_wait
    kind = np.where(is_message[at], MESSAGE, COLLECTIVE)
    kind = np.where(is_wait, WAIT, np.where(is_shared, kind, COMPUTE))
    lasts = np.zeros((len(place), len(kept)), np.int64)
    lasts[::2] = (last - first).T
    lasts[is_shared] = (done - start).T[at[is_shared]]
    usual = median(lasts[:, events.some]) > 0
    if (
        not is_message.any()
    ):  # who is last has work where it else waits: as long as it is, in few of the steps
        usual |= lasts.sum(axis=1) > SELDOM_FRAC * lasts[kind == COMPUTE].sum()
    real = np.flatnonzero((kind != COMPUTE) | usual)
    kind, at, is_shared, place = kind[real], at[real], is_shared[real], place[real]

    def column(values: NDArray[Any], unknown: int = -1) -> I64:
        return np.where(is_shared, np.append(values[one], unknown)[at], unknown).astype(np.int64)

    def table(compute: I64, shared: I64 | None = None, unknown: int = 0) -> I64:
        found = np.full((len(place), len(kept)), unknown, np.int64)
        found[kind == COMPUTE] = compute.T[place[kind == COMPUTE] // 2]
        if shared is not None:
            found[is_shared] = shared.T[at[is_shared]]
        return found

    place_of = np.zeros(len(is_message), np.int64)  # likewise
    place_of[at[is_shared]] = np.flatnonzero(is_shared)
    listed = np.array([*(g.size or -1 for g in calls.groups), -1])[calls.group]
    words = [calls.operations[c] for c in calls.operation[one].tolist()]
    stretches = find_stretches(view, calls, first, last)
    # Pieces of work have every other place, and are operations where they are any.
    stretches = replace(stretches, of=np.searchsorted(place, 2 * stretches.of))
    return RankOperations(
        rank=calls.rank,
        label=calls.label,
        reason="",
        step_names=tuple(view.window.step_list[i].name for i in kept.tolist()),
        left_out=view.window.steps - len(kept),
        kind=kind,
        of=np.where(kind == WAIT, place_of[at], -1),
        operation=tuple(words[a] if shared else "" for a, shared in zip(at, is_shared, strict=True)),
        group=column(calls.group),
        groups=calls.groups,
        group_size=column(np.where(listed > 0, listed, calls.group_size)),
        dimension=column(calls.dimension, DIMENSIONS.index("unknown")),
        peer=np.where(is_shared, np.append(_global_peers(calls, one), -1)[at], -1),
        lane=column(calls.lane),
        bytes=column(calls.bytes),
        is_awaited=np.where(is_shared, np.append(events.is_awaited, True)[at], True),
        start_ns=table(first, start),
        duration_ns=table(last - first, done - start),
        busy_ns=table(busy),
        shared_ns=table(busy - view.activity.compute.covered_within(first, last)),
        split_ns=table(split, None, -1),
        busy_before_ns=table(busy_before),
        shared_before_ns=table(busy_before - view.activity.compute.covered_within(first, changes)),
        sides=tuple(sides[p // 2] if k == COMPUTE else ((), ()) for p, k in zip(place, kind, strict=True)),
        row=table(np.full_like(first, -1), rows, -1),
        step_ns=end - begin,
        stretches=stretches,
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
