"""Tokens are dispatched and combined in two halves: one travels while the other computes.

The capture shows the all-to-all, the experts' GEMMs, and the all-to-all back, one after the other, for all
tokens. In halves: both halves are sent at once, one behind the other; the GEMMs of a half begin when it has
arrived; its results travel while the other half computes. The task of each all-to-all stands for the half
that is not hidden, the first of those sent and the last of those that return; where the others are in the
way, the return begins later.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.profiling.gpus import gpu_model
from perfdoc.records import dataclass
from perfdoc.simulator.engine import EdgeKind, TaskKind
from perfdoc.simulator.engine.graph import I64
from perfdoc.simulator.forward.hardware import MEMORY_EFFICIENCY
from perfdoc.simulator.forward.layout import layer_parameters
from perfdoc.simulator.replay.edits.edit import with_durations
from perfdoc.simulator.replay.edits.messages import beyond_latency, latency_of_any
from perfdoc.simulator.replay.edits.rewiring import Rewiring, arrivals, awaiting, is_transfer, usual_lag_ns
from perfdoc.simulator.replay.rebuilt import Rebuilt
from perfdoc.traces.table import Bool

F64 = NDArray[np.float64]
_MEMORY_FRAC = MEMORY_EFFICIENCY
_NO_EXPERTS = (KernelClass.NORM, KernelClass.ATTENTION)


def experts_overlapped(
    rebuilt: Rebuilt, *, memory_frac: float = _MEMORY_FRAC, slower_frac: float = 0.0
) -> Rebuilt:
    """The step with every all-to-all in halves. ValueError where none is exposed.

    memory_frac: share of a GPU's memory bandwidth that reading weights reaches. GEMMs of half the tokens take
    half the time, but no less than reading the experts' weights once (twice in a backward pass); where model
    or GPU are unknown, half the time and `slower_frac` of it.
    """
    pairs = _exchanges(rebuilt)
    if not len(pairs.sent):
        raise ValueError("no all-to-all of tokens is waited for immediately and followed by another")
    graph = rebuilt.graph
    latency_ns = latency_of_any(rebuilt, "ep")
    into = np.zeros(len(rebuilt.start_ns), bool)
    into[arrivals(rebuilt)[pairs.back]] = True
    awaited = usual_lag_ns(rebuilt, EdgeKind.EVENT, into)
    behind = usual_lag_ns(rebuilt, EdgeKind.STREAM_ORDER, graph.kind == TaskKind.COMPUTE)
    sent, back = (
        np.round(beyond_latency(graph.duration_ns[tasks], latency_ns, 0.5)).astype(np.int64)
        for tasks in (pairs.sent, pairs.back)
    )
    whole = rebuilt.end_ns[pairs.last] - rebuilt.start_ns[pairs.begin]
    beside = whole - pairs.gemms_ns + (pairs.kernels - 1) * behind
    read_ns = _read_ns(rebuilt, pairs, memory_frac)
    if read_ns is None:
        half = pairs.gemms_ns / 2 * (1 + slower_frac)
    else:
        half = np.maximum(pairs.gemms_ns / 2, read_ns)
    half = half + beside / 2
    half = np.round(half).astype(np.int64)
    # From the end of the first half's way there: when the second half is computed, and when the first is
    # back.
    computed = np.maximum(half, sent) + behind + half + 2 * awaited
    returned = np.maximum(half + 2 * awaited, sent + 2 * behind) + back + behind
    duration = graph.duration_ns.copy()
    duration[pairs.sent], duration[pairs.back] = sent, back
    duration[pairs.last] += np.maximum(2 * half + behind - whole, 0)
    made = with_durations(rebuilt, duration)
    wires = Rewiring(made)
    wires.add(pairs.sent, arrivals(made)[pairs.back], np.maximum(computed, returned), EdgeKind.INFERRED)
    return wires.made("this would create a dependency cycle (an all-to-all)")


@dataclass(frozen=True, kw_only=True)
class _Pairs:
    """Exchanges there and back; columns."""

    sent: I64
    back: I64
    begin: I64
    """The first computation between them."""
    last: I64
    kernels: I64
    """How many there are."""
    gemms_ns: I64
    """Of those, what the GEMMs take."""
    in_forward: Bool


def _read_ns(rebuilt: Rebuilt, pairs: _Pairs, memory_frac: float) -> F64 | None:
    """The least time of the GEMMs of a layer's experts; None where unknown."""
    facts, gpu = rebuilt.ranks[0].facts, gpu_model(rebuilt.ranks[0].gpu_name)
    if facts.model is None or gpu is None or gpu.memory_gbps is None:
        return None
    layer = facts.model.layers - 1
    held = 2 * layer_parameters(facts.model, layer, tp=facts.tp or 1, ep=facts.ep or 1)[1]
    once: F64 = np.full(len(pairs.sent), held / (gpu.memory_gbps * memory_frac))
    return np.where(pairs.in_forward, once, 2 * once)


def _exchanges(rebuilt: Rebuilt) -> _Pairs:
    """Every pair that is exposed."""
    graph = rebuilt.graph
    ours = np.flatnonzero(is_transfer(rebuilt, "ep") & (graph.duration_ns > 0))
    waiting, every = awaiting(rebuilt, ours, (EdgeKind.EVENT,)), rebuilt.computations
    parts = []
    of_ranks = rebuilt.by_rank(ours), rebuilt.by_rank(every)
    for frame, mine, theirs in zip(rebuilt.ranks, *of_ranks, strict=True):
        own, work = ours[mine], every[theirs]
        own = own[np.argsort(rebuilt.launch_ns[own], kind="stable")]
        if len(own) < 2 or not len(work):
            continue
        launch = rebuilt.launch_ns[work]
        follows = np.searchsorted(launch, rebuilt.launch_ns[own])
        at_once = (follows < len(work)) & (waiting[own] == np.append(work, -1)[follows])
        # A pair: awaited at once both times, with computation between, in one pass and without a third.
        pair = at_once[:-1] & at_once[1:] & (follows[1:] > follows[:-1])
        passes = frame.passes
        where = passes.at(rebuilt.launch_ns[own])
        pair &= where[:-1] == where[1:]
        gemm = rebuilt.kernel_class[work] == KernelClass.GEMM
        taken = np.append(0, np.cumsum(np.where(gemm, graph.duration_ns[work], 0)))
        # Between an exchange back and the next there, layers have norms and attention: no experts.
        other = np.append(0, np.cumsum(np.isin(rebuilt.kernel_class[work], _NO_EXPERTS)))
        pair &= (taken[follows[1:]] > taken[follows[:-1]]) & (other[follows[1:]] == other[follows[:-1]])
        at = _every_other(pair)
        forward = np.append(passes.is_forward, True)[where[at]]
        first, end = follows[at], follows[at + 1]
        of_gemms = taken[end] - taken[first]
        parts.append((own[at], own[at + 1], work[first], work[end - 1], end - first, of_gemms, forward))
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)] or [np.empty(0, np.int64)] * 7
    return _Pairs(
        sent=columns[0],
        back=columns[1],
        begin=columns[2],
        last=columns[3],
        kernels=columns[4],
        gemms_ns=columns[5],
        in_forward=columns[6].astype(bool),
    )


def _every_other(pair: Bool) -> I64:
    """Of runs of neighbouring pairs the first, third, ...: what comes back is not sent again."""
    at = np.flatnonzero(pair)
    if not len(at):
        return at
    begins = np.append(True, np.diff(at) > 1)
    start = at[begins][np.cumsum(begins) - 1]
    return np.asarray(at[(at - start) % 2 == 0])
