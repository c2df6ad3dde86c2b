"""Weights gathered in smaller buckets: what is sent for one bucket ahead is less, and the rest is waited for.

A bucket of n parts: the first is sent for when the whole was, ahead of time. The others are sent for one
after the other as each before them is awaited, which is where a layer already waits: they are exposed. The
task stands for the first part; the others show as what waited for the whole, and what was sent for there,
coming so much later. Gathers that are sent for all at once stay so: their parts follow one another.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfdoc.simulator.engine import TaskKind
from perfdoc.simulator.engine.graph import I64, NONE
from perfdoc.simulator.replay.edits.edit import with_durations, with_lags
from perfdoc.simulator.replay.edits.rewiring import arrivals, is_transfer
from perfdoc.simulator.replay.rebuilt import Rebuilt

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
        # The last one is as the one before it; a single one tells nothing, and stays as it is sent for now.
        ahead = np.append(at_wait, at_wait[-1:].any()) & (waiting[mine] >= 0)
        duration[mine] = np.where(ahead, part_ns, parts * part_ns)
        extra[mine] = np.where(ahead, (parts - 1) * part_ns, 0)
        behind[here[at_wait]] = mine[1:][at_wait]
    _later(rebuilt, lag, extra, behind, waiting)
    return with_durations(with_lags(rebuilt, lag), duration)


def _later(rebuilt: Rebuilt, lag: I64, extra: I64, behind: I64, waiting: I64) -> None:
    """Add to lags what parts hold up."""
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
    """Collectives that follow one another: of one rank, stream and kind, by start."""
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
