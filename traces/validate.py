"""Checks that every reader applies to what it read: none of it can be trusted."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import numpy as np

from perfdoc.traces.errors import TraceError
from perfdoc.traces.model import (
    UNKNOWN,
    ApiCalls,
    Copies,
    GraphLaunches,
    Kernels,
    Note,
    Operators,
    Ranges,
    Syncs,
)
from perfdoc.traces.table import I64, Bool

_HostRows = TypeVar("_HostRows", ApiCalls, Operators, Ranges, Syncs)

MAX_TIME_NS = 2**61
"""About 73 years: later times are corrupt, and sums of a few of them would overflow int64."""
MAX_TOTAL_NS = 2**62
"""Of the lengths of all rows of one table, however they overlap: sums of any of them fit int64. Fifty
thousand rows that last a day each are that long."""
MAX_CORRELATION = 2**40
"""CUPTI's correlation ids are 32-bit. The room above lets a look-up key hold a process beside one."""
MAX_DEVICES = 4096
"""Pairs of process and GPU in one file. Every device costs a pass over the file, and no node has as many."""


def check_activity(path: Path, kernels: Kernels, copies: Copies, graphs: GraphLaunches) -> None:
    """Refuse device rows with impossible times: no figure of such a file could be trusted.

    Raises TraceError with the first such row.
    """
    for what, table in (("kernel", kernels), ("memory operation", copies), ("CUDA graph", graphs)):
        for problem, bad in (
            ("starts before time 0", table.start_ns < 0),
            ("ends before it starts", table.end_ns < table.start_ns),
            ("has a time beyond 2^61 ns", table.end_ns > MAX_TIME_NS),
        ):
            if bad.any():
                row = int(np.argmax(bad))
                raise TraceError(
                    path,
                    f"{what} row {row + 1} {problem} "
                    f"(start {int(table.start_ns[row])} ns, end {int(table.end_ns[row])} ns; "
                    f"{int(np.count_nonzero(bad)):,} such rows).",
                    _AGAIN,
                )
        if _total_ns(table.start_ns, table.end_ns) > MAX_TOTAL_NS:
            raise TraceError(path, f"{what} rows last more than 2^62 ns together.", _AGAIN)


def _total_ns(start_ns: I64, end_ns: I64) -> float:
    """Of the lengths; as a fraction, which no sum can be too large for."""
    return float((end_ns - start_ns).sum(dtype=np.float64))


_AGAIN = "The file is damaged: export or capture it again."


def check_devices(path: Path, count: int) -> None:
    """Refuse a file that names more devices than any node can have. Raises TraceError."""
    if count > MAX_DEVICES:
        raise TraceError(
            path,
            f"names more than {MAX_DEVICES:,} GPUs (pairs of process and device).",
            _AGAIN,
        )


def known_correlations(ids: I64) -> I64:
    """Correlation ids, with -1 (unknown) for those that CUPTI cannot have given."""
    if ids.min(initial=0) >= 0 and ids.max(initial=0) < MAX_CORRELATION:
        return ids
    return np.where((ids >= 0) & (ids < MAX_CORRELATION), ids, UNKNOWN)


def times_fit(start_ns: I64, end_ns: I64) -> Bool:
    """Which host rows have times within 2^61 ns of time 0 and, where all last longer than 2^62 ns together,
    are not among the longest: so that later arithmetic cannot overflow."""
    fit: Bool = (np.minimum(start_ns, end_ns) >= -MAX_TIME_NS) & (np.maximum(start_ns, end_ns) <= MAX_TIME_NS)
    length = np.where(fit & (end_ns > start_ns), end_ns - start_ns, 0)
    if float(length.sum(dtype=np.float64)) > MAX_TOTAL_NS:
        fit &= length <= MAX_TOTAL_NS // len(length)
    return fit


def host_rows_that_fit(table: _HostRows) -> tuple[_HostRows, int]:
    """The rows whose times fit (`times_fit`), and the number of rows left out."""
    fit = times_fit(table.start_ns, table.end_ns)
    left_out = int(np.count_nonzero(~fit))
    return (table.take(fit) if left_out else table), left_out


def left_out_note(rows: int) -> list[Note]:
    """What to say of host rows that were left out for their times; nothing where there were none."""
    if not rows:
        return []
    return [
        Note(
            code="impossible-times",
            message=f"{rows:,} host rows (calls, ranges) have times or lengths beyond 2^61 ns; left out.",
            remedy=_AGAIN,
        )
    ]
