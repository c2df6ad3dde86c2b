"""Smaller buckets: gradients reduced while the backward still runs, weights gathered less far ahead.

A gathered bucket of n parts: the first is sent for when the whole was, ahead of time. The others are sent for
one after the other as each before them is awaited, which is where a layer already waits: they are exposed.
The task stands for the first part; the others show as what waited for the whole, and what was sent for there,
coming so much later. Gathers that are sent for all at once stay so: their parts run in order.

A reduced bucket of n parts: the k-th part is ready when k / n of the time has passed in which its gradients
came, and the parts run in order. The task stands for the last of them; the others show as its not
starting before they are through. So it starts no earlier than n - 1 parts after the first part was ready, and
after what is ahead of it on its stream.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.simulator.engine import EdgeKind, GraphBuilder, TaskKind
from perfdoc.simulator.engine.graph import I64, NONE
from perfdoc.simulator.replay.edits.edit import Edit, with_durations, with_lags
from perfdoc.simulator.replay.edits.latency import latency_of
from perfdoc.simulator.replay.edits.rewiring import arrivals, is_transfer
from perfdoc.simulator.replay.rebuilt import Rebuilt, with_edges

_FULL_FRAC = 1.001
"""Parts of a bucket are cut to whole elements on every rank."""


def split_gathers(rebuilt: Rebuilt, ratio: float, latency_ns: float, dimension: str) -> Rebuilt:
    """The step with gathers of at most `ratio` times their usual size."""
    graph = rebuilt.graph
    duration, lag = graph.duration_ns.copy(), graph.edges.lag_ns.copy()
    extra = np.zeros(len(duration), np.int64)
    """By gather: what its parts but the first take, where they are sent for when it is awaited."""
    behind = np.full(len(duration), NONE, np.int64)
    """By gather: the one that is sent for next."""
    rows = np.flatnonzero(is_transfer(rebuilt, dimension) & (rebuilt.bytes > 0) & (rebuilt.reduces == 0))
    waiting, before_ns = _awaiting(rebuilt, rows)
    for mine in sequences(rebuilt, rows):
        full = ratio * usual_bytes(rebuilt.bytes[mine]) * _FULL_FRAC
        parts = np.maximum(np.ceil(rebuilt.bytes[mine] / full), 1).astype(np.int64)
        took = duration[mine]
        fixed = np.minimum(latency_ns, took)
        part_ns = np.round(fixed + (took - fixed) / parts).astype(np.int64)
        # The next one is sent for as this one is awaited: behind the kernel before the one that waits.
        here, later = mine[:-1], rebuilt.launch_ns[mine[1:]]
        at_wait = (waiting[here] >= 0) & (before_ns[here] <= later)
        at_wait &= later <= rebuilt.launch_ns[waiting[here]]
        # The last one is as the one before it; a single one shows nothing, and stays as sent for now.
        ahead = np.append(at_wait, at_wait[-1:].any()) & (waiting[mine] >= 0)
        duration[mine] = np.where(ahead, part_ns, parts * part_ns)
        extra[mine] = np.where(ahead, (parts - 1) * part_ns, 0)
        behind[here[at_wait]] = mine[1:][at_wait]
    _later(rebuilt, lag, extra, behind, waiting)
    return with_durations(with_lags(rebuilt, lag), duration)


def _later(rebuilt: Rebuilt, lag: I64, extra: I64, behind: I64, waiting: I64) -> None:
    """Add to lags what parts delay."""
    edges = rebuilt.graph.edges
    # All that a computation waits for; behind one of several gathers, that and those after it.
    gathers = np.flatnonzero((extra > 0) & (waiting >= 0))
    gathers = gathers[np.argsort(rebuilt.start_ns[gathers], kind="stable")]
    total = np.zeros(len(extra), np.int64)
    np.add.at(total, waiting[gathers], extra[gathers])
    before = np.zeros(len(extra), np.int64)
    so_far: dict[int, int] = {}
    for gather in gathers.tolist():
        wait = int(waiting[gather])
        before[gather] = so_far.get(wait, 0)
        so_far[wait] = before[gather] + int(extra[gather])
    own = waiting[edges.source] == edges.target
    lag += total[edges.target] - np.where(own, before[edges.source], 0)
    sent = np.flatnonzero(behind >= 0)
    held = np.zeros(len(extra), np.int64)
    held[arrivals(rebuilt)[behind[sent]]] = extra[sent]
    lag += held[edges.target]


def _awaiting(rebuilt: Rebuilt, rows: I64) -> tuple[I64, I64]:
    """By task: the computation launched first of those that wait for it, -1 none, and when the computation
    before that was launched."""
    graph, edges = rebuilt.graph, rebuilt.graph.edges
    chosen = np.zeros(len(rebuilt.start_ns), bool)
    chosen[rows] = True
    computes = (graph.kind == TaskKind.COMPUTE) & (rebuilt.launch_ns >= 0)
    mine = np.flatnonzero(chosen[edges.source] & computes[edges.target])
    mine = mine[np.argsort(-rebuilt.launch_ns[edges.target[mine]], kind="stable")]
    waiting = np.full(len(chosen), NONE, np.int64)
    waiting[edges.source[mine]] = edges.target[mine]  # the earliest is written last
    work = np.flatnonzero(computes)
    work = work[np.lexsort((rebuilt.launch_ns[work], graph.rank[work]))]
    ahead_of = np.full(len(chosen), np.iinfo(np.int64).min, np.int64)
    same = graph.rank[work[1:]] == graph.rank[work[:-1]]
    ahead_of[work[1:][same]] = rebuilt.launch_ns[work[:-1][same]]
    return waiting, np.where(waiting >= 0, ahead_of[waiting], np.iinfo(np.int64).max)


def usual_bytes(size_bytes: I64) -> float:
    """Of the full buckets: what is left over of a chunk is smaller."""
    return float(np.median(size_bytes[size_bytes * 2 > size_bytes.max()]))


def sequences(rebuilt: Rebuilt, rows: I64) -> Iterator[I64]:
    """Consecutive collectives: of one rank, stream and kind, by start."""
    graph = rebuilt.graph
    kind = rebuilt.reduces[rows] == 0
    order = np.lexsort((rebuilt.start_ns[rows], kind, graph.resource[rows], graph.rank[rows]))
    rows, kind = rows[order], kind[order]
    if not len(rows):
        return
    same = np.ones(len(rows) - 1, bool)
    for column in (graph.rank[rows], graph.resource[rows], kind):
        same &= column[1:] == column[:-1]
    yield from np.split(rows, np.flatnonzero(~same) + 1)


_UNCERTAINTY_FRAC = 1.0
"""Gradients do not come evenly (an embedding's come at once, at the end), and communication beside the
backward slows both down."""


def split_buckets(bucket_bytes: int, *, dimension: str = "dp") -> Edit:
    """Reductions of gradients larger than this are cut into equal parts of at most this, each reduced as
    soon as it is ready in the last backward pass before it; gathers by the same ratio (split_gathers.py).

    Reductions are what is launched from the first backward pass of a step to its optimizer. ValueError for a
    size below 1.
    """
    if bucket_bytes < 1:
        raise ValueError(f"split_buckets: {bucket_bytes} bytes")

    def apply(rebuilt: Rebuilt) -> Rebuilt:
        latency_ns = latency_of(rebuilt, dimension)
        graph = rebuilt.graph
        ours = (graph.kind == TaskKind.COMMUNICATION) & (rebuilt.bytes > bucket_bytes)
        ours &= rebuilt.dimension == DIMENSIONS.index(dimension)
        chosen = np.concatenate([_reductions(rebuilt, i, ours) for i in range(len(rebuilt.ranks))])
        if not len(chosen):
            raise ValueError(
                f"no {dimension} reduction of more than {bucket_bytes:,} bytes between the backward and the "
                "optimizer"
            )
        ratio = bucket_bytes / usual_bytes(rebuilt.bytes[chosen])
        rebuilt = split_gathers(rebuilt, ratio, latency_ns, dimension)
        graph = rebuilt.graph
        parts = -(-rebuilt.bytes[chosen] // bucket_bytes)
        took = graph.duration_ns[chosen]
        fixed = np.minimum(latency_ns, took)
        part_ns = np.round(fixed + (took - fixed) / parts).astype(np.int64)
        ahead_ns = (parts - 1) * part_ns
        arrival = arrivals(rebuilt)[chosen]

        builder = GraphBuilder()
        edges = graph.edges
        extra = np.zeros(len(graph.duration_ns), np.int64)
        extra[arrival] = ahead_ns
        behind = (edges.kind == EdgeKind.STREAM_ORDER) & (graph.kind[edges.source] == TaskKind.COMMUNICATION)
        lag = edges.lag_ns + np.where(behind, extra[edges.target], 0)
        for kind in EdgeKind:
            mine = edges.kind == kind
            builder.add(edges.source[mine], edges.target[mine], lag[mine], kind)
        first, since_ns = _first_ready(rebuilt, chosen, arrival, parts)
        builder.add(first, arrival, since_ns + ahead_ns, EdgeKind.INFERRED)
        duration = graph.duration_ns.copy()
        duration[chosen] = part_ns
        made = with_edges(with_durations(rebuilt, duration), builder)
        if made is None:
            raise ValueError("this would create a dependency cycle (a bucket)")
        return made

    return Edit(
        name=f"{dimension} buckets of at most {bucket_bytes:,} bytes",
        apply=apply,
        uncertainty_frac=_UNCERTAINTY_FRAC,
        leaves=(f"exposed_comm.{dimension}",),
        assumptions=(
            "gradients become ready evenly over the backward pass between buckets",
            "a smaller bucket takes the latency of the capture's collectives and its share of the rest",
            "weights are all-gathered in the same buckets: less is prefetched, the rest is waited for",
            "no contention between communication and compute",
        ),
        may_cost=True,
    )


def _reductions(rebuilt: Rebuilt, rank: int, ours: np.ndarray) -> I64:
    """Of these tasks those of a rank launched from a step's first backward to its optimizer, by launch."""
    frame = rebuilt.ranks[rank]
    rows = np.flatnonzero(ours & (rebuilt.graph.rank == rank))
    begin, _ = frame.passes.backward
    if not len(rows):
        return rows
    if not len(begin):
        raise ValueError("no range of the capture shows the backward pass")
    launch = rebuilt.launch_ns[rows]
    last_backward = np.append(begin, 0)[np.searchsorted(begin, launch, "right") - 1]
    bounds = np.sort(np.concatenate((np.array(frame.step_starts_ns, np.int64), frame.optimizer_starts_ns)))
    last_bound = np.append(bounds, np.iinfo(np.int64).min)[np.searchsorted(bounds, launch, "right") - 1]
    kept = (np.searchsorted(begin, launch, "right") > 0) & (last_backward >= last_bound)
    return rows[kept][np.argsort(launch[kept], kind="stable")]


def _first_ready(rebuilt: Rebuilt, chosen: I64, arrival: I64, parts: I64) -> tuple[I64, I64]:
    """The computation after which each bucket's first part is ready, and how long after its end; -1 none."""
    graph, edges = rebuilt.graph, rebuilt.graph.edges
    # When all of it was ready, as measured: the end of what it waited for that is no communication.
    ready = np.full(len(graph.duration_ns), np.iinfo(np.int64).min, np.int64)
    own = ~np.isin(graph.kind[edges.source], (TaskKind.COMMUNICATION, TaskKind.MEETING))
    # A launch waits for no gradient on a GPU; on a CPU rank it is all there is.
    own &= (edges.kind != EdgeKind.LAUNCH) | rebuilt.on_host[edges.source]
    np.maximum.at(ready, edges.target[own], rebuilt.end_ns[edges.source[own]])
    until = np.where(ready[arrival] > np.iinfo(np.int64).min, ready[arrival], rebuilt.start_ns[arrival])
    source, since = np.full(len(chosen), NONE, np.int64), np.zeros(len(chosen), np.int64)
    for i, frame in enumerate(rebuilt.ranks):
        mine = np.flatnonzero(graph.rank[chosen] == i)
        if not len(mine):
            continue
        work = np.flatnonzero((graph.kind == TaskKind.COMPUTE) & (graph.rank == i))
        work = work[np.argsort(rebuilt.end_ns[work], kind="stable")]
        begin, _ = frame.passes.backward
        at = np.searchsorted(begin, rebuilt.launch_ns[chosen[mine]], "right") - 1
        passed = _begun(rebuilt, work, begin, frame.passes.backward[1])[at]
        order = np.lexsort((until[mine], at))
        before = np.concatenate(([NONE], order[:-1]))
        same = np.concatenate(([False], at[order[1:]] == at[order[:-1]]))
        since_ns = passed.copy()
        since_ns[order[same]] = np.maximum(passed[order[same]], until[mine[before[same]]])
        since_ns = np.minimum(since_ns, until[mine])
        first_ns = since_ns + (until[mine] - since_ns) // parts[mine]
        last = np.searchsorted(rebuilt.end_ns[work], first_ns, "right") - 1
        known = last >= 0
        source[mine[known]] = work[last[known]]
        since[mine[known]] = first_ns[known] - rebuilt.end_ns[work[last[known]]]
    return source, since


def _begun(rebuilt: Rebuilt, work: I64, begin: I64, end: I64) -> I64:
    """When each backward began on the device: the first computation launched in it."""
    launch = rebuilt.launch_ns[work]
    at = np.searchsorted(begin, launch, "right") - 1
    inside = (at >= 0) & (launch < end[np.maximum(at, 0)])
    first = np.full(len(begin), np.iinfo(np.int64).max, np.int64)
    np.minimum.at(first, at[inside], rebuilt.start_ns[work[inside]])
    return np.where(first == np.iinfo(np.int64).max, begin, first)
