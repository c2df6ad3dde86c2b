"""Rows of a table around some time, without a pass over all of them."""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.traces import ApiCalls, Kernels, Ranges

_BEFORE = 4_096
"""Rows that began before the excerpt and are looked at: who began earlier and still runs is known as compute,
without its name."""


class Nearby:
    """Some rows of a table by time, so that what looks at a moment passes over few of them."""

    def __init__(self, table: Kernels | ApiCalls | Ranges, rows: I64) -> None:
        starts = table.start_ns.take(rows)
        if (starts[1:] < starts[:-1]).any():
            order = np.argsort(starts, kind="stable")
            rows, starts = rows[order], starts[order]
        self._rows, self._starts = rows, starts

    def rows(self, start_ns: int, end_ns: int) -> I64:
        """Those that begin in [start, end), and the _BEFORE before them, by start."""
        first, last = np.searchsorted(self._starts, (start_ns, end_ns)).tolist()
        return self._rows[max(0, first - _BEFORE) : last]
