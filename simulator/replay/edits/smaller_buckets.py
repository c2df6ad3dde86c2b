"""Smaller buckets: gradients reduced while the backward still runs, weights gathered less far ahead.

A gathered bucket of n parts: the first is sent for when the whole was, ahead of time. The others are sent for
when the first is awaited, which is where a layer already waits: they are exposed. Gathers that are sent for
all at once stay so: their parts run in order.

A reduced bucket of n parts: the first is ready when 1 / n of the time has passed in which its gradients came,
the last with the last of them, and the parts run in order.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfdoc.simulator.engine import EdgeKind, TaskKind
from perfdoc.simulator.engine.graph import I64, NONE
from perfdoc.simulator.replay.edits.edit import Edit
from perfdoc.simulator.replay.edits.latency import latency_of
from perfdoc.simulator.replay.edits.rewiring import (
    Begins,
    arrivals,
    awaiting,
    in_parts,
    is_transfer,
    neighbours,
)
from perfdoc.simulator.replay.rebuilt import Rebuilt
from perfdoc.traces.table import Bool

_FULL_FRAC = 1.001
"""Parts of a bucket are cut to whole elements on every rank."""


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
    soon as it is ready in the last backward pass before it; gathers by the same ratio.

    Reductions are what is launched from the first backward pass of a step to its optimizer. ValueError for a
    size below 1.
    """
    if bucket_bytes < 1:
        raise ValueError(f"split_buckets: {bucket_bytes} bytes")

    def apply(rebuilt: Rebuilt) -> Rebuilt:
        latency_ns = latency_of(rebuilt, dimension)
        ours = is_transfer(rebuilt, dimension) & (rebuilt.bytes > 0)
        gathers = np.flatnonzero(ours & (rebuilt.reduces == 0))
        large = ours & (rebuilt.bytes > bucket_bytes)
        chosen = np.concatenate([_reductions(rebuilt, i, large) for i in range(len(rebuilt.ranks))])
        if not len(chosen):
            raise ValueError(
                f"no {dimension} reduction of more than {bucket_bytes:,} bytes between the backward and the "
                "optimizer"
            )
        ratio = bucket_bytes / usual_bytes(rebuilt.bytes[chosen])
        parts = np.ones(len(ours), np.int64)
        parts[chosen] = -(-rebuilt.bytes[chosen] // bucket_bytes)
        first = _first_ready(rebuilt, chosen, arrivals(rebuilt)[chosen], parts[chosen])
        parts[gathers] = _parts_of_gathers(rebuilt, gathers, ratio)
        return in_parts(rebuilt, parts, latency_ns, first=first, second=_sent_for(rebuilt, gathers))

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


def _parts_of_gathers(rebuilt: Rebuilt, gathers: I64, ratio: float) -> I64:
    """Into how many each is cut, so that a usual one of its stream has at most `ratio` of its size."""
    parts = np.ones(len(rebuilt.start_ns), np.int64)
    for mine in sequences(rebuilt, gathers):
        full = ratio * usual_bytes(rebuilt.bytes[mine]) * _FULL_FRAC
        parts[mine] = np.maximum(np.ceil(rebuilt.bytes[mine] / full), 1)
    return parts[gathers]


def _sent_for(rebuilt: Rebuilt, gathers: I64) -> Begins:
    """The second part is sent for as the first is awaited, behind the kernel before the one that waits, where
    the next gather is so too."""
    waiting, (before, _) = awaiting(rebuilt, gathers), neighbours(rebuilt)
    ahead = []
    for mine in sequences(rebuilt, gathers):
        waits, later = waiting[mine[:-1]], rebuilt.launch_ns[mine[1:]]
        since = np.where(before[waits] >= 0, rebuilt.launch_ns[before[waits]], np.iinfo(np.int64).min)
        at_wait = (waits >= 0) & (since <= later) & (later <= rebuilt.launch_ns[waits])
        # The last one is as the one before it; a single one shows nothing, and stays as sent for now.
        ahead.append(mine[np.append(at_wait, at_wait[-1:].any()) & (waiting[mine] >= 0)])
    task = np.concatenate(ahead) if ahead else gathers
    return Begins(task=task, after=before[waiting[task]], lag_ns=0)


def _reductions(rebuilt: Rebuilt, rank: int, ours: Bool) -> I64:
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


def _first_ready(rebuilt: Rebuilt, chosen: I64, arrival: I64, parts: I64) -> Begins:
    """After which computation each bucket's first part is ready."""
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
    return Begins(task=chosen, after=source, lag_ns=since)


def _begun(rebuilt: Rebuilt, work: I64, begin: I64, end: I64) -> I64:
    """When each backward began on the device: the first computation launched in it."""
    launch = rebuilt.launch_ns[work]
    at = np.searchsorted(begin, launch, "right") - 1
    inside = (at >= 0) & (launch < end[np.maximum(at, 0)])
    first = np.full(len(begin), np.iinfo(np.int64).max, np.int64)
    np.minimum.at(first, at[inside], rebuilt.start_ns[work[inside]])
    return np.where(first == np.iinfo(np.int64).max, begin, first)
