"""Gradients reduced beside the backward, weights gathered beside the forward, where neither is so.

A bucket's reduction starts once the gradients of all its layers are ready, behind the one before it. The
weights are gathered in the step's own forward in place of its end: the first bucket when the forward begins,
each further one when the one before is first awaited, and a layer waits for the buckets that it needs.
"""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.base.intervals import union
from perfdoc.simulator.engine import EdgeKind, TaskKind
from perfdoc.simulator.engine.graph import I64, NONE
from perfdoc.simulator.replay.edits.messages import latency_of_any
from perfdoc.simulator.replay.edits.rewiring import (
    WAITS_FOR_NONE,
    Rewiring,
    arrivals,
    awaiting,
    in_parts,
    is_transfer,
    launching,
    usual_lag_ns,
)
from perfdoc.simulator.replay.edits.weight_places import (
    Places,
    layer_weights,
    shares_of_streams,
    weight_places,
)
from perfdoc.simulator.replay.rebuilt import RankFrame, Rebuilt
from perfdoc.traces.table import Bool, unique

_LEAST_BYTES = 1024
"""Less is a scalar that is agreed on."""
_USUAL_PARAMETERS = 40_000_000
"""Of a bucket, and a million for each rank that shares them where that is more, as megatron-core has it."""
_FEW = 2.0
"""Messages of no more usual buckets stay as they are."""
_PARTS_MOST = 512
_NEVER = np.iinfo(np.int64).max
_INSIDE = (
    "most exposed dp communication lies inside the passes, which wait for it there: whether it could begin "
    "sooner is not known"
)
_BEHIND = 1 << 40
"""Gradients that are ready with a kernel are reduced after what was sent for before it."""


def weights_overlapped(rebuilt: Rebuilt, *, ends_layers: float = 0.0) -> Rebuilt:
    """The step so. ValueError, one line, where nothing is to be moved, or the capture does not tell to where.

    ends_layers: see weight_places.
    """
    move = _Move(rebuilt, ends_layers)
    for i in range(len(rebuilt.ranks)):
        move.rank(i)
    return move.made()


def in_buckets(rebuilt: Rebuilt, bucket_bytes: int | None) -> Rebuilt:
    """Messages of more bytes cut to so many. None: those that hold more than two of Megatron's usual buckets,
    where the model is known."""
    ours = np.flatnonzero(is_transfer(rebuilt, "dp") & (rebuilt.bytes >= _LEAST_BYTES))
    parts = np.ones(len(rebuilt.start_ns), np.int64)
    if bucket_bytes is not None:
        parts[ours] = -(-rebuilt.bytes[ours] // bucket_bytes)
    for i, own in enumerate(rebuilt.by_rank(ours)) if bucket_bytes is None else ():
        parts[ours[own]] = _usual_parts(rebuilt, i, ours[own])
    return in_parts(rebuilt, np.minimum(parts, _PARTS_MOST), latency_of_any(rebuilt, "dp"))


def _usual_parts(rebuilt: Rebuilt, rank: int, mine: I64) -> I64:
    """How many usual buckets each message of a rank holds; 1 where the model is not known."""
    frame = rebuilt.ranks[rank]
    parts = np.ones(len(mine), np.int64)
    if frame.facts.model is None or not len(frame.layers):
        return parts
    held = layer_weights(frame.facts, np.unique(frame.layers.layer)).sum(axis=1)
    steps = max(len(frame.step_starts_ns), 1)
    stream = rebuilt.graph.resource[mine]
    size = {s: int(rebuilt.bytes[mine[stream == s]].sum()) for s in np.unique(stream).tolist()}
    usual = max(_USUAL_PARAMETERS, _USUAL_PARAMETERS // 40 * (frame.facts.dp or 1) * (frame.facts.cp or 1))
    for s, group in shares_of_streams(frame.facts, frame.layers.layer, size).items():
        for reduces in (True, False):
            rows = (stream == s) & ((rebuilt.reduces[mine] != 0) == reduces)
            total = rebuilt.bytes[mine[rows]].sum() / steps
            if total:
                buckets = rebuilt.bytes[mine[rows]] / total * held[group] / usual
                parts[rows] = np.where(buckets > _FEW, np.ceil(buckets), 1)
    return parts


class _Move:
    """What is moved, and to where."""

    def __init__(self, rebuilt: Rebuilt, ends_layers: float) -> None:
        graph, count = rebuilt.graph, len(rebuilt.start_ns)
        self.rebuilt, self.wires, self.ends_layers = rebuilt, Rewiring(rebuilt), ends_layers
        self.arrival = arrivals(rebuilt)
        self.ours = is_transfer(rebuilt, "dp") & (rebuilt.bytes >= _LEAST_BYTES)
        self.call, self.call_lag = launching(rebuilt)
        self.before = _before(rebuilt)
        self.awaiting = awaiting(rebuilt, np.flatnonzero(self.ours))
        self.inside = np.zeros(count, bool)
        """Whether it is sent in the passes, and waited for in them."""
        into = np.zeros(count, bool)
        into[self.arrival[self.ours]] = True
        self.lag_in = usual_lag_ns(rebuilt, EdgeKind.EVENT, into)
        self.lag_out = usual_lag_ns(rebuilt, EdgeKind.EVENT, graph.kind == TaskKind.COMPUTE)
        self.lag_behind = usual_lag_ns(rebuilt, EdgeKind.STREAM_ORDER, into)
        self.begins_ns = np.full(count, NONE, np.int64)
        """Of what was moved: when the host launches what it follows now."""
        self.order = np.zeros(count, np.int64)
        self.gathers = np.zeros(count, bool)
        edges = graph.edges
        waits = (edges.kind == EdgeKind.EVENT) & (graph.kind[edges.source] == TaskKind.COMMUNICATION)
        self.waits = np.flatnonzero(waits & ~self.ours[edges.source])
        """Edges from communication of other kinds; like all edges in order of their targets."""
        self.waiting = edges.target[self.waits]
        self.awaited: dict[int, list[int]] = {}
        """By task: the weights of other groups that it waits for."""

    def rank(self, rank: int) -> None:
        """Move what is late on a rank."""
        rebuilt, frame = self.rebuilt, self.rebuilt.ranks[rank]
        mine = np.flatnonzero(self.ours & (rebuilt.graph.rank == rank))
        if not len(mine):
            return
        launch = rebuilt.launch_ns[mine]
        steps = np.sort(np.array(frame.step_starts_ns, np.int64))
        begin = NONE
        for place in weight_places(rebuilt, rank, self.ends_layers):
            end = int(np.append(steps, _NEVER)[np.searchsorted(steps, place.passes_end_ns, "right")])
            of_step = mine[(launch >= begin) & (launch < end)]
            begin = end
            within = of_step[rebuilt.launch_ns[of_step] < place.passes_end_ns]
            waits = self.awaiting[within]
            self.inside[within] = (waits >= 0) & (rebuilt.launch_ns[waits] < place.passes_end_ns)
            for reduces in (True, False):
                kind = of_step[(rebuilt.reduces[of_step] != 0) == reduces]
                late = kind[rebuilt.launch_ns[kind] >= place.passes_end_ns]
                if 2 * rebuilt.bytes[late].sum() <= rebuilt.bytes[kind].sum():
                    continue
                stream = rebuilt.graph.resource[late]
                size = {s: int(rebuilt.bytes[late[stream == s]].sum()) for s in np.unique(stream).tolist()}
                groups = shares_of_streams(frame.facts, frame.layers.layer, size)
                for s, group in sorted(groups.items(), key=lambda item: item[1]):
                    rows = late[stream == s]
                    rows = rows[np.argsort(rebuilt.start_ns[rows], kind="stable")]
                    if reduces:
                        self._reduce(place, group, rows)
                    else:
                        self._gather(place, group, rows)

    def _reduce(self, place: Places, group: int, rows: I64) -> None:
        done = np.cumsum(self.rebuilt.bytes[rows])
        after = place.ready_at(done / done[-1], group)
        self.wires.add(after, self.arrival[rows], self.lag_in, EdgeKind.EVENT)
        self.begins_ns[rows] = self.rebuilt.launch_ns[after]
        self.order[rows] = _BEHIND + np.arange(len(rows))

    def _gather(self, place: Places, group: int, rows: I64) -> None:
        size = self.rebuilt.bytes[rows]
        done = np.cumsum(size)
        needed = place.needed_at((done - size) / done[-1], group)
        sent = np.concatenate((needed[:1], needed[:-1]))
        self.wires.add(self.before[sent], self.arrival[rows], self.lag_in, EdgeKind.EVENT)
        self.wires.add(self.call[sent], self.arrival[rows], self.call_lag[sent], EdgeKind.LAUNCH)
        for row, after in zip(rows[1:].tolist(), sent[1:].tolist(), strict=True):
            # Sent for behind the waits of what it is sent for with: a message between stages, above all.
            for awaited in self._awaited_by(after):
                self.wires.add(np.array([awaited]), self.arrival[[row]], self.lag_in, EdgeKind.EVENT)
        self.wires.add(rows, needed, self.lag_out, EdgeKind.EVENT)
        for row, after in zip(rows.tolist(), needed.tolist(), strict=True):
            self.awaited.setdefault(after, []).append(row)
        self.begins_ns[rows] = self.rebuilt.launch_ns[sent]
        self.order[rows] = np.arange(len(rows))
        self.gathers[rows] = True

    def _awaited_by(self, task: int) -> list[int]:
        low, high = np.searchsorted(self.waiting, (task, task + 1))
        others = self.rebuilt.graph.edges.source[self.waits[low:high]]
        return [*others.tolist(), *self.awaited.get(task, ())]

    def made(self) -> Rebuilt:
        """The step with everything in its new place."""
        moved = self.begins_ns >= 0
        if not moved.any():
            raise ValueError(WAITS_FOR_NONE)
        if self._exposed_ns(self.inside & ~moved) > self._exposed_ns(moved):
            raise ValueError(_INSIDE)
        anew = np.zeros(len(self.order), bool)
        anew[self.arrival[moved]] = True
        self.wires.kept &= ~(anew[self.wires.target] & (self.wires.kind != EdgeKind.COLLECTIVE))
        self._free()
        self._queue()
        return self.wires.made("this would create a dependency cycle (a bucket)")

    def _exposed_ns(self, tasks: Bool) -> int:
        """How long these run beside no computation of their rank."""
        rebuilt, rows, work = self.rebuilt, np.flatnonzero(tasks), self.rebuilt.computations
        exposed_ns = 0
        for mine, theirs in zip(rebuilt.by_rank(rows), rebuilt.by_rank(work), strict=True):
            begin, end = rebuilt.start_ns[rows[mine]], rebuilt.end_ns[rows[mine]]
            busy = union(rebuilt.start_ns[work[theirs]], rebuilt.end_ns[work[theirs]])
            exposed_ns += int((end - begin - busy.covered_within(begin, end)).sum())
        return exposed_ns

    def _free(self) -> None:
        """What waited for the gathers at the end of the step waits for the computation before them."""
        wires, rebuilt = self.wires, self.rebuilt
        graph = rebuilt.graph
        behind = (EdgeKind.STREAM_ORDER, EdgeKind.COLLECTIVE)
        ours = wires.kept & self.gathers[wires.source] & ~np.isin(wires.kind, behind)
        computes = np.flatnonzero(graph.kind == TaskKind.COMPUTE)
        computes = computes[np.lexsort((rebuilt.end_ns[computes], graph.rank[computes]))]
        edges = np.flatnonzero(ours)
        of_ranks = rebuilt.by_rank(wires.source[edges]), rebuilt.by_rank(computes)
        for waiting, computing in zip(*of_ranks, strict=True):
            mine, own = edges[waiting], computes[computing]
            if not len(mine) or not len(own):
                continue
            until = np.minimum(rebuilt.start_ns[wires.source[mine]], rebuilt.start_ns[wires.target[mine]])
            at = np.searchsorted(rebuilt.end_ns[own], until, "right") - 1
            wires.source[mine] = own[np.maximum(at, 0)]
            wires.kept[mine] &= (at >= 0) & (wires.source[mine] != wires.target[mine])

    def _queue(self) -> None:
        """Put every stream that something was moved on in its new order."""
        wires, rebuilt = self.wires, self.rebuilt
        graph = rebuilt.graph
        rows = np.flatnonzero(graph.kind == TaskKind.COMMUNICATION)
        moved = self.begins_ns[rows] >= 0
        begins = np.where(moved, self.begins_ns[rows], rebuilt.launch_ns[rows])
        keys = (rebuilt.start_ns[rows], self.order[rows], begins, self._lane(rows), graph.rank[rows])
        order = np.lexsort(keys)
        rows, moved = rows[order], moved[order]
        lane, rank = self._lane(rows), graph.rank[rows]
        begin = np.append(True, (lane[1:] != lane[:-1]) | (rank[1:] != rank[:-1]))
        number = np.cumsum(begin) - 1
        changed = np.bincount(number, moved)[number] > 0
        rows, number = rows[changed], number[changed]
        inside, into = np.zeros(len(self.order), bool), np.zeros(len(self.order), bool)
        inside[rows], into[self.arrival[rows]] = True, True
        behind = wires.kind == EdgeKind.STREAM_ORDER
        wires.kept &= ~(behind & inside[wires.source] & into[wires.target])
        same = number[1:] == number[:-1]
        source, target = rows[:-1][same], self.arrival[rows[1:][same]]
        wires.add(source, target, self.lag_behind, EdgeKind.STREAM_ORDER)

    def _lane(self, rows: I64) -> I64:
        """The stream; a CPU rank has a queue for each dimension."""
        on_host, dimension = self.rebuilt.on_host[rows], self.rebuilt.dimension[rows].astype(np.int64)
        return np.where(on_host, -1 - dimension, self.rebuilt.graph.resource[rows])


def _before(rebuilt: Rebuilt) -> I64:
    """By task: what ran before it on its stream, on a CPU rank on its host; -1 none."""
    edges = rebuilt.graph.edges
    before = np.full(len(rebuilt.start_ns), NONE, np.int64)
    order = np.where(rebuilt.on_host[edges.target], EdgeKind.HOST_ORDER, EdgeKind.STREAM_ORDER)
    mine = np.flatnonzero(edges.kind == order)
    before[edges.target[mine]] = edges.source[mine]
    return before


_HOLDS_UP = (EdgeKind.EVENT, EdgeKind.INFERRED, EdgeKind.HOST_SYNC)
"""Not the order of a stream: what runs in the compute stream cannot be overlapped without moving it."""


def until_optimizer(rebuilt: Rebuilt) -> Rebuilt:
    """What waited for reduced gradients waits no longer; the step's optimizer does (the next step, where no
    range shows an optimizer; the end, where none shows a step)."""
    graph, wires = rebuilt.graph, Rewiring(rebuilt)
    source, target = wires.source, wires.target
    ours = is_transfer(rebuilt, "dp")
    other = ~np.isin(graph.kind, (TaskKind.COMMUNICATION, TaskKind.ARRIVAL, TaskKind.MEETING))
    cut = ours[source] & other[target] & np.isin(wires.kind, _HOLDS_UP)
    cut &= rebuilt.reduces[source] == 1  # the forward needs the weights that a gather brings
    barrier = np.full(len(graph.duration_ns), NONE, np.int64)
    for i, frame in enumerate(rebuilt.ranks):
        mine = np.flatnonzero(ours & (graph.rank == i))
        barrier[mine] = _barriers(rebuilt, other & (graph.rank == i), frame, rebuilt.launch_ns[mine])
    # What runs after the barrier still waits: by then the communication has to be over.
    until = rebuilt.launch_ns[np.maximum(barrier, 0)][source]
    cut &= (barrier[source] < 0) | (rebuilt.launch_ns[target] < until)
    left = np.bincount(target[~cut], minlength=len(graph.duration_ns))
    cut &= left[target] > 0
    if not cut.any():
        raise ValueError(WAITS_FOR_NONE)
    wires.kept = ~cut
    held = unique(source[cut])
    wires.add(held, barrier[held], 0, EdgeKind.INFERRED)
    return wires.made("the optimizer step cannot wait for dp communication: it runs before it")


def _barriers(rebuilt: Rebuilt, others: Bool, frame: RankFrame, launch_ns: I64) -> I64:
    """For communication launched at these times the first other work on the device of the optimizer, or of
    the step, that follows; -1 none."""
    steps = np.array(frame.step_starts_ns, np.int64)
    starts = np.sort(np.concatenate((steps, frame.optimizer_starts_ns)))
    if not len(starts):
        return np.full(len(launch_ns), -1, np.int64)
    at = np.searchsorted(starts, launch_ns, "right")
    # In the optimizer, communication is over when the next step begins.
    since = np.append(starts, np.iinfo(np.int64).max)[at]
    work = np.flatnonzero(others & ((rebuilt.graph.kind != TaskKind.HOST) | rebuilt.on_host))
    work = work[rebuilt.launch_ns[work] >= 0]
    work = work[np.argsort(rebuilt.launch_ns[work], kind="stable")]
    first = np.searchsorted(rebuilt.launch_ns[work], since, "left")
    return np.append(work, -1)[np.minimum(first, len(work))]
