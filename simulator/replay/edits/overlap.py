"""Communication of a dimension overlapped with compute, as far as program order and hardware queues allow.

The backward pass of a linear layer has two GEMMs: the gradient of its input, then that of its weights. The
first result is reduced over the tensor-parallel ranks between them, and the second does not need that; nor
does the first need the input that is all-gathered again for the second. With attention in parts, keys and
values of the next part travel while this one computes.

A stream waits for what its events say. Where a collective begins as a kernel ends that was launched later, it
was ready and waited in a hardware queue, as with CUDA_DEVICE_MAX_CONNECTIONS other than 1 and Megatron's
overlap of GEMMs and collectives.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.simulator.engine import EdgeKind, GraphBuilder, TaskKind
from perfdoc.simulator.engine.graph import I64, NONE
from perfdoc.simulator.replay.edits.edit import Edit
from perfdoc.simulator.replay.edits.overlap_experts import experts_overlapped
from perfdoc.simulator.replay.edits.overlap_weights import in_buckets, weights_overlapped
from perfdoc.simulator.replay.edits.rewiring import (
    WAITS_FOR_NONE,
    Rewiring,
    arrivals,
    is_transfer,
    usual_lag_ns,
)
from perfdoc.simulator.replay.rebuilt import RankFrame, Rebuilt, with_edges
from perfdoc.traces.table import Bool

_WAITS = (EdgeKind.EVENT, EdgeKind.INFERRED)


def gemms_overlapped(rebuilt: Rebuilt) -> Rebuilt:
    """The kernel after the next GEMM waits for tensor-parallel collectives, where that GEMM waits and does
    not need them. ValueError where there are none."""
    ours = np.flatnonzero(is_transfer(rebuilt, "tp"))
    lane = _Lane(rebuilt)
    waits = lane.first_waiting(ours)
    gemm = np.append(rebuilt.kernel_class == KernelClass.GEMM, False)
    before = lane.launched_before(ours)
    follows = lane.after[waits]
    # The gradient of the input is reduced; the GEMM of the weights' gradient comes next.
    reduced = (rebuilt.reduces[ours] == 1) & gemm[waits] & gemm[before] & (lane.after[before] == waits)
    # What is gathered is for the second GEMM, if the first is reduced before that runs.
    reduced_behind = np.zeros(len(gemm), bool)
    reduced_behind[before[reduced]] = True
    gathered = (rebuilt.reduces[ours] == 0) & gemm[waits] & reduced_behind[waits] & gemm[follows]
    return _awaited_later(rebuilt, lane, ours[reduced | gathered], waits[reduced | gathered], "tp")


def parts_overlapped(rebuilt: Rebuilt) -> Rebuilt:
    """The next part of attention waits for what this one waits for now. ValueError where none waits."""
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
        raise ValueError(f"no compute kernel waits for {dimension} communication that it does not need")
    wires = Rewiring(rebuilt)
    awaited = np.full(len(rebuilt.start_ns), NONE, np.int64)
    awaited[tasks] = waits
    cut = _held(wires, awaited)
    wires.kept &= ~cut
    wires.add(wires.source[cut], lane.after[wires.target[cut]], wires.lag_ns[cut], EdgeKind.EVENT)
    return wires.made("this would create a dependency cycle (a compute kernel)")


def _held(wires: Rewiring, awaited: I64) -> Bool:
    found: Bool = np.isin(wires.kind, _WAITS) & (awaited[wires.source] == wires.target)
    return found & (awaited[wires.source] >= 0)


_QUEUE_UNCERTAINTY_FRAC = 0.2
"""Communication that begins earlier takes memory bandwidth and SMs from the kernel beside it."""


def without_queueing(dimension: str = "tp") -> Edit:
    """Collectives of a dimension begin when what they wait for is done, not behind later kernels."""

    def apply(rebuilt: Rebuilt) -> Rebuilt:
        graph, wires = rebuilt.graph, Rewiring(rebuilt)
        into = np.zeros(len(rebuilt.start_ns), bool)
        into[arrivals(rebuilt)[is_transfer(rebuilt, dimension)]] = True
        computes = graph.kind == TaskKind.COMPUTE
        later = rebuilt.launch_ns[wires.source] > rebuilt.launch_ns[wires.target]
        held = into[wires.target] & computes[wires.source] & later & (wires.kind == EdgeKind.INFERRED)
        # A short kernel's worth of queueing passes for the lag of an event.
        usual = usual_lag_ns(rebuilt, EdgeKind.EVENT, computes)
        slow = into[wires.target] & (wires.kind == EdgeKind.EVENT) & (wires.lag_ns > usual)
        queued = np.zeros(len(rebuilt.start_ns), bool)
        queued[wires.target[held]] = True
        if not held.any():
            raise ValueError(f"no {dimension} communication begins as a later-launched kernel ends")
        wires.kept &= ~held
        wires.lag_ns = np.where(slow & queued[wires.target], usual, wires.lag_ns)
        return wires.made("never: edges are only removed")

    return Edit(
        name=f"{dimension} communication not queued behind later kernels",
        apply=apply,
        uncertainty_frac=_QUEUE_UNCERTAINTY_FRAC,
        leaves=(f"exposed_comm.{dimension}", "idle.dependency"),
        assumptions=(
            "communication that begins as a later-launched kernel ends waited in the hardware queue",
            "no contention between communication and compute",
        ),
    )


_ALL_NEEDED_UNCERTAINTY_FRAC = 0.4
"""Where nothing tells what needs it: all of it may."""
_PARTS_FRAC = 0.2
"""Overlapped, both sides slow each other down, which the replay does not know."""
_WEIGHTS_FRAC = 0.3
"""The same, and where no range shows passes nothing tells what needs the weights and when."""
_ENDS_LAYERS = (2.0, 4.0)
"""Where the model is not known, embedding and output may be as large as so many layers each. More is not
always more, so what lies in between is tried as well."""
_EXPERTS = ((1.0, 0.0), (0.6, 0.1))
"""(share of the memory bandwidth that GEMMs with few tokens reach, how much longer two halves take than
one whole where model or GPU are not known), the best and the worst."""
_HOLDS_UP = (EdgeKind.EVENT, EdgeKind.INFERRED, EdgeKind.HOST_SYNC)
"""Not the order of a stream: what runs in the compute stream cannot be overlapped without moving it."""


def overlapped(dimension: str, *, bucket_bytes: int | None = None) -> Edit:
    """A dimension's communication as a program runs it that overlaps it.

    dp: gradients and weights in buckets beside the passes (overlap_weights.py). tp, cp: beside the kernels
    that do not need them. ep: in two halves (overlap_experts.py). Others: nothing
    before the optimizer waits for them.

    bucket_bytes: dp: larger messages are cut to this first. Not given: where one holds more than two
    buckets of Megatron's usual size, 40 million parameters, it is cut to those. ValueError for a name that
    is no dimension.
    """
    if dimension not in DIMENSIONS:
        raise ValueError(f"overlapped: {dimension!r} is none of {', '.join(DIMENSIONS)}")
    if bucket_bytes is not None and bucket_bytes < 1:
        raise ValueError(f"overlapped: buckets of {bucket_bytes} bytes")
    apply: Callable[[Rebuilt], Rebuilt]
    variants: tuple[Callable[[Rebuilt], Rebuilt], ...] = ()
    share = _PARTS_FRAC
    said: tuple[str, ...]
    if dimension == "dp":
        share = _WEIGHTS_FRAC
        apply = partial(_weights, bucket_bytes=bucket_bytes)
        ends = (partial(_weights, bucket_bytes=bucket_bytes, ends_layers=n) for n in _ENDS_LAYERS)
        variants = (*ends, _as_it_is)
        said = (
            "a gradient bucket is reduced once complete; weights are all-gathered one bucket ahead",
            "layers have the parameters of the model; equal ones if the model is unknown",
        )
    elif dimension == "ep":
        apply = experts_overlapped
        variants = tuple(partial(experts_overlapped, memory_frac=m, slower_frac=s) for m, s in _EXPERTS)
        said = ("tokens are dispatched in two halves; each overlaps with the experts' GEMMs of the other",)
    elif dimension in ("tp", "cp"):
        apply = gemms_overlapped if dimension == "tp" else parts_overlapped
        said = ("a kernel waits only for what it needs; the next one waits for the rest",)
    else:
        apply, share = partial(_until_optimizer, dimension=dimension), _ALL_NEEDED_UNCERTAINTY_FRAC
        said = (
            f"no compute before the optimizer step needs the data of {dimension} communication",
            "it starts when it does now, not earlier",
        )

    return Edit(
        name=f"{dimension} communication overlapped",
        apply=apply,
        uncertainty_frac=share,
        # What is awaited no longer also leaves no gap between its end and the next kernel's start.
        leaves=(f"exposed_comm.{dimension}", "idle.dependency"),
        assumptions=(*said, "no contention between communication and compute"),
        variants=variants,
        may_cost=True,
    )


def _weights(rebuilt: Rebuilt, *, bucket_bytes: int | None, ends_layers: float = 0.0) -> Rebuilt:
    """Where no range shows passes, so that nothing tells which layer a bucket is of, as other dimensions."""
    if not any(is_transfer(rebuilt, "dp")):
        raise ValueError("the capture shows no dp communication")
    if not all(len(r.passes) for r in rebuilt.ranks):
        return _until_optimizer(rebuilt, dimension="dp")
    if ends_layers and all(r.facts.model is not None for r in rebuilt.ranks):
        raise ValueError("embedding and output layer have the model's sizes")
    return weights_overlapped(in_buckets(rebuilt, bucket_bytes), ends_layers=ends_layers)


def _as_it_is(rebuilt: Rebuilt) -> Rebuilt:
    """Where no range shows passes, it may be overlapped as far as can be: what is exposed may be the last
    bucket, which the optimizer waits for."""
    if all(len(r.passes) for r in rebuilt.ranks):
        raise ValueError("passes show what is overlapped")
    return rebuilt


def _until_optimizer(rebuilt: Rebuilt, *, dimension: str) -> Rebuilt:
    """What waited for it waits no longer; the step's optimizer does (the next step, where no range shows an
    optimizer; the end, where none shows a step)."""
    graph, edges = rebuilt.graph, rebuilt.graph.edges
    source, target = edges.source, edges.target
    ours = (graph.kind == TaskKind.COMMUNICATION) & (rebuilt.dimension == DIMENSIONS.index(dimension))
    if not ours.any():
        raise ValueError(f"the capture shows no {dimension} communication")
    other = ~np.isin(graph.kind, (TaskKind.COMMUNICATION, TaskKind.ARRIVAL, TaskKind.MEETING))
    cut = ours[source] & other[target] & np.isin(edges.kind, _HOLDS_UP)
    if dimension == "dp":  # the forward needs the weights that a gather brings
        cut &= rebuilt.reduces[source] == 1
    barrier = np.full(len(graph.duration_ns), -1, np.int64)
    for i, frame in enumerate(rebuilt.ranks):
        mine = np.flatnonzero(ours & (graph.rank == i))
        barrier[mine] = _barriers(rebuilt, other & (graph.rank == i), frame, rebuilt.launch_ns[mine])
    # What runs after the barrier still waits: by then the communication has to be over.
    until = rebuilt.launch_ns[np.maximum(barrier, 0)][source]
    cut &= (barrier[source] < 0) | (rebuilt.launch_ns[target] < until)
    kept_edges = np.bincount(target[~cut], minlength=len(graph.duration_ns))
    cut &= kept_edges[target] > 0
    if not cut.any():
        raise ValueError(WAITS_FOR_NONE.format(dimension))
    builder = GraphBuilder()
    for kind in EdgeKind:
        kept = (edges.kind == kind) & ~cut
        builder.add(source[kept], target[kept], edges.lag_ns[kept], kind)
    held = np.unique(source[cut])
    held = held[barrier[held] >= 0]
    builder.add(held, barrier[held], 0, EdgeKind.INFERRED)
    made = with_edges(rebuilt, builder)
    if made is None:
        raise ValueError(f"the optimizer step cannot wait for {dimension} communication: it runs before it")
    return made


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
