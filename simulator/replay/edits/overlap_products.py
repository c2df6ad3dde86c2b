"""Tensor and context parallelism beside the kernels that do not need them.

Of a product's backward, two products: the gradient of its input, then that of its weights. Between them the
first is reduced over the tensor-parallel ranks, and the second does not need that; nor does the first need
the input that is gathered anew for the second. Of attention in parts, keys and values of the next part travel
while this one computes.
"""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.simulator.engine import EdgeKind, TaskKind
from perfdoc.simulator.engine.graph import I64, NONE
from perfdoc.simulator.replay.edits.rewiring import Rewiring, is_transfer
from perfdoc.simulator.replay.rebuilt import Rebuilt
from perfdoc.traces.table import Bool

_WAITS = (EdgeKind.EVENT, EdgeKind.INFERRED)


def products_overlapped(rebuilt: Rebuilt) -> Rebuilt:
    """Tensor-parallel collectives that the next product waits for and does not need are awaited by what
    follows it. ValueError where there are none."""
    ours = np.flatnonzero(is_transfer(rebuilt, "tp"))
    lane = _Lane(rebuilt)
    waits = lane.first_waiting(ours)
    product = np.append(rebuilt.kernel_class == KernelClass.GEMM, False)
    before = lane.launched_before(ours)
    follows = lane.after[waits]
    # The gradient of the input is reduced; the product of the weights' gradient comes next.
    reduced = (rebuilt.reduces[ours] == 1) & product[waits] & product[before] & (lane.after[before] == waits)
    # What is gathered is for the second product, if the first is reduced before that runs.
    reduced_behind = np.zeros(len(product), bool)
    reduced_behind[before[reduced]] = True
    gathered = (rebuilt.reduces[ours] == 0) & product[waits] & reduced_behind[waits] & product[follows]
    return _awaited_later(rebuilt, lane, ours[reduced | gathered], waits[reduced | gathered], "tp")


def parts_overlapped(rebuilt: Rebuilt) -> Rebuilt:
    """What a part of attention waits for at once is awaited by the next part. ValueError where nothing is."""
    ours = np.flatnonzero(is_transfer(rebuilt, "cp"))
    lane = _Lane(rebuilt)
    waits = lane.first_waiting(ours)
    attention = np.append(rebuilt.kernel_class == KernelClass.ATTENTION, False)
    moved = attention[waits] & attention[lane.after[waits]]
    return _awaited_later(rebuilt, lane, ours[moved], waits[moved], "cp")


class _Lane:
    """Computations by launch on every rank; -1, the last entry of a column, is none."""

    def __init__(self, rebuilt: Rebuilt) -> None:
        graph = rebuilt.graph
        self.rebuilt = rebuilt
        work = np.flatnonzero((graph.kind == TaskKind.COMPUTE) & (rebuilt.launch_ns >= 0))
        self.work = work[np.lexsort((rebuilt.launch_ns[work], graph.rank[work]))]
        self.after = np.full(len(rebuilt.start_ns) + 1, NONE, np.int64)
        """By task the computation behind it on the same rank."""
        same = graph.rank[self.work[1:]] == graph.rank[self.work[:-1]]
        self.after[self.work[:-1][same]] = self.work[1:][same]

    def first_waiting(self, tasks: I64) -> I64:
        """The computation launched first of those that wait for each of these."""
        rebuilt, edges = self.rebuilt, self.rebuilt.graph.edges
        place = np.full(len(rebuilt.start_ns), len(self.work), np.int64)
        place[self.work] = np.arange(len(self.work))
        chosen = np.zeros(len(rebuilt.start_ns), bool)
        chosen[tasks] = True
        mine = np.isin(edges.kind, _WAITS) & chosen[edges.source] & (place[edges.target] < len(self.work))
        first = np.full(len(rebuilt.start_ns), len(self.work), np.int64)
        np.minimum.at(first, edges.source[mine], place[edges.target[mine]])
        found: I64 = np.append(self.work, NONE)[first[tasks]]
        return found

    def launched_before(self, tasks: I64) -> I64:
        """The last computation that was launched on the same rank before each of these."""
        rebuilt, rank = self.rebuilt, self.rebuilt.graph.rank
        found = np.full(len(tasks), NONE, np.int64)
        for i in range(len(rebuilt.ranks)):
            own, mine = self.work[rank[self.work] == i], np.flatnonzero(rank[tasks] == i)
            at = np.searchsorted(rebuilt.launch_ns[own], rebuilt.launch_ns[tasks[mine]]) - 1
            found[mine] = np.append(own, NONE)[at]
        return found


def _awaited_later(rebuilt: Rebuilt, lane: _Lane, tasks: I64, waits: I64, dimension: str) -> Rebuilt:
    """What waited for each of these waits no more; the computation behind it does."""
    if not len(tasks):
        raise ValueError(f"no computation waits for {dimension} communication that it does not need")
    wires = Rewiring(rebuilt)
    awaited = np.full(len(rebuilt.start_ns), NONE, np.int64)
    awaited[tasks] = waits
    cut = _held(wires, awaited)
    wires.kept &= ~cut
    wires.add(wires.source[cut], lane.after[wires.target[cut]], wires.lag_ns[cut], EdgeKind.EVENT)
    return wires.made("a computation would wait for what waits for it")


def _held(wires: Rewiring, awaited: I64) -> Bool:
    found: Bool = np.isin(wires.kind, _WAITS) & (awaited[wires.source] == wires.target)
    return found & (awaited[wires.source] >= 0)
