"""How closely ends tie clocks to one another: what arrivals at them can be told apart by.

Two clocks in one group are as far apart as their ends there still are, once the clocks are aligned. Over
clocks in between these add up: each hop may be off its own way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.calls.call_order import STEEPEST
from perfdoc.analyzers.clocks.clock_checks import FEW_ENDS, PERCENT, TICK_NS, reach_ns
from perfdoc.analyzers.clocks.clock_ends import PairOfClocks
from perfdoc.analyzers.clocks.clock_fit import FEWEST_FOR_OFFSET
from perfdoc.analyzers.clocks.clock_graph import F64


@dataclass(frozen=True, kw_only=True)
class Ties:
    """Pairs of clocks that share enough ends, and by how much those may be off; every pair both ways."""

    source: I64
    target: I64
    """Ascending."""
    error_ns: F64

    def distances(self, start: F64) -> F64:
        """Sum of the errors along the best way to every clock from where `start` is 0, a row for each start:
        (starts, clocks); infinite where there is none."""
        found = start.copy()
        first = np.flatnonzero(np.diff(self.target, prepend=-1))
        if not len(first):
            return found
        reached = self.target[first]
        while True:
            through = np.minimum.reduceat(found[:, self.source] + self.error_ns, first, axis=1)
            if not (through < found[:, reached]).any():
                return found
            found[:, reached] = np.minimum(found[:, reached], through)


def ties_of(pairs: Sequence[PairOfClocks], begin_ns: I64, end_ns: I64) -> Ties:
    """The ties of pairs of aligned clocks over the time in which they are read, [begin, end) by clock.

    Ends that differ by r (percentiles) may belong to lines that are tilted by 2 r over the time that they
    cover (likewise); beyond it the clocks may drift apart that fast, though never faster than clocks do.
    """
    rows = []
    kept = [p for p in pairs if len(p) >= FEWEST_FOR_OFFSET]
    scatter: dict[int, float] = {}
    for p in kept:
        scatter[p.group] = max(scatter.get(p.group, 0.0), reach_ns(p.difference_ns))
    for p in kept:
        # That a few ends agree by chance shows in those of the group's other clocks, which do not.
        off = scatter[p.group] if len(p) < FEW_ENDS else reach_ns(p.difference_ns)
        first, last = np.percentile(p.time_ns, PERCENT).tolist()
        tilt = min(STEEPEST, 2 * max(off, TICK_NS) / max(last - first, 1.0))
        off += tilt * max(first - float(begin_ns[p.source]), float(end_ns[p.source]) - last, 0.0)
        rows += [(p.source, p.target, off), (p.target, p.source, off)]
    table = np.array(rows, np.float64).reshape(-1, 3)
    table = table[np.argsort(table[:, 1], kind="stable")]
    return Ties(
        source=table[:, 0].astype(np.int64), target=table[:, 1].astype(np.int64), error_ns=table[:, 2]
    )
