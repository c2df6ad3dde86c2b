"""Memory that is free but still held by whatever used it last."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from perfdoc.profiling.malloc import trim
from perfdoc.traces import Trace
from perfdoc.traces.file_memory import is_short_of
from perfdoc.traces.on_disk import let_go

LARGE = 5_000_000
"""Rows. Of fewer the next arrays take what is free: memory peaks no higher, and the kernel clears less."""


def give_back(rows: int) -> None:
    """Give free memory back to the system before another thread needs as much.

    glibc keeps what was freed, and Arrow what columns were read into: of 20 M kernels 150 MB.
    """
    if rows >= LARGE:
        let_go()
        pa.default_memory_pool().release_unused()
        trim()


_BYTES_A_KERNEL = 450
"""What the analysis of one device takes at once beside the trace's columns, with its launches
(docs/performance.md)."""


def is_short_for(trace: Trace) -> bool:
    """Whether a large trace has a device of more kernels than there is memory for."""
    if not trace.is_large or not len(trace.kernels):
        return False
    most = int(np.bincount(trace.kernels.device).max())
    return is_short_of(most * _BYTES_A_KERNEL)
