"""Memory that grows and does not stop: when it began, and when there is none left."""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.steps.levels import F64
from perfdoc.records import dataclass
from perfdoc.watch.series import JobSeries

MIN_STEPS = 40
MIN_GROWTH_FRAC = 0.05
"""Of what was there: a cache that fills is less, or stops."""
MIN_GROWTH_BYTES = 32 << 20
_PARTS = 8
"""Of the time since the onset, each of which must have grown by at least a third of the mean growth."""
_STEADY = 1 / 3
_LUMPS = 1.5


@dataclass(frozen=True, kw_only=True)
class Growth:
    """Memory of one rank that grows."""

    rank: int
    """Position in the series."""
    onset: int
    """Position of the first step that added."""
    bytes_per_step: float
    on_device: bool
    steps_left: float | None
    """Until there is no more; None where that is not known."""


def growth(series: JobSeries, first: int) -> Growth | None:
    """The rank whose memory grows fastest, steadily to the last step, from position `first` on; else None."""
    found: list[Growth] = []
    for name in ("allocated_bytes", "resident_bytes"):
        if not series.has(name):
            continue
        values = np.asarray(series.values[name][:, first:], np.float64)
        gained = np.nan_to_num(values[:, -1] - values[:, 0])
        for rank in np.argsort(-gained)[:4].tolist():
            if (onset := _onset(values[rank], series.step[first:])) is not None:
                tail, steps = values[rank, onset:], series.step[first + onset :]
                each = float(tail[-1] - tail[0]) / float(steps[-1] - steps[0])
                began, on_device = series.began, name == "allocated_bytes"
                of_this = began is not None and on_device == (began.device == "cuda")
                room = began.memory_bytes if began is not None and of_this else None
                left = None if room is None else (room - float(tail[-1])) / each
                begins = first + onset + 1
                found.append(
                    Growth(rank=rank, onset=begins, bytes_per_step=each, on_device=on_device, steps_left=left)
                )
    return max(found, key=lambda g: g.bytes_per_step, default=None)


def _onset(values: F64, step: I64) -> int | None:
    """Position after which a series grows until its end; None where it does not."""
    if len(values) < MIN_STEPS or not np.isfinite(values).all():
        return None
    limit = max(MIN_GROWTH_FRAC * float(values[0]), MIN_GROWTH_BYTES)
    if values[-1] - values.min() < limit:
        return None
    # From the last step before it grew the series lies farthest below the line from its first to its last
    # value. A heap grows in lumps: less than one of them is no bend.
    below = np.interp(step, step[[0, -1]], values[[0, -1]]) - values
    bend = int(np.argmax(below))
    begin = bend if below[bend] > _LUMPS * float(np.diff(values).max()) else 0
    tail = values[begin:]
    if len(tail) < MIN_STEPS // 2 or tail[-1] - tail[0] < limit:
        return None
    bounds = np.linspace(step[begin], step[-1], _PARTS + 1)
    parts = np.diff(np.interp(bounds, step[begin:], tail))
    return begin if (parts >= _STEADY * (tail[-1] - tail[0]) / _PARTS).all() else None
