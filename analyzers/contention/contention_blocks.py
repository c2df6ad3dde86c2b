"""How many thread blocks communication keeps on the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.base.intervals import I64, Intervals
from perfdoc.analyzers.device.device_view import DeviceView


@dataclass(frozen=True, kw_only=True)
class Occupied:
    """Thread blocks of communication kernels that were resident at a time, concurrent ones together."""

    largest: int
    typical: int
    """Half of the time there were at most so many."""


def occupied_blocks(view: DeviceView, during: Intervals) -> Occupied | None:
    """Blocks of resident communication in the given times in which there was any.

    None where there was none, or where a kernel's grid is not known.
    """
    kernels, activity = view.trace.kernels, view.activity
    rows = activity.kernel_rows[activity.kernel_is_comm]
    start, end, blocks = kernels.start_ns[rows], kernels.end_ns[rows], kernels.grid_blocks[rows]
    shared = during.covered_within(start, end) > 0
    start, end, blocks = start[shared], end[shared], blocks[shared]
    if not len(start) or (blocks <= 0).any():
        return None
    # The sum is constant between two of these times.
    time = np.concatenate((start, end))
    change = np.concatenate((blocks, -blocks))
    order = np.argsort(time, kind="stable")
    time, resident = time[order], np.cumsum(change[order])
    weight = during.covered_within(time[:-1], time[1:])
    return _summary(resident[:-1], np.where(resident[:-1] > 0, weight, 0))


def _summary(blocks: I64, weight: I64) -> Occupied:
    order = np.argsort(blocks, kind="stable")
    blocks, reach = blocks[order], np.cumsum(weight[order])
    half = int(np.searchsorted(reach, reach[-1] / 2, "left"))
    return Occupied(largest=int(blocks[weight[order] > 0][-1]), typical=int(blocks[half]))
