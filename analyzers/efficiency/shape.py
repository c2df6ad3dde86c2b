"""SMs without work: launches of fewer thread blocks than SMs, and the last wave of the others."""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.traces.table import F64


def busy_sm_frac(grid_blocks: I64, sm_count: int | None) -> F64:
    """Share of SM time that blocks of equal work can fill, at best; 1 where nothing is known.

    Some SM runs ceil(blocks / SMs) of them, however many are resident at once, and the launch takes as long
    as that SM: blocks / (SMs x ceil(blocks / SMs)). 132 SMs and 140 blocks: 140 / 264, 0.53.
    """
    if not sm_count:
        return np.ones(len(grid_blocks))
    blocks = np.maximum(grid_blocks, 1)
    return np.where(grid_blocks > 0, blocks / (sm_count * np.ceil(blocks / sm_count)), 1.0)
