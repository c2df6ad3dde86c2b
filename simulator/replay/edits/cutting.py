"""Collectives cut into parts that follow one another: the one edit that adds tasks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from perfdoc.simulator.engine import EdgeKind, GraphBuilder, TaskKind
from perfdoc.simulator.engine.graph import I64, NONE
from perfdoc.simulator.replay.edits.rewiring import arrivals
from perfdoc.simulator.replay.rank_tasks import NO_RELEASE
from perfdoc.simulator.replay.rebuilt import OF_GRAPH, OF_TASK, Rebuilt, with_edges


def in_parts(rebuilt: Rebuilt, parts: I64, latency_ns: float) -> Rebuilt:
    """parts: by task (of a matched collective its transfer) into how many equal ones it is cut; 1 leaves it.
    The members of a collective are cut alike, into the most that any is.

    A part takes the latency, and its share of the rest. The first is ready when the whole was; what waited
    for the whole waits for the last, which the task itself stands for from here on.
    """
    graph, count = rebuilt.graph, len(rebuilt.start_ns)
    arrival, meeting = arrivals(rebuilt), _meetings(rebuilt)
    most = np.ones(count, np.int64)
    matched = meeting >= 0
    np.maximum.at(most, meeting[matched], parts[matched])
    parts = np.where(matched, most[meeting], parts)
    chosen = np.flatnonzero((parts > 1) & (graph.kind == TaskKind.COMMUNICATION))
    if not len(chosen):
        return rebuilt
    more = parts[chosen] - 1
    transfer = np.repeat(chosen, more)
    number = np.concatenate([np.arange(m) for m in more.tolist()])
    """Of each new transfer in its collective; the old one is the last."""
    met = np.flatnonzero(meeting[transfer] >= 0)
    keys, which = np.unique(np.stack((meeting[transfer[met]], number[met])), axis=1, return_inverse=True)
    origin = np.concatenate((np.arange(count), transfer, arrival[transfer[met]], keys[0]))
    new_transfer = count + np.arange(len(transfer))
    new_arrival = new_transfer.copy()
    new_arrival[met] = count + len(transfer) + np.arange(len(met))
    new_meeting = count + len(transfer) + len(met) + which

    builder, edges = GraphBuilder(), graph.edges
    for kind in EdgeKind:
        mine = edges.kind == kind
        builder.add(edges.source[mine], edges.target[mine], edges.lag_ns[mine], kind)
    builder.add(new_arrival[met], new_meeting, 0, EdgeKind.COLLECTIVE)
    builder.add(new_meeting, new_transfer[met], 0, EdgeKind.COLLECTIVE)
    first = number == 0
    copied = np.full(count, NONE, np.int64)
    copied[arrival[transfer[first]]] = new_arrival[first]
    into = (copied[edges.target] >= 0) & (edges.kind != EdgeKind.COLLECTIVE)
    for kind in EdgeKind:
        mine = into & (edges.kind == kind)
        builder.add(edges.source[mine], copied[edges.target[mine]], edges.lag_ns[mine], kind)
    last = number == parts[transfer] - 2
    behind = np.where(last, arrival[transfer], np.append(new_arrival[1:], NONE))
    builder.add(new_transfer, behind, 0, EdgeKind.STREAM_ORDER)

    def column(values: Any) -> Any:
        return values[origin]

    made = replace(
        rebuilt,
        **{name: column(getattr(rebuilt, name)) for name in OF_TASK},
        graph=replace(
            graph,
            **{name: column(getattr(graph, name)) for name in OF_GRAPH},
            edges=GraphBuilder().edges(len(origin)),
        ),
    )
    _share(made, chosen, parts, np.concatenate((new_transfer, chosen)), transfer, number, latency_ns)
    made.graph.release_ns[new_transfer[met]] = NO_RELEASE
    found = with_edges(made, builder)
    assert found is not None, "parts follow one another"
    return found


def _share(
    made: Rebuilt,
    chosen: I64,
    parts: I64,
    tasks: I64,
    transfer: I64,
    number: I64,
    latency_ns: float,
) -> None:
    """Give every part its share of the whole's time and bytes."""
    whole = np.concatenate((transfer, chosen))
    of = parts[whole]
    at = np.concatenate((number, parts[chosen] - 1))
    took = made.graph.duration_ns[whole].astype(np.float64)
    fixed = np.minimum(latency_ns, took)
    made.graph.duration_ns[tasks] = np.round(fixed + (took - fixed) / of).astype(np.int64)
    start, end = made.start_ns[whole], made.end_ns[whole]
    made.start_ns[tasks] = start + (end - start) * at // of
    made.end_ns[tasks] = start + (end - start) * (at + 1) // of
    size = made.bytes[whole]
    made.bytes[tasks] = np.where(size > 0, np.maximum(size // of, 1), size)


def _meetings(rebuilt: Rebuilt) -> I64:
    """By task: the meeting that a transfer follows; -1 where it was not matched."""
    graph, edges = rebuilt.graph, rebuilt.graph.edges
    found = np.full(len(rebuilt.start_ns), NONE, np.int64)
    out = graph.kind[edges.source] == TaskKind.MEETING
    found[edges.target[out]] = edges.source[out]
    return found
