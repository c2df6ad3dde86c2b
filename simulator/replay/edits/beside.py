"""What communication takes of the computation beside it, on ranks that train on the CPU.

Threads of the backend and the kernel's copies need cores too. A step tells how much: of passes of one kind,
those that gradients are reduced beside compute longer than those without (with several micro-batches only
the last backward reduces). It is at most the time that the transfer lasts: then the pass stands still.
"""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.base.intervals import Intervals
from perfdoc.simulator.engine import TaskKind
from perfdoc.simulator.engine.graph import I64
from perfdoc.simulator.replay.edits.weight_places import F64
from perfdoc.simulator.replay.rebuilt import Rebuilt

_BESIDE_FRAC = 0.01
"""A pass that communicates for less of its time is one without."""


def with_less_beside(rebuilt: Rebuilt, rows: I64, duration_ns: I64) -> I64:
    """The durations with the computation of passes of CPU ranks shorter (or longer) by what the communication
    `rows` no longer takes of it, if it lasts as these durations say. Where no two passes can be compared,
    nothing changes."""
    found = duration_ns.copy()
    for i, frame in enumerate(rebuilt.ranks):
        mine = rows[rebuilt.graph.rank[rows] == i]
        if not frame.on_host or not len(frame.passes) or not len(mine):
            continue
        beside, share = _share_taken(rebuilt, i, mine)
        before, after = (int(d[mine].sum()) for d in (rebuilt.graph.duration_ns, duration_ns))
        if share is None or before <= 0:
            continue
        tasks, at, computed = _computing(rebuilt, i)
        less = share * beside * (1 - after / before)
        factor = 1 - np.minimum(less / np.maximum(computed, 1), 1)
        found[tasks] = np.round(rebuilt.graph.duration_ns[tasks] * factor[at]).astype(np.int64)
    return found


def _share_taken(rebuilt: Rebuilt, rank: int, mine: I64) -> tuple[F64, float | None]:
    """Time of a rank's communication in each of its passes, and what share of it the passes compute longer by
    than those of their kind without; None where there are not both."""
    passes = rebuilt.ranks[rank].passes
    order = np.argsort(rebuilt.start_ns[mine], kind="stable")
    start, end = rebuilt.start_ns[mine[order]], rebuilt.end_ns[mine[order]]
    start = np.maximum(start, np.concatenate((start[:1], np.maximum.accumulate(end)[:-1])))
    running = Intervals(start_ns=start[end > start], end_ns=end[end > start])
    beside = running.covered_within(passes.start_ns, passes.end_ns).astype(np.float64)
    with_it = beside > _BESIDE_FRAC * (passes.end_ns - passes.start_ns)
    _, _, computed = _computing(rebuilt, rank)
    longer, of = 0.0, 0.0
    for forward in (True, False):
        kind = passes.is_forward == forward
        some, none = kind & with_it, kind & ~with_it
        if some.any() and none.any():
            longer += float((computed[some] - computed[none].mean()).sum())
            of += float(beside[some].sum())
    return beside, min(max(longer / of, 0.0), 1.0) if of else None


def _computing(rebuilt: Rebuilt, rank: int) -> tuple[I64, I64, F64]:
    """Computations in the passes of a rank, the pass of each, and what every pass computes in all."""
    graph, passes = rebuilt.graph, rebuilt.ranks[rank].passes
    tasks = np.flatnonzero((graph.kind == TaskKind.COMPUTE) & (graph.rank == rank))
    at = passes.at(rebuilt.launch_ns[tasks])
    tasks, at = tasks[at >= 0], at[at >= 0]
    computed = np.zeros(len(passes), np.float64)
    np.add.at(computed, at, graph.duration_ns[tasks])
    return tasks, at, computed
