"""What the host does for collectives that were merged into one: it does it once."""

from __future__ import annotations

import numpy as np

from perfdoc.simulator.engine import EdgeKind, TaskKind
from perfdoc.simulator.engine.graph import I64
from perfdoc.simulator.replay.edits.edit import with_durations, with_lags
from perfdoc.simulator.replay.edits.rewiring import arrivals, launching
from perfdoc.simulator.replay.rebuilt import Rebuilt

_LONGER = 3.0
"""Than the median between two parts: the host was kept from them by something else."""


def without_merged_calls(rebuilt: Rebuilt, whole: I64) -> Rebuilt:
    """whole: by task that which carries its bucket, -1 for what is no part of one.

    Between the launches of two parts of one bucket, where nothing else is launched, the host does nothing
    but what has nothing to do with buckets: it collects garbage, loads data, or is away for longer than
    between other parts. On a CPU rank the issue of the second takes no time.
    """
    graph, edges = rebuilt.graph, rebuilt.graph.edges
    parts = np.flatnonzero(whole >= 0)
    call = launching(rebuilt)[0]
    ready = arrivals(rebuilt)
    of_part = call[ready[parts]]
    parts, of_part = parts[of_part >= 0], of_part[of_part >= 0]
    calls = np.unique(edges.source[edges.kind == EdgeKind.LAUNCH])
    duration, lag = graph.duration_ns.copy(), edges.lag_ns.copy()
    held = np.isin(edges.kind, (EdgeKind.HOST_ORDER, EdgeKind.HOST_HANDOVER)) & (lag > 0)
    for i, frame in enumerate(rebuilt.ranks):
        mine = np.flatnonzero(graph.rank[of_part] == i)
        mine = mine[np.argsort(rebuilt.start_ns[of_part[mine]], kind="stable")]
        earlier, later = of_part[mine[:-1]], of_part[mine[1:]]
        same = (whole[parts[mine[1:]]] == whole[parts[mine[:-1]]]) & (later != earlier)
        if frame.on_host:
            pieces = later[same]
            duration[pieces[graph.kind[pieces] == TaskKind.HOST]] = 0
            continue
        own = np.sort(rebuilt.start_ns[calls[graph.rank[calls] == i]])
        place = np.searchsorted(own, rebuilt.start_ns[later]) - np.searchsorted(
            own, rebuilt.start_ns[earlier]
        )
        same &= place == 1
        begin, finish = rebuilt.start_ns[earlier[same]], rebuilt.start_ns[later[same]]
        host = np.flatnonzero((graph.kind == TaskKind.HOST) & (graph.rank == i))
        at = np.searchsorted(begin, rebuilt.start_ns[host], "left") - 1
        inside = (at >= 0) & (rebuilt.start_ns[host] <= np.append(finish, 0)[at])
        gone = np.zeros(len(duration), bool)
        gone[host[inside]] = True
        duration[gone] = 0
        between = np.flatnonzero(held & gone[edges.target])
        lag[between] = _other_work_ns(rebuilt, i, between)
    return with_durations(with_lags(rebuilt, lag), duration)


def _other_work_ns(rebuilt: Rebuilt, rank: int, between: I64) -> I64:
    """Of the host's time on these edges between calls of a rank what is no work for buckets."""
    edges, frame = rebuilt.graph.edges, rebuilt.ranks[rank]
    lag = edges.lag_ns[between]
    begin, end = rebuilt.end_ns[edges.source[between]], rebuilt.start_ns[edges.target[between]]
    other = np.zeros(len(between), np.int64)
    for what in frame.host:
        other += frame.held_ns(what, begin, end)
    own = np.maximum(lag - other, 0)
    most = int(_LONGER * np.median(own)) if len(own) else 0
    stays: I64 = lag - np.minimum(own, most)
    return stays
