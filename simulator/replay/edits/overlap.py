"""Communication of a dimension no longer holds up computation until the optimizer."""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.simulator.engine import EdgeKind, GraphBuilder, TaskKind
from perfdoc.simulator.engine.graph import I64
from perfdoc.simulator.replay.edits.edit import Edit
from perfdoc.simulator.replay.rebuilt import RankFrame, Rebuilt, with_edges
from perfdoc.traces.table import Bool

_UNCERTAINTY_FRAC = 0.4
"""Overlapped, both sides slow each other down, which the replay does not know."""
_HOLDS_UP = (EdgeKind.EVENT, EdgeKind.INFERRED, EdgeKind.HOST_SYNC)
"""Not the order of a stream: what runs in the stream of computation cannot be overlapped as it is."""


def overlapped(dimension: str) -> Edit:
    """What waited for it waits no longer; the step's optimizer does (the next step, where no range shows an
    optimizer; the end, where none shows a step).

    ValueError for a name that is no dimension.
    """
    if dimension not in DIMENSIONS:
        raise ValueError(f"overlapped: {dimension!r} is none of {', '.join(DIMENSIONS)}")

    def apply(rebuilt: Rebuilt) -> Rebuilt:
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

    return Edit(
        name=f"{dimension} communication overlapped",
        apply=apply,
        uncertainty_frac=_UNCERTAINTY_FRAC,
        leaves=(f"exposed_comm.{dimension}",),
        assumptions=(
            f"no computation before the optimizer needs what {dimension} communication brings",
            "it starts when it starts now, no earlier",
            "communication and computation do not slow each other down",
        ),
    )


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
