"""Communication by message size: what is small waits for latency, what is large for bandwidth."""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.base.intervals import I64, Intervals, union
from perfdoc.analyzers.device.activity import Communication
from perfdoc.results.ranks import MessageSizes

SMALL_BYTES = 1 << 20
"""Up to here a collective takes about as long as its latency: at 100 GB/s 1 MiB moves in 10 us, and over
several nodes it takes 20 us or more however little it moves."""
BOUNDS_BYTES = (1 << 16, SMALL_BYTES, 1 << 24)
"""Upper bounds of the classes of message size; the last class has none."""


def message_sizes(
    comm: Communication, rows: I64, compute: Intervals, start_ns: int, end_ns: int
) -> list[MessageSizes]:
    """These rows by class of message size, ascending; those of unknown size are in none."""
    size = comm.bytes[rows]
    group = np.searchsorted(BOUNDS_BYTES, size, "left")
    found = []
    for index, most in enumerate((*BOUNDS_BYTES, None)):
        mine = rows[(group == index) & (size >= 0)]
        if len(mine):
            covered = union(comm.start_ns[mine], comm.end_ns[mine]).clip(start_ns, end_ns)
            exposed = covered.total_ns - compute.overlap_ns(covered)
            found.append(MessageSizes(most_bytes=most, count=len(mine), exposed_ns=exposed))
    return found
