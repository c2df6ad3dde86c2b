"""How many SMs to leave free for communication, by the thread blocks that it keeps on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.base.intervals import I64, Intervals, exact_sum, union
from perfdoc.analyzers.contention.samples import Samples
from perfdoc.analyzers.contention.stalls import Stalls
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.analyzers.kernel_class.names import family_of


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


_WITH_MARGIN = "transformer_engine"
"""Family of kernels that have a margin (NVTE_FWD_LAYERNORM_SM_MARGIN and the like)."""


@dataclass(frozen=True, kw_only=True)
class Margin:
    """Blocks of communication while norms ran or were delayed; None where there were none, or not known."""

    occupied_blocks: int | None = None
    typical_occupied_blocks: int | None = None
    suggested: int | None = None
    reason: str = ""
    """Why none is suggested."""


def suggest_margin(view: DeviceView, samples: Samples, stalls: Stalls | None, slow: Sequence[int]) -> Margin:
    """The largest number of resident blocks of communication, where a norm that obeys margins suffers.

    slow: indices of the norms' signatures that are proven slower beside communication.
    """
    norm = np.array([s.kernel_class is KernelClass.NORM for s in samples.signatures], bool)
    mine = norm[samples.signature] if len(norm) else np.zeros(0, bool)
    starts, ends = samples.start_ns[mine], samples.end_ns[mine]
    if stalls is not None:
        starts = np.concatenate((starts, stalls.ready_ns[stalls.is_norm]))
        ends = np.concatenate((ends, stalls.start_ns[stalls.is_norm]))
    met = union(starts, ends)
    if not exact_sum(view.activity.kernel_comm.covered_within(met.start_ns, met.end_ns)):
        return Margin(reason="no norm overlapped communication")
    found = occupied_blocks(view, met)
    if found is None:
        return Margin(reason="the capture does not hold the grid of every communication kernel")
    reason = _obstacle(view, samples, stalls, slow) or _too_many(found, view.device.sm_count)
    return Margin(
        occupied_blocks=found.largest,
        typical_occupied_blocks=found.typical,
        suggested=None if reason else found.largest,
        reason=reason,
    )


def _obstacle(view: DeviceView, samples: Samples, stalls: Stalls | None, slow: Sequence[int]) -> str:
    """Why no margin can be known to help; empty where one can."""
    strings = view.trace.strings
    slow_names = [samples.signatures[i].name for i in slow]
    stalled_names = [] if stalls is None else np.unique(stalls.name[stalls.is_norm]).tolist()
    if not slow_names and not stalled_names:
        return "no norm is proven to be slowed or delayed by communication"
    if any(family_of(strings[name]) == _WITH_MARGIN for name in slow_names):
        return ""
    if not any(family_of(strings[name]) == _WITH_MARGIN for name in stalled_names):
        return "only Transformer Engine's norms have an SM margin, and none of them is affected"
    if stalls is not None and stalls.count(of_norms=False) >= stalls.count(of_norms=True):
        return "as many other kernels were delayed: launch order is the likelier cause"
    return ""


def _too_many(found: Occupied, sm_count: int | None) -> str:
    if sm_count is None:
        return "the capture does not say how many SMs the device has"
    if found.largest < sm_count:
        return ""
    return f"communication has {found.largest} blocks, as many as the device has SMs ({sm_count}) or more"
