"""Give norms the multiprocessors that communication holds: each takes what it takes alone."""

from __future__ import annotations

import numpy as np

from perfdoc.simulator.replay.edits.edit import Edit, with_durations
from perfdoc.simulator.replay.rebuilt import Rebuilt

_UNCERTAINTY_FRAC = 0.3
"""A margin leaves communication its blocks, so a norm has fewer than alone; and the runs alone vary."""


def norms_alone() -> Edit:
    """Norms beside communication take the median time of the same kernel in the same shape alone."""

    def apply(rebuilt: Rebuilt) -> Rebuilt:
        known = rebuilt.alone_ns >= 0
        if not known.any():
            raise ValueError("no norm ran both beside communication and alone")
        duration = np.where(
            known, np.minimum(rebuilt.alone_ns, rebuilt.graph.duration_ns), rebuilt.graph.duration_ns
        )
        return with_durations(rebuilt, duration)

    return Edit(
        name="norms alone",
        apply=apply,
        uncertainty_frac=_UNCERTAINTY_FRAC,
        leaves=("compute",),
        assumptions=("a norm with a margin takes what it takes alone", "communication gets no slower"),
    )
