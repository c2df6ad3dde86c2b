"""Take something out of the host's time: garbage collection, data loading."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from perfdoc.simulator.engine import EdgeKind, TaskKind
from perfdoc.simulator.engine.graph import I64
from perfdoc.simulator.replay.edits.edit import Edit, with_durations, with_lags
from perfdoc.simulator.replay.rebuilt import RankFrame, Rebuilt

_UNCERTAINTY_FRAC = 0.15
"""The removed time is measured; that nothing of it comes back elsewhere (a worker still hands its batch
over, collections are done later) is not."""


def without_host_time(what: Literal["gc", "data"], *, keep_frac: float = 0.0) -> Edit:
    """Remove it from the host's time between CUDA calls (of a CPU rank: from its pieces); the calls stay.

    keep_frac: share of it that stays. ValueError unless 0 <= keep_frac <= 1.
    """
    if not 0 <= keep_frac <= 1:
        raise ValueError(f"without_host_time: keep_frac {keep_frac} is not within 0 and 1")

    def apply(rebuilt: Rebuilt) -> Rebuilt:
        if not any(len(r.host[what]) and r.host_left_frac.get(what, 1.0) for r in rebuilt.ranks):
            raise ValueError(f"no range of the capture shows {what}")
        graph, edges = rebuilt.graph, rebuilt.graph.edges
        source, target = edges.source, edges.target
        order = np.isin(edges.kind, (EdgeKind.HOST_ORDER, EdgeKind.HOST_HANDOVER))
        piece = rebuilt.on_host & (graph.kind == TaskKind.HOST)
        duration, lag = graph.duration_ns.copy(), edges.lag_ns.copy()
        for i, frame in enumerate(rebuilt.ranks):
            mine = graph.rank == i
            rows = np.flatnonzero(piece & mine)
            inside = frame.held_ns(what, rebuilt.start_ns[rows], rebuilt.end_ns[rows])
            duration[rows] = np.maximum(duration[rows] - _gone(inside, keep_frac), 0)
            gaps = np.flatnonzero(order & mine[target] & (lag > 0))
            inside = frame.held_ns(what, rebuilt.end_ns[source[gaps]], rebuilt.start_ns[target[gaps]])
            lag[gaps] = np.maximum(lag[gaps] - _gone(inside, keep_frac), 0)
        left = tuple(_with_less(frame, what, keep_frac) for frame in rebuilt.ranks)
        return replace(with_durations(with_lags(rebuilt, lag), duration), ranks=left)

    return Edit(
        name=f"without {what}" if keep_frac == 0 else f"{100 * keep_frac:.0f} % of {what}",
        apply=apply,
        uncertainty_frac=_UNCERTAINTY_FRAC,
        # What the host loses in it may show as launches that come late, also long after.
        leaves=("idle.host", f"idle.{what}"),
        assumptions=(f"the host does nothing instead of {what}", "CUDA calls inside of it stay"),
    )


def _with_less(frame: RankFrame, what: str, keep_frac: float) -> RankFrame:
    left = frame.host_left_frac.get(what, 1.0) * keep_frac
    return replace(frame, host_left_frac={**frame.host_left_frac, what: left})


def _gone(inside_ns: I64, keep_frac: float) -> I64:
    gone: I64 = np.round(inside_ns * (1 - keep_frac)).astype(np.int64)
    return gone
