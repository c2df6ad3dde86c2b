"""Memory that is free but still held by whatever used it last."""

from __future__ import annotations

import pyarrow as pa

from perfdoc.profiling.malloc import trim
from perfdoc.traces.on_disk import let_go

LARGE = 500_000
"""Rows. Arrays of fewer are too small to matter."""


def give_back(rows: int) -> None:
    """Give free memory back to the system before another thread needs as much.

    glibc keeps what a thread freed for that thread: of one device with 2 M kernels some 300 MB each. Arrow
    keeps what columns were read into: of 20 M kernels 150 MB.
    """
    if rows >= LARGE:
        let_go()
        pa.default_memory_pool().release_unused()
        trim()
