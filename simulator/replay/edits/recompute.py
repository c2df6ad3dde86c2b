"""Keep activations: what is done again for the backward goes."""

from __future__ import annotations

import numpy as np

from perfdoc.simulator.engine import EdgeKind, TaskKind
from perfdoc.simulator.replay.edits.edit import Edit, with_durations, with_lags
from perfdoc.simulator.replay.rebuilt import Rebuilt

_UNCERTAINTY_FRAC = 0.15
"""The time is measured; kept activations have to be written and read instead."""


def without_recompute() -> Edit:
    """Forwards of layers inside a backward pass take no time: their kernels, their communication, and on the
    host their calls and what lies between them."""

    def apply(rebuilt: Rebuilt) -> Rebuilt:
        if not any(len(r.passes.recompute) for r in rebuilt.ranks):
            raise ValueError("no range of the capture shows a layer's forward inside a backward")
        graph, edges = rebuilt.graph, rebuilt.graph.edges
        duration, lag = graph.duration_ns.copy(), edges.lag_ns.copy()
        order = np.isin(edges.kind, (EdgeKind.HOST_ORDER, EdgeKind.HOST_HANDOVER))
        for i, frame in enumerate(rebuilt.ranks):
            known, mine = frame.passes.recompute, graph.rank == i
            if not len(known):
                continue
            at = rebuilt.launch_ns
            again = mine & (at >= 0) & (known.covered_within(at, at + 1) > 0)
            duration[again & (graph.kind != TaskKind.ARRIVAL)] = 0
            gaps = np.flatnonzero(order & mine[edges.target] & (lag > 0))
            inside = known.covered_within(
                rebuilt.end_ns[edges.source[gaps]], rebuilt.start_ns[edges.target[gaps]]
            )
            lag[gaps] = np.maximum(lag[gaps] - inside, 0)
        return with_durations(with_lags(rebuilt, lag), duration)

    return Edit(
        name="without recompute",
        apply=apply,
        uncertainty_frac=_UNCERTAINTY_FRAC,
        leaves=("compute", "exposed_comm", "idle"),
        assumptions=("the activations fit into memory", "writing and reading them takes no longer than now"),
    )
