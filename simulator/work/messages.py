"""Messages between stages, once both sides are there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.communication.calls import device_rows
from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.records import dataclass

_PP = DIMENSIONS.index("pp")
_MIN_FRAC = 0.25
"""Of the largest: smaller ones say how large the next is."""


@dataclass(frozen=True, kw_only=True)
class Messages:
    """Those of one rank; ns."""

    quickest_ns: float | None = None
    """None where there are none."""
    by_peer_ns: Mapping[int, float] = field(default_factory=dict)
    """By the other side's global rank, where it is known."""


def messages_of(view: DeviceView) -> Messages:
    """The quickest of each step, the median step. Nearly every message of a stage may contain its wait for
    the next one; the first that it sends finds that one waiting."""
    comm = view.activity.communication
    mine = comm.dimension == _PP
    mine &= (comm.bytes < 0) | (comm.bytes >= _MIN_FRAC * comm.bytes[mine].max(initial=0))
    if not mine.any():
        return Messages()
    begin = np.array([s.start_ns for s in view.window.step_list], np.int64)
    step = np.searchsorted(begin, comm.start_ns, "right")
    took = comm.end_ns - comm.start_ns
    by_peer = {}
    if not view.activity.on_host:
        rows = device_rows(view)
        # Of a group of unknown ranks the other side is a number within it.
        named = np.array([bool(g.ranks) or view.trace.peers_are_global for g in rows.groups] + [False])
        said = mine & (rows.peer >= 0) & named[rows.group]
        by_peer = {int(p): _quickest(took, step, said & (rows.peer == p)) for p in np.unique(rows.peer[said])}
    return Messages(quickest_ns=_quickest(took, step, mine), by_peer_ns=by_peer)


def _quickest(took: I64, step: I64, mine: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> float:
    took, step = took[mine], step[mine]
    return float(np.median([took[step == s].min() for s in np.unique(step)]))
