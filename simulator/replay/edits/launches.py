"""Launch kernels together (CUDA graphs): calls and the host's work between them go."""

from __future__ import annotations

from functools import partial

import numpy as np

from perfdoc.analyzers.host.calls import CallKind
from perfdoc.simulator.engine import EdgeKind
from perfdoc.simulator.replay.edits.edit import Edit, with_durations, with_lags
from perfdoc.simulator.replay.rebuilt import Rebuilt

_UNCERTAINTY_FRAC = 0.2
"""Inside a graph kernels also follow one another faster, which is not assumed; on the other hand not
everything can be captured."""
_PAUSE_NS = 10_000_000
"""Python between two launches takes some microseconds to milliseconds."""
_STAYS = (CallKind.ALLOCATION, CallKind.SYNCHRONISING, CallKind.MODULE_LOAD)


def without_launches(from_ns: int | None = None, to_ns: int | None = None) -> Edit:
    """Between the first and the last launch of every unbroken stretch of launches the host takes no time.

    A stretch is broken by a call that waits for the device, allocates or loads code, by data loading, and by
    a step's start. Its first launch stays as it is: it stands for the launch of the graph. Collections of
    garbage stay.
    from_ns, to_ns: host time in which calls are taken; None is no bound.
    """

    def apply(rebuilt: Rebuilt, *, pause_ns: int | None = None) -> Rebuilt:
        graph, edges = rebuilt.graph, rebuilt.graph.edges
        if not (rebuilt.call == CallKind.LAUNCH).any():
            raise ValueError("the capture shows no launch of the host")
        taken = (rebuilt.call >= 0) & ~np.isin(rebuilt.call, _STAYS)
        if from_ns is not None:
            taken &= rebuilt.start_ns >= from_ns
        if to_ns is not None:
            taken &= rebuilt.start_ns < to_ns
        source, target = edges.source, edges.target
        order = np.isin(edges.kind, (EdgeKind.HOST_ORDER, EdgeKind.HOST_HANDOVER))
        between = order & taken[source] & taken[target]
        if pause_ns is not None:
            between &= edges.lag_ns <= pause_ns
        kept = np.zeros(len(source), np.int64)
        for i, frame in enumerate(rebuilt.ranks):
            mine = np.flatnonzero(between & (graph.rank[target] == i))
            begin, end = rebuilt.start_ns[source[mine]], rebuilt.start_ns[target[mine]]
            steps = np.array(frame.step_starts_ns, np.int64)
            crossed = np.searchsorted(steps, end, "right") > np.searchsorted(steps, begin, "right")
            crossed |= frame.host["data"].covered_within(begin, end) > 0
            between[mine[crossed]] = False
            kept[mine] = frame.held_ns("gc", rebuilt.end_ns[source[mine]], end)
        # A call that follows one of its stretch takes no time; the first of a stretch does.
        follows = np.zeros(len(graph.duration_ns), bool)
        follows[target[between]] = True
        lag = np.where(between, np.minimum(edges.lag_ns, kept), edges.lag_ns)
        duration = np.where(follows, 0, graph.duration_ns)
        return with_durations(with_lags(rebuilt, lag), duration)

    return Edit(
        name="launched together",
        apply=apply,
        uncertainty_frac=_UNCERTAINTY_FRAC,
        leaves=("idle.host", "idle.launch_latency"),
        assumptions=(
            "everything between two waits of the host can be captured in one CUDA graph",
            "the first launch of a stretch takes as long as the launch of the graph",
            "the gaps between kernels that are queued stay as measured",
            f"a pause of the host of more than {_PAUSE_NS // 10**6} ms may be none that a graph takes away",
        ),
        variants=(partial(apply, pause_ns=_PAUSE_NS),),
    )
