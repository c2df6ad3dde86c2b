"""Checks that every reader applies to what it read: none of it can be trusted."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from perfdoc.traces.errors import TraceError
from perfdoc.traces.model import UNKNOWN
from perfdoc.traces.table import I64, Bool

MAX_TIME_NS = 2**61
"""About 73 years: later times are corrupt, and sums of a few of them would overflow int64."""
EPOCH_NS = 10**18
"""Times from here on are epoch times (September 2001); a machine is not up for 31 years."""
MAX_TOTAL_NS = 2**62
"""Of the lengths of all rows of one table, however they overlap: sums of any of them fit int64. Fifty
thousand rows that last a day each are that long."""
MAX_CORRELATION = 2**40
"""CUPTI's correlation ids are 32-bit. The room above lets a look-up key hold a process beside one."""
MAX_DEVICES = 4096
"""Pairs of process and GPU in one file. Every device costs a pass over the file, and no node has as many."""


AGAIN = "The file is damaged: export or capture it again."


def check_devices(path: Path, count: int) -> None:
    """Refuse a file that names more devices than any node can have. Raises TraceError."""
    if count > MAX_DEVICES:
        raise TraceError(path, f"names more than {MAX_DEVICES:,} GPUs (pairs of process and device).", AGAIN)


def known_correlations(ids: I64) -> I64:
    """Correlation ids, with -1 (unknown) for those that CUPTI cannot have given: it counts from 1."""
    if ids.min(initial=1) > 0 and ids.max(initial=0) < MAX_CORRELATION:
        return ids
    return np.where((ids > 0) & (ids < MAX_CORRELATION), ids, UNKNOWN)


def times_fit(start_ns: I64, end_ns: I64) -> Bool:
    """Which host rows have times within 2^61 ns of time 0 and, where all last longer than 2^62 ns together,
    are not among the longest: so that later arithmetic cannot overflow."""
    fit: Bool = (np.minimum(start_ns, end_ns) >= -MAX_TIME_NS) & (np.maximum(start_ns, end_ns) <= MAX_TIME_NS)
    length = np.where(fit & (end_ns > start_ns), end_ns - start_ns, 0)
    if float(length.sum(dtype=np.float64)) > MAX_TOTAL_NS:
        fit &= length <= MAX_TOTAL_NS // len(length)
    return fit
