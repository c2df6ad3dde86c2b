"""Communication of a dimension beside computation, as far as a program can have it there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.simulator.engine import EdgeKind, GraphBuilder, TaskKind
from perfdoc.simulator.engine.graph import I64
from perfdoc.simulator.replay.edits.edit import Edit
from perfdoc.simulator.replay.edits.overlap_experts import experts_overlapped
from perfdoc.simulator.replay.edits.overlap_products import parts_overlapped, products_overlapped
from perfdoc.simulator.replay.edits.overlap_weights import in_buckets, weights_overlapped
from perfdoc.simulator.replay.edits.rewiring import is_transfer
from perfdoc.simulator.replay.rebuilt import RankFrame, Rebuilt, with_edges
from perfdoc.traces.table import Bool

_UNCERTAINTY_FRAC = 0.4
"""Where nothing tells what needs it: all of it may."""
_PARTS_FRAC = 0.2
"""Overlapped, both sides slow each other down, which the replay does not know."""
_WEIGHTS_FRAC = 0.3
"""The same, and where no range shows passes nothing tells what needs the weights and when."""
_ENDS_LAYERS = (2.0, 4.0)
"""Where the model is not known, embedding and output may be as large as so many layers each. More is not
always more, so what lies in between is tried as well."""
_EXPERTS = ((1.0, 0.0), (0.6, 0.1))
"""(share of the memory bandwidth that products with few tokens reach, how much longer two halves take than
one whole where model or GPU are not known), the best and the worst."""
_HOLDS_UP = (EdgeKind.EVENT, EdgeKind.INFERRED, EdgeKind.HOST_SYNC)
"""Not the order of a stream: what runs in the stream of computation cannot be overlapped as it is."""


def overlapped(dimension: str, *, bucket_bytes: int | None = None) -> Edit:
    """A dimension's communication as a program runs it that overlaps it.

    dp: gradients and weights in buckets beside the passes (overlap_weights.py). tp, cp: beside the kernels
    that do not need them (overlap_products.py). ep: in two halves (overlap_experts.py). Others: nothing
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
            "gradients of a bucket are reduced once all are ready, weights gathered one bucket ahead",
            "layers have as many parameters as the model says; all alike where it is not known",
        )
    elif dimension == "ep":
        apply = experts_overlapped
        variants = tuple(partial(experts_overlapped, memory_frac=m, slower_frac=s) for m, s in _EXPERTS)
        said = ("tokens travel in two halves, one while the experts compute the other",)
    elif dimension in ("tp", "cp"):
        apply = products_overlapped if dimension == "tp" else parts_overlapped
        said = ("what a kernel does not need is awaited by the one behind it",)
    else:
        apply, share = partial(_until_optimizer, dimension=dimension), _UNCERTAINTY_FRAC
        said = (
            f"no computation before the optimizer needs what {dimension} communication brings",
            "it starts when it starts now, no earlier",
        )

    return Edit(
        name=f"{dimension} communication overlapped",
        apply=apply,
        uncertainty_frac=share,
        # What is awaited no longer also leaves no gap between its end and the next kernel's start.
        leaves=(f"exposed_comm.{dimension}", "idle.dependency"),
        assumptions=(*said, "communication and computation do not slow each other down"),
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
        raise ValueError("the model is known: its ends hold what they hold")
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
        raise ValueError(f"nothing waits for {dimension} communication before the optimizer as it is")
    builder = GraphBuilder()
    for kind in EdgeKind:
        kept = (edges.kind == kind) & ~cut
        builder.add(source[kept], target[kept], edges.lag_ns[kept], kind)
    held = np.unique(source[cut])
    held = held[barrier[held] >= 0]
    builder.add(held, barrier[held], 0, EdgeKind.INFERRED)
    made = with_edges(rebuilt, builder)
    if made is None:
        raise ValueError(f"the optimizer cannot wait for {dimension} communication: it comes before it")
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
