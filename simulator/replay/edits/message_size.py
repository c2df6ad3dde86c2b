"""Other bytes: gradients reduced in bf16 instead of fp32, half the width of a message."""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.simulator.engine import TaskKind
from perfdoc.simulator.replay.edits.edit import Edit, with_durations
from perfdoc.simulator.replay.edits.latency import latency_of
from perfdoc.simulator.replay.rebuilt import Rebuilt

_UNCERTAINTY_FRAC = 0.2
"""A smaller message may be sent by another algorithm, and casting takes time on both sides."""


def other_bytes(dimension: str, factor: float, *, at_least_bytes: int = 1, reducing: bool = False) -> Edit:
    """Messages of a dimension hold `factor` times the bytes; their latency stays.

    at_least_bytes: smaller messages stay as they are (a scalar that is agreed on is no gradient).
    reducing: only collectives that are known to reduce: gradients change their type, gathered weights do not.
    ValueError for a name that is no dimension, or a factor that is not above 0.
    """
    if dimension not in DIMENSIONS:
        raise ValueError(f"other_bytes: {dimension!r} is none of {', '.join(DIMENSIONS)}")
    if not factor > 0:
        raise ValueError(f"other_bytes: factor {factor} is not above 0")

    def apply(rebuilt: Rebuilt) -> Rebuilt:
        graph = rebuilt.graph
        latency_ns = latency_of(rebuilt, dimension)
        ours = (graph.kind == TaskKind.COMMUNICATION) & (rebuilt.bytes >= at_least_bytes)
        ours &= rebuilt.dimension == DIMENSIONS.index(dimension)
        if reducing:
            ours &= rebuilt.reduces == 1
        if not ours.any():
            what = f"{dimension} reduction" if reducing else f"{dimension} message"
            raise ValueError(f"no {what} of at least {at_least_bytes:,} bytes")
        fixed = np.minimum(latency_ns, graph.duration_ns)
        takes = np.round(fixed + factor * (graph.duration_ns - fixed)).astype(np.int64)
        return with_durations(rebuilt, np.where(ours, takes, graph.duration_ns))

    return Edit(
        name=f"{dimension} {'reductions, ' if reducing else ''}bytes x {factor:g}",
        apply=apply,
        uncertainty_frac=_UNCERTAINTY_FRAC,
        leaves=(f"exposed_comm.{dimension}",),
        assumptions=(
            "what a message takes beyond its latency is in proportion to its bytes",
            "casting to the other type takes no time",
        ),
        may_cost=factor > 1,
    )
