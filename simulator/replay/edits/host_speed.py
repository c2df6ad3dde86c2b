"""A faster or slower host: its calls, and what it does between them."""

from __future__ import annotations

import numpy as np

from perfdoc.simulator.engine import EdgeKind, TaskKind
from perfdoc.simulator.replay.edits.edit import Edit, with_durations, with_lags
from perfdoc.simulator.replay.rebuilt import Rebuilt

_UNCERTAINTY_FRAC = 0.2
"""That calls and Python speed up alike."""


def scaled_host(factor: float) -> Edit:
    """The host of a GPU rank takes `factor` times as long: for its calls, without what they wait for, and
    between them; data loading and garbage collection too. ValueError for a factor below 0.
    """
    if not factor >= 0:
        raise ValueError(f"scaled_host: factor {factor} is below 0")

    def apply(rebuilt: Rebuilt) -> Rebuilt:
        graph, edges = rebuilt.graph, rebuilt.graph.edges
        host = (graph.kind == TaskKind.HOST) & ~rebuilt.on_host
        if not host.any():
            raise ValueError("the capture shows no calls of a host that feeds a GPU")
        order = np.isin(edges.kind, (EdgeKind.HOST_ORDER, EdgeKind.HOST_HANDOVER)) & (edges.lag_ns > 0)
        order &= host[edges.target]
        lag = np.where(order, np.round(edges.lag_ns * factor), edges.lag_ns).astype(np.int64)
        duration = np.where(host, np.round(graph.duration_ns * factor), graph.duration_ns).astype(np.int64)
        return with_durations(with_lags(rebuilt, lag), duration)

    return Edit(
        name=f"host x {factor:g}",
        apply=apply,
        uncertainty_frac=_UNCERTAINTY_FRAC,
        leaves=("idle",),
        assumptions=("calls and the work between them change alike",),
        may_cost=factor > 1,
    )
